"""Constants of the cost model that belong to no GPU, fabric or software stack, with their sources."""

from __future__ import annotations

from functools import cache

from knee.base import units
from knee.specs.catalog import Source, catalog_file


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
