"""Published runs against predictions: errors by source, memory, what fits, and the choice among plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import TypeVar

import numpy as np

from knee.base.arrays import Bools, Floats, extreme_values
from knee.base.errors import InputError
from knee.engine.simulator import simulate_table
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.job import Job
from knee.specs.plan_table import PlanTable, table_of
from knee.specs.profile import Profile
from knee.specs.profile_parameters import Values, applied
from knee.trust.validation.csv_cells import reason_of
from knee.trust.validation.published_runs import STATUSES, CsvRow, PublishedRun, RunFile, Setting, Status
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
        model = asked.job.model
        if model.positions != "learned":  # no weight depends on the longest sequence
            model = replace(model, max_seq_len=1)
        key = (model, asked.job.cluster.name, asked.job.profile)
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


FEWEST = 3
"""Plans below which a rank correlation says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Plans that were measured of one job."""

    source: str
    plans: int
    regret_frac: float
    """How much slower the plan that knee ranks first ran than the fastest one."""
    spearman: float | None
    """Rank correlation of predicted and measured throughput; None with fewer than three plans, or all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How well knee ranks plans, over all groups of runs of one job."""

    groups: int
    plans: int
    median_regret_frac: float
    mean_regret_frac: float
    worst_regret_frac: float
    best_chosen_frac: float
    """Share of groups in which knee chooses the fastest plan itself."""
    median_spearman: float | None

    @classmethod
    def of(cls, groups: Sequence[Cohort]) -> Ranking | None:
        """None where no job was measured under two plans."""
        if not groups:
            return None
        regrets = np.array([group.regret_frac for group in groups])
        orders = [group.spearman for group in groups if group.spearman is not None]
        return cls(
            groups=len(groups),
            plans=sum(group.plans for group in groups),
            median_regret_frac=float(np.median(regrets)),
            mean_regret_frac=float(np.mean(regrets)),
            worst_regret_frac=float(np.max(regrets)),
            best_chosen_frac=float(np.mean(regrets == 0.0)),
            median_spearman=float(np.median(orders)) if orders else None,
        )


def job_key(s: Setting) -> Hashable:
    """What two runs share that differ only in the plan."""
    model = (s.model, s.layers, s.hidden, s.ffn, s.heads, s.kv_heads, s.vocab, s.mlp, s.tied_embeddings)
    where = (s.gpu, s.gpus_per_node, s.node_bytes_per_s, s.n_gpus)
    return (s.source, *model, *where, s.global_batch, s.seq_len, s.precision, s.compile, s.attention, s.kernel)


def rank_group(source: str, predicted: Floats, measured: Floats, fits: Bools) -> Cohort:
    """Knee chooses the fastest plan that it expects to fit, and the fastest of all where it expects none to."""
    candidates = np.flatnonzero(fits) if fits.any() else np.arange(len(fits))
    chosen = candidates[np.argmax(predicted[candidates])]
    return Cohort(
        source=source,
        plans=len(measured),
        regret_frac=float(1.0 - measured[chosen] / measured.max()),
        spearman=spearman(predicted, measured) if len(measured) >= FEWEST else None,
    )


def spearman(a: Floats, b: Floats) -> float | None:
    """Correlation of ranks; None where one side has no order."""
    # scipy.stats has it, but scipy is the extra `fit`, and `knee validate` works without extras
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    spread = ranks_a.std() * ranks_b.std()
    if spread == 0.0:
        return None
    return float(np.mean((ranks_a - ranks_a.mean()) * (ranks_b - ranks_b.mean())) / spread)


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse], dtype=np.float64)


T = TypeVar("T")
Watch = Callable[[Sequence[PublishedRun]], Iterable[PublishedRun]]
PIECE = 20_000
"""Runs that are predicted together: their jobs take ten times the memory of their answers."""
NO_ANSWER = "a size is so unrealistic that the step time is not finite"
UNREAD = "memory was read from torch's allocator, so the CUDA context and NCCL buffers are not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One run, predicted."""

    run: PublishedRun
    stack: str
    tokens_per_s_per_gpu: float
    memory_bytes: float
    """Of what the run's own reading counts; all of it where nothing was read."""
    fits: bool
    notes: tuple[str, ...]

    @property
    def error_frac(self) -> float | None:
        """Of throughput: predicted over measured less one."""
        measured = self.run.tokens_per_s_per_gpu
        return None if measured is None else self.tokens_per_s_per_gpu / measured - 1.0

    @property
    def memory_error_frac(self) -> float | None:
        """The same of memory."""
        measured = self.run.memory_bytes
        return None if measured is None else self.memory_bytes / measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Runs of one status: how many knee expects to fit."""

    fits: int = 0
    does_not: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One source, or all rows together."""

    rows: int
    rows_used: int
    runs: int
    """Rows used, repeats as one."""
    skipped: dict[str, int]
    """Reason -> rows."""
    throughput: Residuals | None
    memory: Residuals | None
    fitting: dict[Status, Fitting]
    ranking: Ranking | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Everything that is said of a file."""

    headline_frac: float | None
    """Median over sources of the source's median error: each source counts once."""
    all: Score
    sources: dict[str, Score]
    groups: tuple[Cohort, ...]
    notes: dict[str, int]
    """Assumption -> rows."""
    stacks: dict[str, int]
    """Software stack that rows were taken to be of -> rows."""
    predictions: dict[int, Prediction] = field(repr=False)
    """Line of the file -> its run."""
    reasons: dict[int, str] = field(repr=False)
    """Line of the file -> why it was skipped."""


def validate(file: RunFile, ask: Ask = job_of, watch: Watch = iter) -> Validation:
    """Predict every row of a file and score it; ``watch`` sees the runs pass that are predicted."""
    found, refused = predict(file.runs, ask, watch)
    predictions = {line: p for p in found for line in p.run.lines}
    reasons = {row.line: row.reason for row in file.rows if row.reason is not None}
    reasons |= {line: reason for run, reason in refused for line in run.lines}
    groups = _groups(found)
    rows_of = by_name(file.rows, attrgetter("source"))
    found_of = by_name(found, lambda p: p.run.setting.source)
    groups_of = by_name(groups, attrgetter("source"))
    sources = {
        name: _score(rows=rows, reasons=reasons, found=found_of.get(name, ()), groups=groups_of.get(name, ()))
        for name, rows in rows_of.items()
    }
    medians = [score.throughput.median_frac for score in sources.values() if score.throughput is not None]
    return Validation(
        headline_frac=float(np.median(medians)) if medians else None,
        all=_score(rows=file.rows, reasons=reasons, found=found, groups=groups),
        sources=sources,
        groups=groups,
        notes=_notes(file, predictions),
        stacks=dict(Counter(p.stack for p in predictions.values()).most_common()),
        predictions=predictions,
        reasons=reasons,
    )


def by_name(items: Iterable[T], name_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Items by a name that each has, in their order."""
    found: dict[str, list[T]] = {}
    for item in items:
        found.setdefault(name_of(item), []).append(item)
    return found


def _notes(file: RunFile, predictions: Mapping[int, Prediction]) -> dict[str, int]:
    """Columns that are missing first; then what was assumed of most rows."""
    said = Counter(note for p in predictions.values() for note in p.notes)
    said.update(remark for row in file.rows if row.line in predictions for remark in row.remarks)
    first = {file.defaults: len(predictions)} if file.defaults and predictions else {}
    return first | dict(said.most_common())


def predict(
    runs: Sequence[PublishedRun], ask: Ask = job_of, watch: Watch = iter
) -> tuple[list[Prediction], list[Refused]]:
    """All runs, some thousands together; those that cannot be asked, or have no finite answer, with the reason."""
    found: list[Prediction] = []
    refused: list[Refused] = []
    said: dict[tuple[str, ...], tuple[str, ...]] = {}
    passing = iter(watch(runs))
    while piece := list(islice(passing, PIECE)):
        good, bad = _predict(piece, ask, said)
        found += good
        refused += bad
    return found, refused


def _predict(
    runs: Sequence[PublishedRun], ask: Ask, said: dict[tuple[str, ...], tuple[str, ...]]
) -> tuple[list[Prediction], list[Refused]]:
    """``said`` has the notes so far: most runs share theirs."""
    cases, refused = cases_of(runs, ask)
    answer = predicted(cases)
    found: list[Prediction] = []
    pairs = [(case, run, asked) for case in cases for run, asked in zip(case.runs, case.asked, strict=True)]
    for i, (case, run, asked) in enumerate(pairs):
        rate, memory = float(answer.tokens_per_s_per_gpu[i]), float(answer.memory_bytes[i])
        if not (0 < rate < np.inf and np.isfinite(memory)):
            refused.append((run, NO_ANSWER))
            continue
        unread = (UNREAD,) if unread_bytes(run, asked, case.job.profile) else ()
        found.append(
            Prediction(
                run=run,
                stack=asked.stack,
                tokens_per_s_per_gpu=rate,
                memory_bytes=memory,
                fits=bool(answer.fits[i]),
                notes=said.setdefault(notes := (*asked.notes, *unread), notes),
            )
        )
    return found, refused


def _score(
    *, rows: Sequence[CsvRow], reasons: Mapping[int, str], found: Sequence[Prediction], groups: Sequence[Cohort]
) -> Score:
    return Score(
        rows=len(rows),
        rows_used=sum(len(p.run.lines) for p in found),
        runs=len(found),
        skipped=dict(Counter(reasons[row.line] for row in rows if row.line in reasons).most_common()),
        throughput=Residuals.of_measured(
            [p.tokens_per_s_per_gpu for p in found], [p.run.tokens_per_s_per_gpu for p in found]
        ),
        memory=Residuals.of_measured([p.memory_bytes for p in found], [p.run.memory_bytes for p in found]),
        fitting={status: _fitting([p for p in found if p.run.status == status]) for status in STATUSES},
        ranking=Ranking.of(groups),
    )


def _fitting(found: Sequence[Prediction]) -> Fitting:
    fits = sum(p.fits for p in found)
    return Fitting(fits=fits, does_not=len(found) - fits)


def _groups(found: Sequence[Prediction]) -> tuple[Cohort, ...]:
    """Jobs that were measured under more than one plan. Failed plans are left out: they may be crashes."""
    jobs: dict[Hashable, list[tuple[Prediction, float]]] = {}
    for p in found:
        if p.run.tokens_per_s_per_gpu is not None:
            jobs.setdefault(job_key(p.run.setting), []).append((p, p.run.tokens_per_s_per_gpu))
    return tuple(
        rank_group(
            members[0][0].run.setting.source,
            np.array([p.tokens_per_s_per_gpu for p, _ in members]),
            np.array([measured for _, measured in members]),
            np.array([p.fits for p, _ in members]),
        )
        for members in jobs.values()
        if len(members) > 1
    )
