"""The ways in which the paper's statements are tested, by rows only: numbers here, curves and comparisons beside."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from knee.errors import SpecError
from knee.studies.comparisons import Agreement, Count, RunComparison, SmallestBest
from knee.studies.curves import Diminishing, Peak, Steeper, Trend
from knee.studies.quantities import FORBID, Finding, Quantity, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number with its tolerance, or a bound."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["number"]
    of: Quantity
    equals: float | None = None
    within: float | None = None
    within_frac: float | None = None
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        bounds, rooms = (self.above, self.below), (self.within, self.within_frac)
        if not all(isfinite(value) for value in (self.equals, *bounds, *rooms) if value is not None):
            raise SpecError("a bar that is no number")
        if (self.equals is None) == (bounds == (None, None)):
            raise SpecError("equals, or above and below, is needed, and only one of the two")
        if self.equals is None and rooms != (None, None):
            raise SpecError("within is about equals, which is missing")
        if self.equals is not None and None not in rooms:
            raise SpecError("within and within_frac are both given")

    @property
    def bar(self) -> str:
        """What counts."""
        show_ = self.of.shown
        if self.equals is not None:
            room = self.within if self.within is not None else abs(self.equals) * (self.within_frac or 0.0)
            if room == 0:
                return f"exactly {show_(self.equals)}"
            return f"{show_(self.equals - room)} to {show_(self.equals + room)}"
        words = [f"above {show_(self.above)}"] if self.above is not None else []
        words += [f"below {show_(self.below)}"] if self.below is not None else []
        return " and ".join(words)

    def check(self, rows: Rows, study: str) -> Finding:
        """Hold the number against it."""
        value = self.of.of(rows, study)
        low = self.above if self.above is not None else -float("inf")
        high = self.below if self.below is not None else float("inf")
        target = None
        if self.equals is not None:
            room = self.within if self.within is not None else abs(self.equals) * (self.within_frac or 0.0)
            low, high, target = self.equals - room, self.equals + room, self.equals
        strict = self.equals is None
        holds = (low < value < high) if strict else (low <= value <= high)
        missed = target if target is not None else (low if value <= low else high)
        off = "" if holds else f"off by {self._apart(value, missed)}"
        return Finding(holds=holds, value=self.of.shown(value), off=off)

    def _apart(self, value: float, target: float) -> str:
        if self.of.how == "change" or self.of.metric.endswith("_frac"):
            return f"{100 * (value - target):+.1f} points"
        if self.of.how == "difference" or target == 0:
            return self.of.shown(value - target)
        return f"{100 * (value / target - 1):+.1f}%"


Test = Annotated[
    Number | Trend | Diminishing | RunComparison | Peak | Count | SmallestBest | Steeper | Agreement,
    Field(discriminator="test"),
]
