"""Tests along an axis: how a metric goes, shrinks, peaks or steepens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from knee.studies.quantities import (
    NOISE,
    NOT_KNOWN,
    SEVERAL_RUNS,
    TOO_FEW_RUNS,
    Finding,
    NotTestable,
    Rows,
    Where,
    change,
    chosen,
    metric_of,
    shown,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a metric goes along an axis."""

    test: Literal["trend"]
    metric: str
    over: str
    at: Where = field(default_factory=dict)
    goes: Literal["rises", "falls", "constant", "does not rise", "does not fall"]
    noise_frac: float = NOISE
    ends: bool = False
    """Only the last against the first; steps between may stand still within the noise."""

    @property
    def bar(self) -> str:
        share = f"{self.noise_frac:.0%}"
        if self.goes == "constant":
            return f"within {share}"
        if self.goes.startswith("does not"):
            return f"{self.goes}, beyond {share} noise"
        if self.ends:
            return f"{self.goes} by more than {share} from first to last, and never the opposite by more than that"
        return f"{self.goes} at every step" + (f" by more than {share}" if self.noise_frac else "")

    def check(self, rows: Rows, study: str) -> Finding:
        values = [v for _, v in curve(rows, study, self.at, self.metric, self.over)]
        text = listed(values, self.metric)
        if self.goes == "constant":
            spread = change(max(values), min(values))
            return Finding(holds=spread <= self.noise_frac, value=f"varies by {spread:.1%}")
        sign = 1.0 if self.goes in ("rises", "does not fall") else -1.0
        steps = [sign * change(b, a) for a, b in pairwise(values)]
        if self.goes.startswith("does not"):
            return Finding(holds=min(steps) >= -self.noise_frac, value=text)
        if self.ends:
            whole = sign * change(values[-1], values[0])
            return Finding(holds=min(steps) >= -self.noise_frac and whole > self.noise_frac, value=text)
        return Finding(holds=min(steps) > self.noise_frac, value=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diminishing:
    """A metric whose changes shrink along an axis."""

    test: Literal["diminishes"]
    metric: str
    over: str
    at: Where = field(default_factory=dict)
    goes: Literal["rises", "falls"]

    @property
    def bar(self) -> str:
        if self.goes == "rises":
            return (
                "every step brings more tokens/s, but less than in proportion; the last step brings less than the first"
            )
        return "every step falls by less than the step before"

    def check(self, rows: Rows, study: str) -> Finding:
        points = curve(rows, study, self.at, self.metric, self.over)
        if self.goes == "rises":
            growth = [(1.0 + change(v2, v1), 1.0 + change(n2, n1)) for (n1, v1), (n2, v2) in pairwise(points)]
            holds = all(1.0 < got <= ideal * (1 + 1e-9) for got, ideal in growth) and growth[-1][0] < growth[0][0]
            return Finding(holds=holds, value="each step gives " + ", ".join(f"{got:.2f}x" for got, _ in growth))
        drops = [v1 - v2 for (_, v1), (_, v2) in pairwise(points)]
        holds = all(d > 0 for d in drops) and all(b < a for a, b in pairwise(drops))
        return Finding(holds=holds, value=listed([v for _, v in points], self.metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A metric that rises and then falls along an axis."""

    test: Literal["peaks"]
    metric: str
    over: str
    at: Where = field(default_factory=dict)
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        return f"the maximum is not at an end, and the last value is {self.noise_frac:.0%} below it"

    def check(self, rows: Rows, study: str) -> Finding:
        values = [v for _, v in curve(rows, study, self.at, self.metric, self.over)]
        most = values.index(max(values))
        holds = 0 < most < len(values) - 1 and values[-1] < max(values) * (1 - self.noise_frac)
        return Finding(holds=holds, value=listed(values, self.metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steeper:
    """A metric falls faster beyond a point than up to it."""

    test: Literal["steeper"]
    metric: str
    over: str
    beyond: float
    at: Where = field(default_factory=dict)
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        points = f"{100 * self.noise_frac:g} point" + ("" if self.noise_frac == NOISE else "s")
        return f"every step after that loses more than any step before, by more than {points}"

    def check(self, rows: Rows, study: str) -> Finding:
        points = curve(rows, study, self.at, self.metric, self.over)
        losses = [(n2, -change(v2, v1)) for (_, v1), (n2, v2) in pairwise(points)]
        before = [loss for n, loss in losses if n <= self.beyond]
        after = [loss for n, loss in losses if n > self.beyond]
        if not before or not after:
            text = f"no step ends {'beyond' if before else 'up to'} {self.over} {self.beyond:g}"
            raise NotTestable(text, code=TOO_FEW_RUNS, field=self.over)
        return Finding(
            holds=min(after) > max(before) + self.noise_frac,
            value="a step loses " + ", ".join(f"{loss:.1%}" for loss in (*before, *after)),
        )


def curve(rows: Rows, study: str, where: Where, metric: str, over: str) -> list[tuple[float, float]]:
    """(axis, metric) in the axis's order; an axis of words, such as models, stays in the rows' order."""
    found = chosen(rows, study, where)
    if len(found) < 2:
        raise NotTestable(f"a curve over {over} needs two runs", code=TOO_FEW_RUNS, field=over)
    if any(row.get(over) is None for row in found):
        raise NotTestable(f"{over} is not known of every run", code=NOT_KNOWN, field=over)
    if len({row[over] for row in found}) != len(found):
        raise NotTestable(f"several runs have the same {over}", code=SEVERAL_RUNS, field=over)
    if isinstance(found[0][over], str):
        return [(float(number), metric_of(row, metric)) for number, row in enumerate(found, start=1)]
    return sorted((metric_of(row, over), metric_of(row, metric)) for row in found)


def listed(values: Sequence[float], metric: str) -> str:
    """Values as people read them."""
    return ", ".join(shown(metric, value) for value in values)
