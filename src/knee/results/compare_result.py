"""Records side by side, and the same as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knee.record.side_by_side import ComparedRow
from knee.results.result import Result

HEAD = ("kind", "model", "cluster", "profile", "gpus", "global_batch", "seq_len", "flop_convention", "status")
"""What is said of each record before its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedValue:
    """One quantity in every record."""

    quantity: ComparedRow
    values: tuple[float | None, ...]
    """One for each record; None where it does not say."""
    difference_frac: tuple[float | None, ...]
    """How far each is from the first record's, as a share of that; None where one of them is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee compare --json`` prints it."""
        return {
            "records": [_head(name, record) for name, record in zip(self.names, self.records, strict=True)],
            "rows": [
                {
                    "name": one.quantity.title,
                    "key": one.quantity.key,
                    "share_of": one.quantity.over,
                    "values": list(one.values),
                    "difference_frac": list(one.difference_frac),
                }
                for one in self.values
            ],
            "notes": list(self.notes),
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
