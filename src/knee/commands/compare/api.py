"""``knee.compare``: measured, simulated and published records side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, either
from knee.commands.compare.side_by_side import (
    ComparedValue,
    checked_record,
    compared,
    differences,
    read_record,
    refuse_mixed,
)
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.trust.validation.user_records import FORM

HEAD = ("kind", "model", "cluster", "profile", "gpus", "global_batch", "seq_len", "flop_convention", "status")
"""What is said of each record before its values."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Result):
    """Records side by side, and the differences between their jobs."""

    names: tuple[str, ...]
    """Files and folders as they were given; ``record 2`` for what is in none."""
    records: tuple[dict[str, Any], ...]
    values: tuple[ComparedValue, ...]
    """Of each quantity that some record knows."""
    notes: tuple[str, ...]
    """What of the job is not the same in all, and runs that did not end well."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Whether each record is measured, simulated or published."""
        return tuple(record.get("kind", "measured") for record in self.records)

    @property
    def flop_conventions(self) -> tuple[str, ...]:
        """The FLOP convention of the MFU; empty if no record has one, and never more than one."""
        return tuple({str(one.get("flop_convention")) for one in self.records if one.get("mfu_frac") is not None})

    def _data(self) -> dict[str, Any]:
        return {
            "records": [_head(name, record) for name, record in zip(self.names, self.records, strict=True)],
            "rows": [
                {
                    "name": one.quantity.title,
                    "key": one.quantity.key,
                    "share_of": one.quantity.over,
                    "values": one.values,
                    "difference_frac": one.difference_frac,
                }
                for one in self.values
            ],
            "notes": self.notes,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per quantity and record."""
        return [
            {
                "record": name,
                "kind": kind,
                "name": one.quantity.title,
                "key": one.quantity.key,
                "share_of": one.quantity.over,
                "value": value,
                "difference_frac": apart,
            }
            for one in self.values
            for name, kind, value, apart in zip(self.names, self.kinds, one.values, one.difference_frac, strict=True)
        ]


def _head(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    return {"record": name} | {key: _plain(record.get(key)) for key in HEAD}


def _plain(value: Any) -> Any:
    """As the record has it, where JSON does; what it says of anything else."""
    return value if isinstance(value, (str, bool, int, type(None))) else str(value)


RecordLike = str | Path | Mapping[str, Any] | Result
"""A record: its file, the folder of its run, its keys and values, or a result of ``knee.simulate`` or
``knee.read_traces``."""


@checked_arguments
def compare(*records: RecordLike) -> Comparison:
    """Compare records side by side, with the difference of each from the first.

    A record is a file of ``knee simulate --json`` or ``knee trace --json``, the folder of a ``knee train`` run (or its
    ``record.json``), a dictionary with the same keys, or a result of ``knee.simulate`` or ``knee.read_traces``. At
    least two records are needed. MFU values with different FLOP conventions are refused.

    >>> import knee
    >>> one, two = (knee.simulate("llama2-7b", cluster="dgx-h100", gpus=n, local_batch=2) for n in (8, 16))
    >>> both = knee.compare(one, two)
    >>> both.values[0].quantity.key, both.values[0].difference_frac[1] > 0.5
    ('tokens_per_s', True)
    >>> both.notes[0]
    'gpus differs: 8, 16'
    """
    if len(records) < 2:
        hint = either('knee.compare("run", "simulated.json")', "`knee compare run simulated.json`")
        raise InputError("a comparison needs at least two records", hint=hint, code="missing-argument", field="records")
    names = tuple(
        str(record) if isinstance(record, (str, Path)) else f"record {number}"
        for number, record in enumerate(records, start=1)
    )
    found = tuple(_record(name, record) for name, record in zip(names, records, strict=True))
    refuse_mixed(names, found)
    return Comparison(
        names=names,
        records=found,
        values=tuple(compared(found)),
        notes=tuple(differences(found)),
    )


def _record(name: str, record: RecordLike) -> dict[str, Any]:
    if isinstance(record, (str, Path)):
        return read_record(Path(record))
    data = record.to_dict() if isinstance(record, Result) else dict(record)
    if isinstance(record, Result) and "kind" not in data:
        raise InputError(f"{name} is a {type(record).__name__}, not a record", hint=FORM, code="not-a-record")
    try:
        plain = json.loads(json.dumps(data))  # as it would be read from a file: tuples are lists
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"{name} is not a JSON document", hint=FORM, code="not-json") from None
    return checked_record(plain, name)
