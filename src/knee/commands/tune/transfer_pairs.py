"""Pairs of published runs of one plan that differ in their GPUs or their layers: how wrong a transfer from the smaller
run to the larger one is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from math import expm1, log, log2, sqrt
from typing import Literal, get_args

import numpy as np

from knee.base.arrays import extreme_values
from knee.base.errors import InputError
from knee.engine.simulator import simulate_table
from knee.specs.plan_table import table_of
from knee.trust.validation.left_out import unseen_job_of
from knee.trust.validation.published_runs import PublishedRun, Setting

What = Literal["gpus", "layers"]
"""What a smaller run has less of."""
WHATS: tuple[What, ...] = get_args(What)
NORMAL = 1.645
"""Standard deviations to the end of a band of 90%."""
MOST_PAIRS = 10
"""A cohort counts as no more pairs than these."""
OTHERWISE: dict[What, tuple[str, ...]] = {
    "gpus": ("n_gpus", "dp", "shard_group", "global_batch", "note"),
    "layers": ("layers", "model", "note"),
}
"""Columns in which the runs of a pair may differ; those with fewer GPUs have the same batch per GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPair:
    """Two runs of one plan."""

    source: str
    cohort: str
    """What is left out of the fit by which the pair is judged: its source; of layers, of which one source has nearly
    all pairs, its source and the width of the model."""
    small: int
    large: int
    error: float
    """Logarithm of measured over predicted gain in tokens/s per GPU."""

    @property
    def doublings(self) -> float:
        """Between the two."""
        return log2(self.large / self.small)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferErrors:
    """How wrong transfers from smaller runs are, and whether their band holds."""

    what: What
    pairs: int
    sources: int
    median_error_frac: float
    p90_error_frac: float
    band_holds_frac: float | None
    """Share of pairs within the 90% band that is fitted without their cohort; None where there is one cohort."""


def transfer_errors(runs: Iterable[PublishedRun]) -> list[TransferErrors]:
    """Of runs with fewer GPUs and of runs with fewer layers, as far as there are any."""
    runs = list(runs)
    found = [(what, pairs) for what in WHATS if (pairs := transfer_pairs(runs, what))]
    return [
        TransferErrors(
            what=what,
            pairs=len(pairs),
            sources=len({pair.source for pair in pairs}),
            median_error_frac=float(np.median([abs(expm1(pair.error)) for pair in pairs])),
            p90_error_frac=float(np.quantile([abs(expm1(pair.error)) for pair in pairs], 0.9)),
            band_holds_frac=covered_frac(pairs),
        )
        for what, pairs in found
    ]


def transfer_pairs(runs: Iterable[PublishedRun], what: What) -> list[TransferPair]:
    """All pairs, each predicted as if nothing of its source were known; of runs that are alike, the median counts."""
    groups: dict[Hashable, dict[int, list[PublishedRun]]] = {}
    for run in runs:
        if run.tokens_per_s_per_gpu is not None:
            size = run.setting.n_gpus if what == "gpus" else run.setting.layers
            groups.setdefault(_alike(run.setting, what), {}).setdefault(size, []).append(run)
    found = []
    for sizes in (some for some in groups.values() if len(some) > 1):
        errors = {size: error for size, some in sizes.items() if (error := _error(some)) is not None}
        one = next(iter(sizes.values()))[0].setting
        cohort = one.source if what == "gpus" else f"{one.source}, hidden {one.hidden}"
        found += [
            TransferPair(
                source=one.source, cohort=cohort, small=small, large=large, error=errors[large] - errors[small]
            )
            for small, large in combinations(sorted(errors), 2)
        ]
    return found


def fitted_spread(pairs: Sequence[TransferPair], *, without: str | None = None) -> float | None:
    """Standard deviation of the error that each doubling adds, by the pairs of other cohorts; None without any.

    Formula: sqrt(sum_s w_s mean_s(e^2 / d) / sum_s w_s), w_s = min(pairs of cohort s, MOST_PAIRS)
    Where: e the error of a pair, d its doublings
    """
    cohorts: dict[str, list[float]] = {}
    for pair in pairs:
        if pair.cohort != without:
            cohorts.setdefault(pair.cohort, []).append(pair.error**2 / pair.doublings)
    if not cohorts:
        return None
    weights = [min(len(some), MOST_PAIRS) for some in cohorts.values()]
    return sqrt(float(np.average([np.mean(some) for some in cohorts.values()], weights=weights)))


def covered_frac(pairs: Sequence[TransferPair]) -> float | None:
    """Share of the pairs whose error is within the 90% band that the other cohorts give; None if there are none."""
    spreads = {cohort: fitted_spread(pairs, without=cohort) for cohort in {pair.cohort for pair in pairs}}
    judged = [(pair, spread) for pair in pairs if (spread := spreads[pair.cohort]) is not None]
    if not judged:
        return None
    return float(np.mean([abs(pair.error) <= NORMAL * spread * sqrt(pair.doublings) for pair, spread in judged]))


def _alike(s: Setting, what: What) -> Hashable:
    same = tuple(str(getattr(s, f.name)) for f in fields(s) if f.name not in OTHERWISE[what])
    return (*same, s.global_batch / s.n_gpus if what == "gpus" else None)


def _error(runs: Sequence[PublishedRun]) -> float | None:
    """Logarithm of measured over predicted; None where the run cannot be simulated."""
    try:
        job = unseen_job_of(runs[0].setting).job
        with extreme_values():
            now = simulate_table(job.model, job.cluster, job.profile, table_of([job]))
    except InputError:
        return None
    measured = float(np.median([run.tokens_per_s_per_gpu for run in runs if run.tokens_per_s_per_gpu is not None]))
    return log(measured / float(now.tokens_per_s_per_gpu[0]))
