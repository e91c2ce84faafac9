"""What bands hold of sources that are left out, each in turn: labels and bands are from the errors of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import InputError
from knee.specs.job import Job
from knee.trust.bands import CONSTANTS, LABELS, Constants, Label, Quantity, Scores, carried_constants, unseen
from knee.trust.distances import Distances
from knee.trust.error_table import EXPERTS, Errors, error_rows, read_errors
from knee.trust.similarity import likeness_of
from knee.trust.trust import label_of
from knee.trust.validation.bundled_runs import carried_moe_runs, carried_runs
from knee.trust.validation.left_out import unseen_job_of
from knee.trust.validation.run_to_job import job_of

QUANTITIES: tuple[Quantity, ...] = ("throughput", "memory")
PROMISED = (0.8, 0.9)
SAME_WORDS = ("source", "gpu", "sharding", "schedule", "precision", "recompute")
SAME_NUMBERS = ("n_gpus", "layers", "hidden", "tp", "pp", "cp", "dp", "seq_len", "micro_tokens", "tokens_per_gpu")
"""What tells the job of a row of errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run of a source that is left out."""

    source: str
    label: Label
    quantity: Quantity
    log_truth: float
    """Of truth / predicted, where the prediction saw nothing of the source."""
    distances: Distances
    """From the runs of the other sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What bands promise, and what they hold."""

    quantity: Quantity
    label: Label
    source: str
    """Empty: over all, each source counting once."""
    covered_frac: float
    """Promised."""
    runs: int
    held_frac: float
    half_width_frac: float
    """Median of half the band, as a share of the prediction."""


@lru_cache(maxsize=2)
def jobs_of(errors: Errors) -> tuple[Job | None, ...]:
    """For each row, the job as knee would be asked for it if its source were unknown; None: its run is not carried."""
    jobs: dict[tuple[object, ...], Job] = {}
    carried = carried_moe_runs() if errors is read_errors(EXPERTS) else carried_runs()
    for run in carried.runs:
        if run.status != "ok":
            continue
        try:
            own, job = job_of(run.setting), unseen_job_of(run.setting).job
        except InputError:
            continue
        (row,) = error_rows([(run, own, (0.0, None), (None, None))])
        # its own nodes and rates make a cluster of its own; its label is that of the catalogue's
        cluster = replace(job.cluster, name=job.cluster.name.partition(" (")[0])
        jobs.setdefault(tuple(row[name] for name in (*SAME_WORDS, *SAME_NUMBERS)), replace(job, cluster=cluster))
    words, numbers = (errors.words[name] for name in SAME_WORDS), (errors.numbers[name] for name in SAME_NUMBERS)
    return tuple(jobs.get(key) for key in zip(*words, *numbers, strict=True))


def judged_runs(errors: Errors, jobs: Sequence[Job | None]) -> list[Judged]:
    """Every run, as the other sources see it."""
    return list(_judged(errors, jobs))


def _judged(errors: Errors, jobs: Sequence[Job | None]) -> Iterator[Judged]:
    for source in dict.fromkeys(errors.words["source"]):
        mine = errors.is_("source", source)
        rest = errors.where(~mine)
        scores = {quantity: Scores(rest, quantity, carried_constants()[quantity]) for quantity in QUANTITIES}
        for i in np.flatnonzero(mine).tolist():
            job = jobs[i]
            if job is None:
                continue
            found = likeness_of(job, (), rest)
            for quantity in QUANTITIES:
                log_truth = float(-np.log1p(unseen(errors, quantity)[i]))
                if np.isfinite(log_truth):
                    yield Judged(
                        source=source,
                        label=label_of(found),
                        quantity=quantity,
                        log_truth=log_truth,
                        distances=scores[quantity].measured.of_job(job, found.gpu, found.stack),
                    )


def coverage(
    errors: Errors | None = None,
    constants: Mapping[str, Mapping[Quantity, Constants]] | None = None,
    judged: Sequence[Judged] | None = None,
    shipped: Path = CONSTANTS,
) -> list[Coverage]:
    """By quantity, label and source, and over the sources of a label, at 80% and at 90%.

    ``constants`` are by source, for constants that were fitted without it; else those of the catalogue's file
    ``shipped``.
    """
    errors = read_errors() if errors is None else errors
    judged = judged_runs(errors, jobs_of(errors)) if judged is None else judged
    found: list[Coverage] = []
    for quantity in QUANTITIES:
        ends = _ends_without(errors, quantity, constants or {}, shipped)
        for label in LABELS:
            runs = [run for run in judged if run.quantity == quantity and run.label == label]
            for promised in PROMISED:
                found += _rows(quantity, label, promised, runs, ends)
    return found


Ends = Mapping[str, tuple[Constants, Mapping[float, tuple[float, float]]]]
"""Source -> constants, and promised share -> ends at no distance, both without it."""


def _ends_without(
    errors: Errors, quantity: Quantity, by: Mapping[str, Mapping[Quantity, Constants]], shipped: Path = CONSTANTS
) -> Ends:
    found = {}
    for source in dict.fromkeys(errors.words["source"]):
        constants = by.get(source, carried_constants(shipped))[quantity]
        scores = Scores(errors.where(~errors.is_("source", source)), quantity, constants)
        found[source] = (constants, {promised: scores.ends(promised) for promised in PROMISED})
    return found


def _rows(quantity: Quantity, label: Label, promised: float, runs: Sequence[Judged], ends: Ends) -> Iterator[Coverage]:
    shares, widths = [], []
    for source in dict.fromkeys(run.source for run in runs):
        mine = [run for run in runs if run.source == source]
        constants, at = ends[source]
        holds, width = held(mine, constants, at[promised], constants.labels[label])
        shares.append(float(np.mean(holds)))
        widths += width.tolist()
        yield _row(quantity, label, source, promised, len(mine), shares[-1], width)
    if runs:
        yield _row(quantity, label, "", promised, len(runs), float(np.mean(shares)), np.array(widths))


def _row(
    quantity: Quantity, label: Label, source: str, promised: float, runs: int, held_frac: float, width: Floats
) -> Coverage:
    return Coverage(
        quantity=quantity,
        label=label,
        source=source,
        covered_frac=promised,
        runs=runs,
        held_frac=held_frac,
        half_width_frac=float(np.median(width)),
    )


def held(
    runs: Sequence[Judged], constants: Constants, ends: tuple[float, float], times: float
) -> tuple[Floats, Floats]:
    """Whether each band holds the truth, and half its width."""
    scale = constants.scale(np.array([run.distances for run in runs]).T) * times
    truth = np.array([run.log_truth for run in runs])
    low, high = scale * ends[0], scale * ends[1]
    return ((low <= truth) & (truth <= high)).astype(np.float64), (np.exp(high) - np.exp(low)) / 2.0


def table(rows: Sequence[Coverage]) -> str:
    """For the eye."""
    lines = [f"{'quantity':12}{'label':14}{'source':38}{'promised':>9}{'runs':>6}{'held':>7}{'half width':>12}"]
    lines += [
        f"{row.quantity:12}{row.label:14}{row.source or 'all sources':38}{row.covered_frac:9.0%}{row.runs:6}"
        f"{row.held_frac:7.0%}{row.half_width_frac:12.0%}"
        for row in rows
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCountError:
    """The middle one of the runs of a source on one number of GPUs, predicted as if the source had never been seen."""

    source: str
    n_gpus: int
    runs: int
    error_frac: float
    """Predicted over measured less one."""
    low_frac: float
    """The band of 90% that the other sources promise for it, of the same ratio."""
    high_frac: float


def errors_by_gpus(errors: Errors | None = None) -> list[GpuCountError]:
    """Throughput of every source at every number of GPUs that it has."""
    errors = read_errors() if errors is None else errors
    jobs, error = jobs_of(errors), unseen(errors, "throughput")
    found: list[GpuCountError] = []
    ends = _ends_without(errors, "throughput", {})
    for source, (constants, at) in ends.items():
        mine = errors.is_("source", source)
        rest = errors.where(~mine)
        scores = Scores(rest, "throughput", constants)
        for n_gpus in np.unique(errors.numbers["n_gpus"][mine]).tolist():
            some = np.flatnonzero(mine & (errors.numbers["n_gpus"] == n_gpus) & np.isfinite(error))
            some = np.array([i for i in some[np.argsort(error[some])].tolist() if jobs[i] is not None], dtype=np.int64)
            if not len(some):
                continue
            middle = int(some[len(some) // 2])
            job = jobs[middle]
            assert job is not None
            like = likeness_of(job, (), rest)
            away = scores.measured.of_job(job, like.gpu, like.stack)
            scale = float(constants.scale(np.array([away]).T)[0]) * constants.labels[label_of(like)]
            low, high = (scale * end for end in at[PROMISED[-1]])
            found.append(
                GpuCountError(
                    source=source,
                    n_gpus=int(n_gpus),
                    runs=len(some),
                    error_frac=float(error[middle]),
                    low_frac=float(np.exp(-high) - 1.0),
                    high_frac=float(np.exp(-low) - 1.0),
                )
            )
    return found
