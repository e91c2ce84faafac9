"""The ways in which the paper's statements are tested, by rows only: numbers here, curves and comparisons beside."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, log10
from typing import Annotated, Literal

from pydantic import Field

from knee.errors import SpecError
from knee.studies.comparisons import Agreement, Count, RunComparison, SmallestBest
from knee.studies.curves import Diminishing, Peak, Steeper, Trend
from knee.studies.quantities import Finding, Quantity, Rows, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number with its tolerance, or a bound."""

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
            raise SpecError("a limit is not a number", code="not-finite")
        if (self.equals is None) == (bounds == (None, None)):
            code = "missing-field" if self.equals is None else "contradiction"
            text = "equals, or above and below, is needed, and only one of the two"
            raise SpecError(text, code=code, field="equals")
        if self.equals is None and rooms != (None, None):
            raise SpecError("within is about equals, which is missing", code="missing-field", field="equals")
        if self.equals is not None and None not in rooms:
            raise SpecError("within and within_frac are both given", code="contradiction", field="within")

    @property
    def bar(self) -> str:
        if self.equals is not None:
            room = self._room(self.equals)
            if room == 0:
                return f"exactly {self.of.shown(self.equals)}"
            return f"{self._exact(self.equals, room)} ± {self._as_room(room)}"
        bounds = (("above", self.above), ("below", self.below))
        return " and ".join(f"{name} {self.of.shown(bound)}" for name, bound in bounds if bound is not None)

    def _room(self, equals: float) -> float:
        return self.within if self.within is not None else abs(equals) * (self.within_frac or 0.0)

    @property
    def _is_share(self) -> bool:
        return self.of.how == "change" or (self.of.metric.endswith("_frac") and self.of.how != "ratio")

    def _exact(self, value: float, room: float) -> str:
        """The number with all its digits: 59.67% where 0.005 points decide."""
        if not self._is_share and self.of.how != "ratio":
            return self.of.shown(value)
        times, sign = (100.0, "+" if self.of.how in ("change", "difference") else "") if self._is_share else (1.0, "")
        digits = max(0, ceil(-log10(2.0 * times * room) - 1e-9))
        return f"{times * value:{sign}.{digits}f}{'%' if self._is_share else 'x'}"

    def _as_room(self, room: float) -> str:
        if self._is_share:
            return f"{100 * room:.3g} points"
        return f"{room:.3g}" if self.of.how == "ratio" else shown(self.of.metric, room)

    def check(self, rows: Rows, study: str) -> Finding:
        value = self.of.of(rows, study)
        miss_frac = None
        if self.equals is not None:
            holds, missed = abs(value - self.equals) <= self._room(self.equals), self.equals
            miss_frac = abs(value / self.equals - 1.0) if self.equals else None
        else:
            low = self.above if self.above is not None else -float("inf")
            high = self.below if self.below is not None else float("inf")
            holds, missed = low < value < high, low if value <= low else high
        off = "" if holds else f"off by {self._apart(value, missed)}"
        return Finding(holds=holds, value=self.of.shown(value), off=off, miss_frac=miss_frac)

    def _apart(self, value: float, target: float) -> str:
        if self._is_share:
            points = 100 * (value - target)
            return f"{points:+.{1 if abs(points) >= 0.05 else 3}f} points"
        if self.of.how == "difference" or target == 0:
            return self.of.shown(value - target)
        return f"{100 * (value / target - 1):+.1f}%"


Test = Annotated[
    Number | Trend | Diminishing | RunComparison | Peak | Count | SmallestBest | Steeper | Agreement,
    Field(discriminator="test"),
]
"""Each has a ``bar``, which says what counts as reproduced, and ``check``, which holds the rows against it."""
