"""What a joule from the socket emits: grids of ``catalog/grids.toml``, or a number of one's own."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from knee.errors import InputError, argument
from knee.specs.catalog import ROOT, did_you_mean, read_toml

J_PER_KWH = 3.6e6
MOST_G_PER_KWH = 5000.0
"""No fuel emits as much; more is a mistake of units."""
_WRITTEN = re.compile(r"^\s*+(\d++(?:\.\d*+)?+|\.\d++)\s*+(?:g/kWh)?+\s*+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonGrid:
    """Where the electricity comes from."""

    name: str
    kg_co2e_per_j: float
    kind: str
    source: str

    @property
    def g_per_kwh(self) -> float:
        """The intensity in grams per kilowatt-hour, as people write it."""
        return self.kg_co2e_per_j * 1e3 * J_PER_KWH


@cache
def _document() -> dict[str, dict[str, Any]]:
    return read_toml(ROOT / "grids.toml")


def grid_names() -> list[str]:
    """Grids that the catalogue has."""
    return list(_document())


def grid(name: str) -> CarbonGrid:
    """A grid by its name, or from a number of grams per kilowatt-hour."""
    match = _WRITTEN.match(name)
    if match is not None:
        return CarbonGrid(
            name=f"{float(match[1]):g} g/kWh", kg_co2e_per_j=_kg_per_j(name), kind="user", source=argument("grid")
        )
    entry = _document().get(name)
    if entry is None:
        close = did_you_mean(name, grid_names())
        guess = f"did you mean {close}? " if close else ""
        hint = f"{guess}use one of {', '.join(grid_names())}, or grams per kWh"
        raise InputError(f"no grid named {name!r}", hint=hint, code="unknown-name", field="grid")
    value = entry["intensity"]
    return CarbonGrid(name=name, kg_co2e_per_j=_kg_per_j(value["value"]), kind=value["kind"], source=value["source"])


def _kg_per_j(text: str) -> float:
    match = _WRITTEN.match(text)
    value = float(match[1]) if match else math.nan
    if not value <= MOST_G_PER_KWH:
        hint = "give grams of CO2e per kWh, such as 250"
        raise InputError(f"a grid of {text} is higher than for any fuel", hint=hint, code="out-of-range", field="grid")
    return value / 1e3 / J_PER_KWH
