"""What memory-bound kernels move and launch, by kernel set: the catalogue's ``kernels.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from knee.specs.catalog import catalog_file
from knee.specs.profile import Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Reads plus writes of one tensor, and kernels, forward and backward."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int


@cache
def _entry(kernels: str, name: str) -> dict[str, Any]:
    table = catalog_file("kernels.toml")[kernels]
    if name in table:
        own: dict[str, Any] = table[name]
        return {"kind": table["kind"], "source": table["source"]} | own
    return _entry(table["base"], name)


@cache
def passes_of(kernels: Kernels, name: str) -> Passes:
    """Passes of one operation in one kernel set."""
    entry = _entry(kernels, name)
    return Passes(**{field: entry[field] for field in Passes.__slots__})


def pass_rows(kernels: Kernels) -> list[tuple[str, str, str, str]]:
    """(operation, forward / backward, kind, source) of a kernel set, for ``--why``."""
    tables = catalog_file("kernels.toml").values()
    names = dict.fromkeys(name for table in tables for name in table if name not in ("base", "source", "kind"))
    rows = []
    for name in names:
        entry = _entry(kernels, name)
        rows.append((name, f"{entry['forward']:g} / {entry['backward']:g} passes", entry["kind"], entry["source"]))
    return rows
