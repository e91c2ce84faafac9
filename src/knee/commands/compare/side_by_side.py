"""Records of measured, simulated and published steps beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, argument
from knee.base.files import cannot_read, read_text
from knee.specs.metrics import METRICS, VIEWS, Metric
from knee.specs.notes import Note
from knee.trust.validation.user_records import FORM, JOB, LARGEST, RECORD, check_record, number_of

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One metric that records are compared in."""

    metric: Metric

    @property
    def title(self) -> str:
        return self.metric.label

    @property
    def key(self) -> str:
        """Its key in a record; of a share, that of its part."""
        return self.metric.part or self.metric.name

    @property
    def over(self) -> str | None:
        """The key that it is a share of; None for what is no share."""
        return self.metric.whole or None

    def value(self, record: Record) -> float | None:
        """Of a record; None where it is not known."""
        value = number_of(record.get(self.key))
        if value is None or self.over is None:
            return value
        # a share of a traced step is of the traced step's own length
        whole = number_of(record.get(f"traced_{self.over}")) or number_of(record.get(self.over))
        return _ratio(value, whole)


ROWS = tuple(ComparedRow(metric=METRICS[name]) for name in VIEWS["comparison of records"])


def read_record(path: Path) -> dict[str, Any]:
    """One record of a file, or of the folder of a run."""
    file = path / RECORD if path.is_dir() else path
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(file, error, hint=FORM, field="records") from None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not a JSON document", hint=FORM, code="not-json") from None
    return checked_record(record, str(file))


def checked_record(value: object, name: str) -> dict[str, Any]:
    """A JSON value as a record that can be compared, or InputError; ``name`` is what errors call it."""
    try:
        record = check_record(value)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=FORM, code=error.code, field=error.field) from None
    if all(row.value(record) is None for row in ROWS) and record.get("status") in (None, "done"):
        raise InputError(f"{name} has no value that can be compared", hint=FORM, code="not-a-record")
    return record


def refuse_mixed(names: Sequence[str], records: Sequence[Record]) -> None:
    """MFU under different FLOP conventions is different quantities under one name."""
    known = [
        (name, record.get("flop_convention"))
        for name, record in zip(names, records, strict=True)
        if record.get("mfu_frac") is not None
    ]
    other = next(((name, how) for name, how in known if how != known[0][1]), None)
    if other is not None:
        raise InputError(
            f"{known[0][0]} uses the {known[0][1]} FLOP convention and {other[0]} uses {other[1]}, so their MFU "
            "cannot be compared",
            hint=f"create both records with the same {argument('flop_convention')}",
            code="mixed-flop-conventions",
            field="flop_convention",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedValue:
    """One quantity in every record."""

    quantity: ComparedRow
    values: tuple[float | None, ...]
    """One for each record; None where it does not say."""
    difference_frac: tuple[float | None, ...]
    """How far each is from the first record's, as a share of that; None where one of them is not known."""


def compared(records: Sequence[Record]) -> Iterator[ComparedValue]:
    """Each quantity that some record knows."""
    for row in ROWS:
        values = tuple(row.value(record) for record in records)
        if any(value is not None for value in values):
            ratios = (_ratio(value, values[0]) for value in values)
            apart = tuple(None if ratio is None else ratio - 1 for ratio in ratios)
            yield ComparedValue(quantity=row, values=values, difference_frac=apart)


def _ratio(value: float | None, whole: float | None) -> float | None:
    """None where one is not known or the other nothing, or next to nothing."""
    return value / whole if value is not None and whole and abs(whole) > 1 / LARGEST else None


def differences(records: Sequence[Record]) -> list[str]:
    """What of the job is not the same in all, and runs that did not end well."""
    notes: list[str] = []
    for key in JOB:
        values = [record.get(key) for record in records]
        if key == "plan":
            notes += _plans(values)
        elif len({str(value) for value in values if value is not None}) > 1:
            notes.append(Note("differs", f"{key} differs: {', '.join(str(value) for value in values)}"))
    plans = [plan if isinstance(plan := record.get("plan"), dict) else {} for record in records]
    types = [record.get("dtype") or plan.get("precision") for record, plan in zip(records, plans, strict=True)]
    if len({str(name) for name in types if name}) > 1:
        notes.append(
            Note("differs", f"the data type of the matrix products differs: {', '.join(str(name) for name in types)}")
        )
    for number, record in enumerate(records, start=1):
        if record.get("status") not in (None, "done"):
            notes.append(Note("not-done", f"record {number} {record['status']}: {record.get('error')}"))
        if record.get("fits") is False and record.get("kind") == "simulated":
            notes.append(Note("does-not-fit", f"record {number} does not fit in memory"))
    return notes


def _plans(plans: Sequence[Any]) -> list[str]:
    known = [plan for plan in plans if isinstance(plan, dict)]
    names = dict.fromkeys(name for plan in known for name in plan if name != "precision")  # the note on types has it
    return [
        Note("differs", f"plan.{name} differs: {', '.join(str(plan.get(name)) for plan in known)}")
        for name in names
        if len({str(plan.get(name)) for plan in known}) > 1
    ]
