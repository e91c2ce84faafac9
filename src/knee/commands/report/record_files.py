"""A user's own records: found in files and folders, read as rows, and what is no record named with its reason."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, KneeError, argument
from knee.base.files import cannot_read, json_values, read_text, why_unreadable
from knee.commands.study.quantities import Row
from knee.commands.study.rows import identity, step_row
from knee.engine.one_job import simulate
from knee.specs.metrics import STEP
from knee.specs.notes import Note
from knee.specs.plan import COUNTS as PLAN_COUNTS
from knee.specs.plan import SHARDING_FAMILIES
from knee.training.launch.sweep_folder import SWEEP
from knee.trust.trust import record_of, trust_of
from knee.trust.validation.user_records import FORM, RECORD, check_record, job_of_record, number_of, records_in

WORDS = ("flop_convention", "fits")
"""Metrics that are not numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord:
    """One record and where it lies."""

    name: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All that was found."""

    found: tuple[FoundRecord, ...]
    skipped: tuple[Note, ...]
    """What is no record, and why."""
    unread: tuple[Note, ...]
    """Those of them that are damaged or cannot be read: records may be missing."""


def gather(paths: Sequence[Path]) -> Gathered:
    """Records of files (one, a list, or one after another) and of folders; InputError where there is none."""
    found: list[FoundRecord] = []
    skipped: list[Note] = []
    unread: list[Note] = []
    for file in _files(paths):
        for name, value in _values(file):
            if isinstance(value, Note):
                unread.append(Note(value.code, f"{name}: {value}"))
                skipped.append(unread[-1])
                continue
            try:
                found.append(FoundRecord(name=name, record=checked_record(value)))
            except InputError as error:
                skipped.append(Note(error.code, f"{name}: {error.message}"))
    if not found:
        some = "; ".join(skipped[:3])
        more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        code = skipped[0].code if len(skipped) == 1 else "nothing-usable"
        text = f"the files contain no record{': ' if some else ''}{some}{more}"
        raise InputError(text, hint=FORM, code=code, field="records")
    return Gathered(found=tuple(found), skipped=tuple(skipped), unread=tuple(unread))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Every file that may hold records. Of a run's own folder that is its record alone."""
    for path in paths:
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise cannot_read(path, error, hint=FORM, field="records") from None
        if not is_folder:
            yield path
            continue
        if (path / SWEEP).is_file():  # beside records it has files of its own, and records of earlier attempts
            yield from records_in([path])
            continue
        runs = sorted(path.rglob(RECORD))
        inside = {run.parent for run in runs}
        others = [file for file in sorted(path.rglob("*.json")) if not inside & {*file.parents}]
        if not runs and not others:
            text = f"{path} has no {RECORD} and no other .json file in it"
            raise InputError(text, hint=FORM, code="nothing-usable", field="records")
        yield from (*runs, *others)


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """Every JSON value of a file with its name; a note where one is damaged."""
    try:
        text = read_text(path)
    except InputError as error:
        yield str(path), Note(error.code, error.message)
        return
    except (OSError, UnicodeDecodeError) as error:
        text = f"it cannot be read ({getattr(error, 'strerror', None) or 'it is not text'})"
        yield str(path), Note(why_unreadable(error), text)
        return
    values, at = json_values(text)
    if at is not None:
        line = text.count("\n", 0, at) + 1
        values.append(Note("not-json", f"from line {line} on it is not JSON"))
    if not values:
        values = [Note("empty", "it is empty")]
    for number, value in enumerate(values, start=1):
        yield str(path) if len(values) == 1 else f"{path}, record {number}", value


def checked_record(value: Any) -> dict[str, Any]:
    """A JSON value as a record that can be shown, its metrics numbers or None; InputError where it is none."""
    record = check_record(value)
    metrics = {name: number_of(record.get(name)) for name in STEP if name not in WORDS}
    if all(number is None for number in metrics.values()):
        ended = f" (the run {record['status']}: {record.get('error')})" if record.get("status") else ""
        raise InputError(f"it contains no measured or simulated value{ended}", code="not-a-record")
    gpus = record.get("gpus")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        text = f"gpus is {str(gpus)[:40]!r}; it must be a whole number of at least 1"
        raise InputError(text, code="not-a-record", field="gpus")
    return record | metrics


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows_of(found: Sequence[FoundRecord], by: str | None = None) -> list[dict[str, Any]]:
    """A row for each record, with the name of its curve: by a column, or by what differs between records."""
    rows = [_row(one) for one in found]
    if by is not None:
        known = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
        if by not in known:
            text = f"{argument('by')} {by}: no record has that column"
            raise InputError(text, hint=f"they have {', '.join(known)}", code="unknown-choice", field="by")
        return _ordered([row | {"series": str(row.get(by) if row.get(by) is not None else "unknown")} for row in rows])
    told = ("model", "cluster", "profile", "seq_len", "precision", "fp8_recipe", "cp_method", "sync_every", "set")
    apart = [name for name in told if len({row.get(name) for row in rows}) > 1]
    apart += [name for name in ("micro_batch", "schedule", "virtual_stages") if _tells(rows, name)]
    if len({row.get("global_batch") for row in rows}) > 1 and len({row.get("local_batch") for row in rows}) > 1:
        apart.append("local_batch")
    return _ordered([row | {"series": _series(row, apart)} for row in rows])


def stack_of(row: Row) -> tuple[Any, ...]:
    """The job of a row and the software it ran on: eager and compiled runs of one plan are not the same."""
    return (*identity(row), row.get("profile"))


def _ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    curves = list(dict.fromkeys(row["series"] for row in rows))
    return sorted(rows, key=lambda row: (curves.index(row["series"]), row["gpus"], str(row["kind"])))


def _row(one: FoundRecord) -> dict[str, Any]:
    """Through the studies' own function; of a record that does not say its job, what it does say."""
    record = one.record
    row: dict[str, Any]
    try:
        row = step_row(record, study="", series="")
    except KneeError:  # a cluster that the catalogue does not have
        row = step_row({**record, "cluster": None}, study="", series="") | {"cluster": record.get("cluster")}
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        keys = ("model", "cluster", "profile", "gpus", "global_batch", "seq_len", *STEP)
        row = {name: record.get(name) for name in keys} | {"kind": record.get("kind", "measured"), "plan": None}
    return {name: _cell(name, value) for name, value in row.items()} | {"record": one.name}


COUNTS = ("global_batch", "local_batch", "seq_len", *(knob.name for knob in PLAN_COUNTS))


def _cell(name: str, value: Any) -> Any:
    """A value that a table can hold: of a list what it says, None for what is no number where one belongs."""
    if isinstance(value, (list, dict)):
        value = str(value)
    if name in COUNTS or isinstance(value, float) or (isinstance(value, int) and abs(value) > 1):
        return number_of(value)
    return value


SHARDING_NAMES = SHARDING_FAMILIES | {"hsdp": "hsdp"}
"""As a series names them: one with replicas is told from one without."""
NAMED = {
    "precision": "",
    "fp8_recipe": "",
    "cp_method": "",
    "sync_every": "exchange every",
    "schedule": "",
    "virtual_stages": "chunks",
    "micro_batch": "micro-batch",
    "set": "",
}
"""Column -> what stands before its value."""


def _tells(rows: Sequence[Row], name: str) -> bool:
    """Whether records that agree in all degrees and sizes differ in a column."""
    same = [
        tuple(row.get(c) for c in ("model", "gpus", "global_batch", "seq_len", "tp", "pp", "cp", "dp_replicate"))
        for row in rows
    ]
    values: dict[tuple[Any, ...], set[Any]] = {}
    for key, row in zip(same, rows, strict=True):
        values.setdefault(key, set()).add(row.get(name))
    return any(len(found) > 1 for found in values.values())


def _series(row: Row, apart: Sequence[str]) -> str:
    """The plan without what follows from the count of GPUs, and what else tells records apart."""
    words = [str(row[name]) for name in ("model", "cluster", "profile") if name in apart and row.get(name) is not None]
    if row.get("plan") is None:
        words.append("plan unknown")
    else:
        words.append(SHARDING_NAMES.get(str(row.get("sharding")), str(row.get("sharding"))))
        words += [f"{axis.upper()} {row[axis]}" for axis in ("tp", "pp", "cp") if (row.get(axis) or 1) > 1]
        words += [f"{row['dp_replicate']} replicas"] if (row.get("dp_replicate") or 1) > 1 else []
        words += [f"recompute {row['recompute']}"] if row.get("recompute") not in (None, "none") else []
    words += [f"{NAMED[name]} {row[name]}".strip() for name in NAMED if name in apart and row.get(name)]
    words += [f"{row['seq_len']:,} tokens"] if "seq_len" in apart and row.get("seq_len") else []
    words += [f"{row['local_batch']:g} a GPU"] if "local_batch" in apart and row.get("local_batch") else []
    return ", ".join(words)


# ---- predictions -----------------------------------------------------------------------------------------------------


def predicted(found: Sequence[FoundRecord]) -> tuple[list[FoundRecord], list[Note]]:
    """knee's prediction of each measured record that has none beside it, and of which it cannot say, and why."""
    rows = [_row(one) for one in found]
    known = {stack_of(row) for row in rows if row["kind"] == "simulated" and row.get("plan") is not None}
    made: list[FoundRecord] = []
    refused_: list[Note] = []
    for one, row in zip(found, rows, strict=True):
        if row["kind"] == "simulated" or (row.get("plan") is not None and stack_of(row) in known):
            continue
        try:
            job = job_of_record(one.record)
            convention = one.record.get("flop_convention")
            answer = simulate(job, convention=str(convention)) if convention else simulate(job)
            record = record_of(job, answer, trust_of(job))
        except KneeError as error:
            refused_.append(Note(error.code, f"{one.name} is not predicted: {error.message}"))
            continue
        known.add(stack_of(row))
        made.append(FoundRecord(name=f"prediction of {one.name}", record=record))
    return made, refused_
