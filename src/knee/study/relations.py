"""The ways in which the paper's statements are tested: numbers, trends, comparisons, counts. Each takes rows only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from knee.errors import SpecError
from knee.study.quantities import (
    FORBID,
    NotTestable,
    Quantity,
    Row,
    Rows,
    Where,
    change,
    chosen,
    metric_of,
    only,
    shown,
)

NOISE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the rows say to one test."""

    holds: bool
    value: str
    off: str = ""
    """By how much a number misses; empty for orderings."""


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


# ---- orderings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a metric goes along an axis."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

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
        """What counts."""
        share = f"{self.noise_frac:.0%}"
        if self.goes == "constant":
            return f"within {share}"
        if self.goes.startswith("does not"):
            return f"{self.goes}, beyond {share} noise"
        if self.ends:
            return f"{self.goes} by more than {share} from first to last, never the other way beyond it"
        return f"{self.goes} at every step" + (f" by more than {share}" if self.noise_frac else "")

    def check(self, rows: Rows, study: str) -> Finding:
        """Look at every step, or the spread."""
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

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["diminishes"]
    metric: str
    over: str
    at: Where = field(default_factory=dict)
    goes: Literal["rises", "falls"]

    @property
    def bar(self) -> str:
        """What counts."""
        if self.goes == "rises":
            return "every step buys more, and less than its share; the last less than the first"
        return "every step falls by less than the one before"

    def check(self, rows: Rows, study: str) -> Finding:
        """By the growth of each step, or by the size of each drop."""
        points = curve(rows, study, self.at, self.metric, self.over)
        if self.goes == "rises":
            growth = [(1.0 + change(v2, v1), 1.0 + change(n2, n1)) for (n1, v1), (n2, v2) in pairwise(points)]
            holds = all(1.0 < got <= ideal * (1 + 1e-9) for got, ideal in growth) and growth[-1][0] < growth[0][0]
            return Finding(holds=holds, value="each step buys " + ", ".join(f"{got:.2f}x" for got, _ in growth))
        drops = [v1 - v2 for (_, v1), (_, v2) in pairwise(points)]
        holds = all(d > 0 for d in drops) and all(b < a for a, b in pairwise(drops))
        return Finding(holds=holds, value=listed([v for _, v in points], self.metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Than:
    """One metric of a comparison."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    metric: str
    than: Literal["more", "less", "no less", "no more"]

    def holds(self, apart_frac: float, margin_frac: float) -> bool:
        """Whether a relative difference is that, beyond the noise."""
        return {
            "more": apart_frac > margin_frac,
            "less": apart_frac < -margin_frac,
            "no less": apart_frac >= -margin_frac,
            "no more": apart_frac <= margin_frac,
        }[self.than]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs against a base run: each or any of them has more, or less, of something."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["compares"]
    at: Where
    base: Where
    has: tuple[Than, ...]
    """All of them in the same run."""
    which: Literal["all", "any"] = "all"
    each: tuple[str, ...] = ()
    """Columns in which a run and its base agree; the test holds in every group."""
    margin_frac: float = NOISE
    name: str = "series"
    """Column that tells runs apart in words."""

    def __post_init__(self) -> None:
        if not self.has:
            raise SpecError("has is empty: nothing would be compared")

    @property
    def bar(self) -> str:
        """What counts."""
        words = " and ".join(f"{t.than} {words_of(t.metric)}" for t in self.has)
        return f"{'each' if self.which == 'all' else 'one'}: {words}, beyond {self.margin_frac:.0%}"

    def check(self, rows: Rows, study: str) -> Finding:
        """Group by group."""
        outcomes, words = [], []
        for group, runs, base in self._groups(rows, study):
            passed = []
            for row in runs:
                apart = [change(metric_of(row, t.metric), metric_of(base, t.metric)) for t in self.has]
                passed.append(all(t.holds(a, self.margin_frac) for t, a in zip(self.has, apart, strict=True)))
                label = " ".join(str(x) for x in (*group, row.get(self.name, "")) if x != "")
                words.append(f"{label} " + " and ".join(f"{a:+.1%}" for a in apart))
            outcomes.append(all(passed) if self.which == "all" else any(passed))
        return Finding(holds=all(outcomes), value=", ".join(words))

    def _groups(self, rows: Rows, study: str) -> Iterator[tuple[tuple[Any, ...], list[Row], Row]]:
        runs, bases = chosen(rows, study, self.at), chosen(rows, study, self.base)
        for group in dict.fromkeys(tuple(row.get(c) for c in self.each) for row in runs):
            of = [b for b in bases if tuple(b.get(c) for c in self.each) == group]
            if len(of) != 1:
                raise NotTestable(f"{len(of)} runs to compare with where one is meant ({', '.join(map(str, group))})")
            yield group, [row for row in runs if tuple(row.get(c) for c in self.each) == group], of[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A metric that rises and then falls along an axis."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["peaks"]
    metric: str
    over: str
    at: Where = field(default_factory=dict)
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        """What counts."""
        return f"the most is inside, and the last {self.noise_frac:.0%} below it"

    def check(self, rows: Rows, study: str) -> Finding:
        """Find the most."""
        values = [v for _, v in curve(rows, study, self.at, self.metric, self.over)]
        most = values.index(max(values))
        holds = 0 < most < len(values) - 1 and values[-1] < max(values) * (1 - self.noise_frac)
        return Finding(holds=holds, value=listed(values, self.metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """More runs beat their base here than there."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["counts"]
    metric: str
    at: Where
    base: Where
    other_at: Where
    other_base: Where
    margin_frac: float = NOISE

    @property
    def bar(self) -> str:
        """What counts."""
        return f"more runs {self.margin_frac:.0%} above their base"

    def check(self, rows: Rows, study: str) -> Finding:
        """Count both."""
        here, there = (
            sum(metric_of(row, self.metric) > (1 + self.margin_frac) * limit for row in chosen(rows, study, at))
            for at, limit in (
                (self.at, metric_of(only(chosen(rows, study, self.base)), self.metric)),
                (self.other_at, metric_of(only(chosen(rows, study, self.other_base)), self.metric)),
            )
        )
        return Finding(holds=here > there, value=f"{here} against {there}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastOfBest:
    """The least of a column among runs as good as the best, larger here than there."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["least of the best"]
    metric: str
    column: str
    at: Where
    other_at: Where
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        """What counts."""
        return f"larger; the least within {self.noise_frac:.0%} of the best"

    def check(self, rows: Rows, study: str) -> Finding:
        """Of both."""
        here, there = (self._least(chosen(rows, study, at)) for at in (self.at, self.other_at))
        return Finding(holds=here > there, value=f"{here:g} against {there:g}")

    def _least(self, found: Sequence[Row]) -> float:
        best = max(metric_of(row, self.metric) for row in found)
        least = best * (1 - self.noise_frac)
        return min(metric_of(row, self.column) for row in found if metric_of(row, self.metric) >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steeper:
    """A metric falls faster beyond a point than up to it."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["steeper"]
    metric: str
    over: str
    beyond: float
    at: Where = field(default_factory=dict)
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        """What counts."""
        points = f"{100 * self.noise_frac:g} point" + ("" if self.noise_frac == NOISE else "s")
        return f"every step beyond loses more than any before, by more than {points}"

    def check(self, rows: Rows, study: str) -> Finding:
        """Loss of each step."""
        points = curve(rows, study, self.at, self.metric, self.over)
        losses = [(n2, -change(v2, v1)) for (_, v1), (n2, v2) in pairwise(points)]
        before = [loss for n, loss in losses if n <= self.beyond]
        after = [loss for n, loss in losses if n > self.beyond]
        if not before or not after:
            raise NotTestable(f"no step ends {'beyond' if before else 'up to'} {self.over} {self.beyond:g}")
        return Finding(
            holds=min(after) > max(before) + self.noise_frac,
            value="a step loses " + ", ".join(f"{loss:.1%}" for loss in (*before, *after)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Rows with a published reading beside them agree with it."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    test: Literal["agrees"]
    metric: str
    published: str
    """Column of the reading."""
    least: Mapping[str, float] = field(default_factory=dict)
    """Columns that must be at least so large."""
    within_frac: float

    @property
    def bar(self) -> str:
        """What counts."""
        return f"median error below {self.within_frac:.0%}"

    def check(self, rows: Rows, study: str) -> Finding:
        """Median of the errors' sizes."""
        found = [
            row
            for row in rows.get(study, ())
            if row.get(self.published) and all(metric_of(row, key) >= low for key, low in self.least.items())
        ]
        if not found:
            raise NotTestable("no published reading stands beside a run")
        errors = [abs(change(metric_of(row, self.metric), metric_of(row, self.published))) for row in found]
        middle = median(errors)
        return Finding(
            holds=middle < self.within_frac,
            value=f"median {middle:.1%}, worst {max(errors):.0%} of {len(errors)}",
            off=f"off by {middle:.1%}",
        )


Test = Annotated[
    Number | Trend | Diminishing | Comparison | Peak | Count | LeastOfBest | Steeper | Agreement,
    Field(discriminator="test"),
]


def curve(rows: Rows, study: str, where: Where, metric: str, over: str) -> list[tuple[float, float]]:
    """(axis, metric) in the axis's order; an axis of words, such as models, stays in the rows' order."""
    found = chosen(rows, study, where)
    if len(found) < 2:
        raise NotTestable(f"a curve over {over} needs two runs")
    if any(row.get(over) is None for row in found):
        raise NotTestable(f"{over} is not known of every run")
    if len({row[over] for row in found}) != len(found):
        raise NotTestable(f"several runs have the same {over}")
    if isinstance(found[0][over], str):
        return [(float(number), metric_of(row, metric)) for number, row in enumerate(found, start=1)]
    return sorted((metric_of(row, over), metric_of(row, metric)) for row in found)


WORDS = {
    "tokens_per_s": "tokens/s", "tokens_per_s_per_gpu": "tokens/s per GPU", "tokens_per_j": "tokens per joule",
    "exposed_s": "exposed time", "exposed_frac": "exposed share", "bus_bytes_per_s": "bus bandwidth", "mfu_frac": "MFU",
}  # fmt: skip


def words_of(metric: str) -> str:
    """A metric's name for people."""
    return WORDS.get(metric, metric)


def listed(values: Sequence[float], metric: str) -> str:
    """Values as people read them."""
    return ", ".join(shown(metric, value) for value in values)
