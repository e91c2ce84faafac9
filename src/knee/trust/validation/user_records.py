"""The one reader of knee's own records: where they lie, what a record is, its job, and the run that it measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from knee.base.errors import InputError, SpecError, argument
from knee.base.files import json_values
from knee.base.limits import MOST_FITTED_ROWS
from knee.engine.measurement import Kind
from knee.measure.hardware_fit.cluster_file import base_of
from knee.measure.hardware_fit.measured_steps import job_of_step
from knee.measure.machine.readings import Readings, Record, StepPoint, point_of, read_readings
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.load import kept_for_a_question, load_cluster, load_model, make_job
from knee.specs.model import Model
from knee.specs.profile import Profile
from knee.trust.validation.csv_cells import LEAST, TooManyRows, reason_of, text_of, unknown_choice
from knee.trust.validation.published_runs import CsvRow, PublishedRun, RunFile, Setting, Status, median_of, read_runs
from knee.trust.validation.run_errors import NO_ANSWER, Ask, ask_runs, grouped, predicted
from knee.trust.validation.run_to_job import MOST_STAGES, RunJob, catalog_profile, job_of

Pair = tuple[PublishedRun, RunJob]
RECORD, ATTEMPTS = "record.json", "attempts"
FORM = "give a record of `knee simulate --json`, `knee trace --json` or `knee train`, or the folder of a run"
JOB = ("model", "gpus", "global_batch", "seq_len", "plan")
"""What a record says of its job, beside the cluster and the profile."""
IMPOSSIBLE = "impossible"
"""Key of a study's record that says why a point cannot be."""
LARGEST = 1e30
"""Numbers beyond it are not measurements: JSON holds numbers of any size."""
RATES = ("step_s", "tokens_per_s", "tokens_per_s_per_gpu")
AGREE = 0.01
"""Rates of one record that differ by more contradict each other."""
CUT_OFF = "it is incomplete: the writer was interrupted"
_FORM = (
    "a record needs model, cluster, profile, gpus, global_batch, seq_len, plan and measured values, as "
    f"`knee simulate {argument('json')}` prints it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One record: its run, or why there is none."""

    number: int
    pair: Pair | None = None
    reason: str | None = None
    simulated: bool = False
    probed: bool = False


def records_in(paths: Sequence[Path]) -> list[Path]:
    """Files as they are; of the folder of a run or a sweep the records in it, without those of earlier attempts."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.rglob(RECORD) if ATTEMPTS not in p.relative_to(path).parts)
        if not inside:
            hint = "`knee sweep` and `knee train --out DIR` write such records"
            raise InputError(f"{path} contains no {RECORD}", hint=hint, code="nothing-usable")
        found += inside
    return found


def number_of(value: Any) -> float | int | None:
    """A value of a record as a number; None for what is no number, or beyond ``LARGEST``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST < value < LARGEST:
        return None
    return value


def check_record(value: object) -> dict[str, Any]:
    """A JSON value as a record, that of its step where it is a trace's; SpecError where it is no record."""
    if isinstance(value, dict) and value.get("kind") == "trace":
        value = value.get("record")
    if not isinstance(value, dict):
        raise SpecError("it is not a JSON object", code="not-a-record")
    if IMPOSSIBLE in value:
        raise SpecError(f"it is a point that is not possible: {value[IMPOSSIBLE]}", code="not-a-record")
    if value.get("kind", "measured") not in get_args(Kind):
        kinds = ", ".join(get_args(Kind))
        raise SpecError(f"its kind is {str(value.get('kind'))[:40]!r}, not one of {kinds}", code="not-a-record")
    if not isinstance(value.get("flop_convention"), (str, type(None))):  # of a trace it is not known
        raise SpecError("flop_convention is not a name", code="not-a-record", field="flop_convention")
    return value


def is_json(text: str) -> bool:
    """Whether a file's text is not a table."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")


def read_records(path: Path, text: str, profile: Profile | None, cluster: Cluster | None) -> list[RecordedRun]:
    """All of a file: measurements one after another or in a list, or the readings of ``knee probe steps``."""
    found = _values(path, text.lstrip("\ufeff"))
    if found and isinstance(found[0], dict) and "probe" in found[0]:
        return _steps(path, read_readings(path), profile, cluster)
    if not found:
        raise InputError(f"{path} has no records", hint=_FORM)
    return [_recorded(number, path, value, profile, cluster) for number, value in enumerate(found, start=1)]


def merged(pairs: Sequence[Pair]) -> list[Pair]:
    """Records of one job as one run, by their median."""
    repeats: dict[Hashable, list[Pair]] = {}
    for run, asked in pairs:
        job = asked.job
        sizes = (job.gpus, job.global_batch, job.seq_len)
        key = (run.setting.source, run.status, job.model, job.cluster.name, job.profile, job.plan, *sizes)
        repeats.setdefault(key, []).append((run, asked))
    return [(_one([run for run, _ in some]), some[0][1]) for some in repeats.values()]


def _one(runs: Sequence[PublishedRun]) -> PublishedRun:
    return replace(
        runs[0],
        lines=tuple(line for run in runs for line in run.lines),
        tokens_per_s_per_gpu=median_of([run.tokens_per_s_per_gpu for run in runs]),
        memory_bytes=median_of([run.memory_bytes for run in runs]),
    )


def _values(path: Path, text: str) -> list[Any]:
    """Every JSON value of a text; last ``CUT_OFF`` where its last line was not finished."""
    values, at = json_values(text)
    if at is None:
        return values
    rest = text[at:].rstrip("\n")
    if at and "\n" not in rest and rest.startswith("{"):
        return [*values, CUT_OFF]
    line = text.count("\n", 0, at) + 1
    raise InputError(f"{path}, line {line}: the file is not valid JSON from here on", hint=_FORM, code="not-json")


def _recorded(number: int, path: Path, value: Any, profile: Profile | None, cluster: Cluster | None) -> RecordedRun:
    if value is CUT_OFF:
        return RecordedRun(number=number, reason=CUT_OFF)
    if not isinstance(value, dict):
        return RecordedRun(number=number, reason="it is a plain value, not a record")
    try:
        kind = value.get("kind", "measured")
        if kind not in get_args(Kind):
            raise unknown_choice("kind", kind, get_args(Kind))
        job = job_of_record(value, profile, cluster)
        status, rate, memory_bytes = _measured(value, job)
    except InputError as error:
        return RecordedRun(number=number, reason=reason_of(error))
    pair = _pair(path, number, job, status, rate, memory_bytes)
    return RecordedRun(number=number, pair=pair, simulated=kind == "simulated")


def job_of_record(record: Mapping[str, Any], profile: Profile | None = None, cluster: Cluster | None = None) -> Job:
    """The job that a record is of, or SpecError; a profile or cluster that is given replaces the record's own."""
    missing = [name for name in JOB if record.get(name) is None]
    missing += [k for k, given in (("cluster", cluster), ("profile", profile)) if not given and record.get(k) is None]
    if missing:
        raise SpecError(f"the record has no {', '.join(missing)}", code="missing-field", field=missing[0])
    if not isinstance(record["plan"], dict):
        raise SpecError("plan is not a table of the plan's options", code="not-a-table", field="plan")
    job, _ = make_job(
        _model(_name(record, "model")),
        _cluster(_name(record, "cluster")) if cluster is None else _given(record, cluster),
        catalog_profile(_name(record, "profile")) if profile is None else profile,
        gpus=_count(record, "gpus"),
        global_batch=_count(record, "global_batch"),
        seq_len=_count(record, "seq_len"),
        plan_options=record["plan"],
    )
    if job.plan.pp * job.plan.virtual_stages > MOST_STAGES:
        raise SpecError(f"pp * virtual_stages is more than {MOST_STAGES:,} stages", code="too-many-stages", field="pp")
    return job


def _given(record: Mapping[str, Any], cluster: Cluster) -> Cluster:
    """The cluster that was given, unless the record names one with another GPU."""
    try:
        said = _cluster(_name(record, "cluster"))
    except InputError:  # nothing that the catalogue knows, or nothing at all
        return cluster
    if said.gpu.name != cluster.gpu.name:
        text = f"it ran on {said.name} with {said.gpu.name}, but {cluster.name} has {cluster.gpu.name}"
        raise SpecError(text, code="other-gpu", field="cluster")
    return cluster


def _measured(record: Mapping[str, Any], job: Job) -> tuple[Status, float | None, float | None]:
    """Status, tokens per second and GPU, bytes."""
    if record.get("fits") is False:
        return "oom", None, None
    if record.get("status") in ("failed", "terminated"):  # what was measured until then is a part of its window
        return "failed", None, None
    found = {name: _positive(record, name) for name in RATES if record.get(name) is not None}
    rates = [
        {"step_s": job.tokens / value / job.gpus, "tokens_per_s": value / job.gpus}.get(name, value)
        for name, value in found.items()
    ]
    if rates and max(rates) > min(rates) * (1.0 + AGREE):
        text = f"{' and '.join(found)} contradict each other for {job.tokens:,} tokens per step on {job.gpus:,} GPUs"
        raise SpecError(text, code="contradiction", field=next(iter(found)))
    memory_bytes = None if record.get("memory_bytes") is None else _positive(record, "memory_bytes")
    if not rates and memory_bytes is None:
        text = f"nothing was measured: none of {', '.join((*RATES, 'memory_bytes'))} is given"
        raise SpecError(text, code="missing-field", field="measured")
    return "ok", rates[0] if rates else None, memory_bytes


def _pair(path: Path, number: int, job: Job, status: Status, rate: float | None, memory_bytes: float | None) -> Pair:
    model = job.model
    setting = Setting(
        source=path.name,
        model=model.name,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        gpu=job.cluster.gpu.name,
        n_gpus=job.gpus,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        micro_batch=job.plan.micro_batch,
        tp=job.plan.tp,
        pp=job.plan.pp,
        cp=job.plan.cp,
    )
    run = PublishedRun(
        setting=setting, lines=(number,), status=status, tokens_per_s_per_gpu=rate, memory_bytes=memory_bytes
    )
    return run, RunJob(job=job, stack=job.profile.name, notes=())


def _steps(path: Path, readings: Readings, profile: Profile | None, cluster: Cluster | None) -> list[RecordedRun]:
    """Memory is left out: a probe reads what tensors take, without what the allocator loses."""
    machine = readings.machine
    if machine.probe != "steps":
        text = f"{path} has readings of `knee probe {machine.probe}`, which do not depend on the software stack"
        raise InputError(text, hint=f"give the cluster file of these readings as {argument('cluster')}")
    where = cluster or load_cluster(base_of(machine, None)).spec
    found = []
    for number, record in enumerate(readings.records, start=2):
        try:
            job = _step_job(record, where, profile)
        except InputError as error:
            found.append(RecordedRun(number=number, reason=reason_of(error), probed=True))
            continue
        pair = _pair(path, number, job, "ok", job.tokens / record["step_s"], None)
        found.append(RecordedRun(number=number, pair=pair, probed=True))
    return found


def _step_job(record: Record, cluster: Cluster, profile: Profile | None) -> Job:
    if "error" in record:
        raise SpecError("the step ended in an error")
    point = point_of(record)
    if not isinstance(point, StepPoint):
        raise SpecError("it is not a step")
    if profile is not None and point.compiled == (profile.kernels == "eager"):
        # the step's own kernels, and the values of the profile
        profile = replace(profile, kernels="compiled" if point.compiled else "eager")
    return job_of_step(point, cluster, profile)


def _name(record: Mapping[str, Any], key: str) -> str:
    if not isinstance(record.get(key), str):
        raise SpecError(f"{key} is not a name", code="not-a-name", field=key)
    return str(record[key])


def _count(record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        text = f"{key} is {str(value)[:20]!r}; it must be a whole number of at least 1"
        raise SpecError(text, code="not-a-count", field=key)
    return value


def _positive(record: Mapping[str, Any], key: str) -> float:
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SpecError(f"{key} is {str(value)[:20]!r}, not a number", code="not-a-number", field=key)
    if not LEAST < value < 1 / LEAST:
        trouble = "which is not realistic" if value > 0 else "and must be positive"
        raise SpecError(f"{key} is {str(value)[:20]}, {trouble}", code="out-of-range", field=key)
    return float(value)


@kept_for_a_question
def _model(name: str) -> Model:
    return load_model(name).spec


@kept_for_a_question
def _cluster(name: str) -> Cluster:
    return load_cluster(name).spec


def records_of(path: Path, text: str | None, profile: Profile | None, cluster: Cluster | None) -> tuple[RunFile, Ask]:
    """Every record as a row, and what finds the job of one; ``text`` is that of a file, None of a folder."""
    found: list[tuple[str, RecordedRun]] = []
    for one in [path] if text is not None else records_in([path]):
        name = None if text is not None else str(one.parent.relative_to(path))
        found += [
            (name or str(recorded.number), recorded)
            for recorded in read_records(one, text_of(one) if text is None else text, profile, cluster)
        ]
    jobs: dict[Setting, RunJob] = {}
    rows = []
    for line, (name, recorded) in enumerate(found, start=1):
        row = CsvRow(line=line, id=name, source=path.resolve().name, reason=recorded.reason)
        if recorded.pair is not None:
            run, asked = recorded.pair
            job = asked.job
            # the words of a table do not tell all plans and stacks apart; the job is known, so these are names only
            kernel = f"{job.profile.name} on {job.cluster.name}"
            setting = replace(run.setting, source=row.source, sharding=repr(job.plan), kernel=kernel)
            jobs[setting] = asked
            row = replace(
                row,
                setting=setting,
                status=run.status,
                memory_bytes=run.memory_bytes,
                tokens_per_s_per_gpu=run.tokens_per_s_per_gpu,
            )
        rows.append(row)
    return RunFile(rows=tuple(rows), ignored=()), jobs.__getitem__


NOT_RUN = "the run ended early (oom or failed), so no time was measured"
STATUS_ONLY = "the run finished, but neither its throughput nor its memory is given"
DIFFER = 1.25
"""Repeats of one setting whose slowest and fastest are further apart contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRuns:
    """What the files have."""

    pairs: tuple[Pair, ...]
    """Runs to fit, repeats as one."""
    oom: tuple[Pair, ...] = ()
    """Runs that were out of a GPU's memory: no time was measured, but they say that it was not enough."""
    rows: int
    """Rows and records in all."""
    rows_used: int
    skipped: dict[str, int]
    """Reason -> rows."""
    notes: dict[str, int]
    """Assumption -> rows."""
    ignored: tuple[str, ...]
    """Columns that mean nothing to knee."""
    simulated: int
    """Records that are simulated, not measured."""
    probed: bool
    """Whether steps of a probe are among them, which have no data, no log and no stragglers."""
    differ: float
    """Fastest over slowest of the repeats that differ most."""

    @property
    def profiles(self) -> dict[str, int]:
        """Profiles that the runs are of -> runs."""
        return dict(Counter(asked.job.profile.name for _, asked in self.pairs).most_common())


def read_user_runs(paths: Sequence[Path], profile: Profile | None, cluster: Cluster | None) -> UserRuns:
    """Read all files; a profile or cluster that is given stands in place of what they say."""
    rows: list[CsvRow] = []
    records: list[RecordedRun] = []
    ignored: list[str] = []
    defaults: list[str] = []
    for path in records_in(paths):
        text = text_of(path, "files of runs: CSV, or JSON of knee's own records")
        if is_json(text):
            records += read_records(path, text, profile, cluster)
        else:
            file = read_runs(path, text, most=MOST_FITTED_ROWS)
            rows += file.rows
            defaults += [file.defaults] * len(file.rows) if file.defaults else []
            ignored += file.ignored
        if len(rows) + len(records) > MOST_FITTED_ROWS:
            raise TooManyRows(path, len(rows) + len(records), MOST_FITTED_ROWS)
    skipped = Counter(row.reason for row in rows if row.reason is not None)
    skipped.update(record.reason for record in records if record.reason is not None)
    ask = partial(job_of, profile=profile, cluster=cluster)
    pairs, refused = ask_runs(RunFile(rows=tuple(rows), ignored=()).runs, ask)
    for run, reason in refused:
        skipped[reason] += len(run.lines)
    pairs += merged([record.pair for record in records if record.pair is not None])
    # a processor shares its host's memory with others, and may be limited to a part of it
    oom = [pair for pair in pairs if pair[0].status == "oom" and pair[1].job.cluster.gpu.vendor != "generic"]
    used = _answered(_keep_measured(pairs, skipped), skipped)
    return UserRuns(
        pairs=tuple(used),
        oom=tuple(oom),
        rows=len(rows) + len(records),
        rows_used=sum(len(run.lines) for run, _ in used),
        skipped=dict(skipped.most_common()),
        notes=dict(
            (
                Counter(note for run, asked in used for note in asked.notes for _ in run.lines)
                + Counter(note for row in rows for note in row.remarks)
                + Counter(defaults)
            ).most_common()
        ),
        ignored=tuple(dict.fromkeys(ignored)),
        simulated=sum(record.simulated for record in records),
        probed=any(record.probed and record.pair is not None for record in records),
        differ=_differ(rows),
    )


def _keep_measured(pairs: Sequence[Pair], skipped: Counter[str]) -> list[Pair]:
    kept = []
    for run, asked in pairs:
        if run.status != "ok":
            skipped[NOT_RUN] += len(run.lines)
        elif run.tokens_per_s_per_gpu is None and run.memory_bytes is None:
            skipped[STATUS_ONLY] += len(run.lines)
        else:
            kept.append((run, asked))
    return kept


def _answered(pairs: Sequence[Pair], skipped: Counter[str]) -> list[Pair]:
    """Runs that have a finite answer: a fit needs one at every step."""
    cases = grouped(pairs)
    answer = predicted(cases)
    known = np.isfinite(answer.tokens_per_s_per_gpu) & np.isfinite(answer.memory_bytes)
    known &= (answer.tokens_per_s_per_gpu > 0) & (answer.memory_bytes > 0)
    ordered = [pair for case in cases for pair in zip(case.runs, case.asked, strict=True)]
    for (run, _), good in zip(ordered, known, strict=True):
        if not good:
            skipped[NO_ANSWER] += len(run.lines)
    return [pair for pair, good in zip(ordered, known, strict=True) if good]


def _differ(rows: Sequence[CsvRow]) -> float:
    repeats: dict[object, list[float]] = {}
    for row in rows:
        if row.tokens_per_s_per_gpu is not None:
            repeats.setdefault(row.setting, []).append(row.tokens_per_s_per_gpu)
    return max((max(rates) / min(rates) for rates in repeats.values()), default=1.0)
