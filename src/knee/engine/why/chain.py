"""A chain of formulas, constants and sources, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from knee.specs.catalog import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLine:
    """One step of the chain; deeper lines explain the one above them."""

    name: str
    value: str
    formula: str = ""
    source: str = ""
    depth: int = 0


class Chain:
    """Collects lines and looks sources up."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.lines: list[WhyLine] = []
        self.sources = sources

    def add(self, depth: int, name: str, value: str, formula: str = "", source: str = "") -> None:
        self.lines.append(WhyLine(name=name, value=value, formula=formula, source=source, depth=depth))

    def constant(self, depth: int, key: str, value: str) -> None:
        """A value of the catalogue, with where it came from."""
        found = next((s for k, s in self.sources.items() if k == key or k.endswith("." + key)), None)
        self.add(depth, key, value, source=f"{found.kind}: {found.text}" if found is not None else "")
