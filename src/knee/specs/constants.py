"""Constants of the cost model that belong to no GPU, fabric or software stack, with their sources."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from knee import units
from knee.specs.catalog import Source


@cache
def _document() -> dict[str, dict[str, Any]]:
    text = resources.files("knee").joinpath("catalog/constants.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def constant(room: str, name: str) -> float:
    """The value in base SI of ``catalog/constants.toml``'s ``[room] name``."""
    return units.parse(_document()[room][name]["value"], units.dimension(name) or "frac")


def constant_source(room: str, name: str) -> Source:
    """Where that value comes from."""
    entry = _document()[room][name]
    return Source(value=entry["value"], kind=entry["kind"], text=entry["source"])


def constant_rows() -> list[tuple[str, str, str, str]]:
    """All constants as (name, value as written, kind, source), for ``knee catalog`` and ``--why``."""
    return [
        (f"{room}.{name}", str(entry["value"]), entry["kind"], entry["source"])
        for room, table in _document().items()
        for name, entry in table.items()
    ]
