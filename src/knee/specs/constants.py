"""Constants of the cost model that belong to no GPU, fabric or software stack, with their sources; and what
memory-bound kernels move and launch, by kernel set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from knee.base import units
from knee.specs.catalog import Source, catalog_file
from knee.specs.profile import Kernels


@cache
def constant(section: str, name: str) -> float:
    """The value in base SI of ``catalog/constants.toml``'s ``[section] name``."""
    return units.parse(catalog_file("constants.toml")[section][name]["value"], units.dimension(name) or "frac")


def constant_source(section: str, name: str) -> Source:
    """Where that value comes from."""
    entry = catalog_file("constants.toml")[section][name]
    return Source(value=entry["value"], kind=entry["kind"], text=entry["source"])


def constant_rows() -> list[tuple[str, str, str, str]]:
    """All constants as (name, value as written, kind, source), for ``knee catalog`` and ``--why``."""
    return [
        (f"{section}.{name}", str(entry["value"]), entry["kind"], entry["source"])
        for section, table in catalog_file("constants.toml").items()
        for name, entry in table.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Reads plus writes of one tensor, and kernels, forward and backward."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int

    def each(self, *, backward: bool) -> tuple[float, int]:
        """Passes and kernels of one direction."""
        return (self.backward, self.backward_kernels) if backward else (self.forward, self.forward_kernels)


@cache
def _entry(kernels: str, name: str) -> dict[str, Any]:
    table = catalog_file("kernels.toml")[kernels]
    if name in table:
        own: dict[str, Any] = table[name]
        return {"kind": table["kind"], "source": table["source"]} | own
    return _entry(table["base"], name)


@cache
def passes_of(kernels: Kernels, name: str) -> Passes:
    """Passes of one operation in one kernel set of the catalogue's ``kernels.toml``."""
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
