"""``knee.replay_tuning``: the loop of ``knee.tune`` on sweeps that were published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.errors import InputError, argument
from knee.base.progress import Progress, watched
from knee.commands.tune.replay import (
    LEAST_PLANS,
    ReplayedJob,
    TransferErrors,
    TrialCounts,
    counts_of,
    grid_order,
    published_jobs,
    random_orders,
    replay_job,
    simulator_order,
    thompson_orders,
    tpe_orders,
    transfer_errors,
    trial_counts,
)
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.specs.arguments import not_in_range
from knee.specs.defaults import WITHIN_FRAC
from knee.specs.kept_files import forget_files
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.csv_cells import by_kind
from knee.trust.validation.published_runs import read_runs
from knee.trust.validation.run_errors import job_key

FEW_TRIALS = 6
"""Runs within which the loop should stop by itself."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TuneReplay(Result):
    """How the loop does on jobs that were published, each predicted as if nothing of its source were known."""

    file: str
    within_frac: float
    jobs: tuple[ReplayedJob, ...]
    methods: tuple[TrialCounts, ...]
    """Runs until a plan within 2% of the best is found: the loop first, then other ways to choose."""
    small_jobs: int
    """Jobs with fewer measured plans, which are not played."""
    transfers: tuple[TransferErrors, ...] = ()
    """How wrong predictions from runs with fewer GPUs or layers are, where the file has such runs."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Why rows of the file cannot be used -> how many."""

    @property
    def few_trials_frac(self) -> float:
        """Share of jobs in which the loop stops within six runs."""
        return float(np.mean([job.trials_to_stop <= FEW_TRIALS for job in self.jobs]))

    @property
    def bound_holds_frac(self) -> float:
        """Share of jobs in which the bound that is stated at the end holds."""
        return float(np.mean([job.bound_holds for job in self.jobs]))

    @property
    def gpu_h_frac(self) -> float:
        """GPU-hours of the loop over those of running every plan, all jobs together."""
        return sum(job.gpu_h for job in self.jobs) / sum(job.sweep_gpu_h for job in self.jobs)

    def _data(self) -> dict[str, Any]:
        stops = [job.trials_to_stop for job in self.jobs]
        return {
            "file": self.file,
            "within_frac": self.within_frac,
            "jobs": self.jobs,
            "small_jobs": self.small_jobs,
            "methods": self.methods,
            "median_trials_to_stop": float(np.median(stops)),
            "p90_trials_to_stop": float(np.quantile(stops, 0.9)),
            "few_trials": FEW_TRIALS,
            "few_trials_frac": self.few_trials_frac,
            "bound_holds_frac": self.bound_holds_frac,
            "gpu_h_frac": self.gpu_h_frac,
            "transfers": self.transfers,
            "skipped": self.skipped,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The jobs, one per row."""
        return [asdict(job) for job in self.jobs]


PUBLISHED = "published"
"""The runs that knee ships, in place of a file's name."""
FEWER = 4
"""Measured plans of a job that is still worth playing."""


@checked_arguments
def replay_tuning(
    file: str | Path = PUBLISHED,
    *,
    within: float = WITHIN_FRAC,
    least_plans: int = LEAST_PLANS,
    progress: Progress | None = None,
) -> TuneReplay:
    """Play the loop of ``knee.tune`` on measured runs, as if each plan were a run that has to be made.

    ``file`` is a CSV file of training runs as for ``knee.validate``, or ``"published"`` for the runs that knee ships.
    Every job with at least ``least_plans`` measured plans is played. Runs of a published source are predicted with
    constants that were fitted without that source. The loop stops when no untried plan is expected to be faster by more
    than the share ``within``. Optuna's TPE is one of the other ways to choose if optuna is installed.

    >>> import knee
    >>> found = knee.replay_tuning("published", least_plans=8)  # doctest: +SKIP
    >>> found.methods[0].median  # doctest: +SKIP
    1.0
    """
    check_within(within)
    if least_plans < 2:
        raise not_in_range("least_plans", str(least_plans), "it must be at least 2")
    forget_files()
    found = carried_runs() if str(file) == PUBLISHED else read_runs(Path(file))
    jobs = published_jobs(found.runs, least_plans=least_plans)
    skipped = Counter(row.reason for row in found.rows if row.reason)
    if not jobs:
        raise _no_job(str(file), least_plans, skipped)
    played = tuple(replay_job(job, within_frac=within) for job in watched(jobs, "replaying", len(jobs), progress))
    orders = [
        ("expected improvement (knee tune)", None),
        ("Thompson sampling", thompson_orders),
        ("simulator alone", simulator_order),
        ("grid order", grid_order),
        ("random order", random_orders),
        *([("Optuna TPE", tpe_orders)] if find_spec("optuna") else []),
    ]
    methods = tuple(
        counts_of(name, [job.trials_to_good for job in played]) if order is None else trial_counts(name, jobs, order)
        for name, order in watched(orders, "comparing", len(orders), progress)
    )
    every = len({job_key(run.setting) for run in found.runs})
    return TuneReplay(
        file=str(file),
        within_frac=within,
        jobs=played,
        methods=methods,
        small_jobs=max(0, every - len(jobs)),
        transfers=tuple(transfer_errors(found.runs)),
        skipped=by_kind(skipped),
    )


def _no_job(file: str, least_plans: int, skipped: Mapping[str, int]) -> InputError:
    """The error of a file without a sweep; rows that could not be read may be why."""
    why = f"; rows that cannot be used: {sum(skipped.values()):,} ({next(iter(by_kind(skipped)))})" if skipped else ""
    return InputError(
        f"{file} has no job with {least_plans} measured plans; runs belong to one job if they differ only in the "
        f"plan{why}",
        hint=f"{argument('least_plans')} {FEWER} also plays smaller jobs" if least_plans > FEWER else None,
        code="nothing-usable",
        field="replay",
    )


def check_within(within: float) -> None:
    """Refuse what is no share."""
    if not 0 <= within < 1:
        hint = f"for example {argument('within')} 2%"
        raise not_in_range("within", f"{within:g}", "it must be at least 0 and below 1", hint=hint)
