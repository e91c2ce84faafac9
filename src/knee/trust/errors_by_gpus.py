"""Errors of published throughputs by number of GPUs, each predicted as if its source had never been seen.

Labels and bands of a source are from the errors of the other sources. tools/band_coverage.py counts what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from knee.base.errors import InputError
from knee.specs.job import Job
from knee.trust.bands import CONSTANTS, Constants, Quantity, Scores, carried_constants, unseen
from knee.trust.error_table import EXPERTS, Errors, error_rows, read_errors
from knee.trust.similarity import likeness_of
from knee.trust.trust import label_of
from knee.trust.validation.bundled_runs import carried_moe_runs, carried_runs
from knee.trust.validation.run_to_job import job_of, unseen_job_of

PROMISED = (0.8, 0.9)
SAME_WORDS = ("source", "gpu", "sharding", "schedule", "precision", "recompute")
SAME_NUMBERS = ("n_gpus", "layers", "hidden", "tp", "pp", "cp", "dp", "seq_len", "micro_tokens", "tokens_per_gpu")
"""What tells the job of a row of errors."""


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


Ends = Mapping[str, tuple[Constants, Mapping[float, tuple[float, float]]]]
"""Source -> constants, and promised share -> ends at no distance, both without it."""


def ends_without(
    errors: Errors, quantity: Quantity, by: Mapping[str, Mapping[Quantity, Constants]], shipped: Path = CONSTANTS
) -> Ends:
    """Source -> the band's constants and its ends at no distance, from the errors of the other sources.

    ``by`` has constants that were fitted without a source; else those of the catalogue's file ``shipped``.
    """
    found = {}
    for source in dict.fromkeys(errors.words["source"]):
        constants = by.get(source, carried_constants(shipped))[quantity]
        scores = Scores(errors.where(~errors.is_("source", source)), quantity, constants)
        found[source] = (constants, {promised: scores.ends(promised) for promised in PROMISED})
    return found


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
    ends = ends_without(errors, "throughput", {})
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
