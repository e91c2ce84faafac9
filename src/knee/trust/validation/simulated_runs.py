"""Published runs grouped into tables that the simulator answers at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats, extreme_values
from knee.base.errors import InputError
from knee.engine.simulator import simulate_table
from knee.specs.job import Job
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable, table_of
from knee.specs.profile import Profile
from knee.specs.profile_parameters import Values, applied
from knee.trust.validation.csv_cells import reason_of
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_to_job import RunJob, check_memory, job_of

Ask = Callable[[Setting], RunJob]
Refused = tuple[PublishedRun, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """Runs of one model on one cluster under one profile."""

    job: Job
    """Of the first; the others differ in the plan."""
    table: PlanTable
    runs: tuple[PublishedRun, ...]
    asked: tuple[RunJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Of every run, in the order of the cases. NaN where the step has no finite answer."""

    tokens_per_s_per_gpu: Floats
    memory_bytes: Floats
    """As the run's own reading counts it."""
    fits: Bools


def cases_of(runs: Iterable[PublishedRun], ask: Ask = job_of) -> tuple[list[SimulatedRun], list[Refused]]:
    """A table for each model, cluster and profile; runs that cannot be asked, with the reason."""
    pairs, refused = ask_runs(runs, ask)
    return grouped(pairs), refused


def ask_runs(runs: Iterable[PublishedRun], ask: Ask) -> tuple[list[tuple[PublishedRun, RunJob]], list[Refused]]:
    """Runs with their jobs; runs that cannot be asked, with the reason."""
    pairs: list[tuple[PublishedRun, RunJob]] = []
    refused: list[Refused] = []
    for run in runs:
        try:
            asked = ask(run.setting)
            check_memory(run, asked)
            pairs.append((run, asked))
        except InputError as error:
            refused.append((run, reason_of(error)))
    return pairs, refused


def grouped(pairs: Iterable[tuple[PublishedRun, RunJob]]) -> list[SimulatedRun]:
    """Runs whose jobs are known already, a table for each model, cluster and profile."""
    groups: dict[Hashable, list[tuple[PublishedRun, RunJob]]] = {}
    for run, asked in pairs:
        # clusters hold a mapping, so they have no hash; equal names are the same cluster here
        key = (_any_length(asked.job.model), asked.job.cluster.name, asked.job.profile)
        groups.setdefault(key, []).append((run, asked))
    return [
        SimulatedRun(
            job=some[0][1].job,
            table=table_of([replace(asked.job, model=some[0][1].job.model) for _, asked in some]),
            runs=tuple(run for run, _ in some),
            asked=tuple(asked for _, asked in some),
        )
        for some in groups.values()
    ]


def _any_length(model: Model) -> Model:
    """The same for all lengths of sequences, where no weight depends on the longest."""
    return model if model.positions == "learned" else replace(model, max_seq_len=1)


def predicted(cases: Iterable[SimulatedRun], values: Values | None = None) -> Predicted:
    """All runs, with these values of parameters in place of the catalogue's."""
    rates, memories, fits = ([np.zeros(0)] for _ in range(3))
    for case in cases:
        cluster, profile = applied(case.job.cluster, case.job.profile, values or {})
        pairs = zip(case.runs, case.asked, strict=True)
        unread = np.array([unread_bytes(run, asked, profile) for run, asked in pairs])
        try:
            with extreme_values():
                results = simulate_table(case.job.model, cluster, profile, case.table)
        except OverflowError:
            rates.append(np.full(len(case.runs), np.nan))
            memories.append(rates[-1])
            fits.append(np.zeros(len(case.runs)))
            continue
        rates.append(results.tokens_per_s_per_gpu)
        memories.append(results.memory_bytes - unread)
        fits.append(results.fits.astype(np.float64))
    return Predicted(
        tokens_per_s_per_gpu=np.concatenate(rates),
        memory_bytes=np.concatenate(memories),
        fits=np.concatenate(fits).astype(np.bool_),
    )


def unread_bytes(run: PublishedRun, asked: RunJob, profile: Profile) -> float:
    """What the run's reading of memory leaves out."""
    by_allocator = run.memory_bytes is not None and asked.memory_read == "allocator"
    return profile.context_bytes if by_allocator else 0.0
