"""Tests of runs against others: more or less than a base, how many beat it, the least of the best, readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Any, Literal

from knee.errors import SpecError
from knee.studies.quantities import (
    NOISE,
    Finding,
    NotTestable,
    Row,
    Rows,
    Where,
    change,
    chosen,
    metric_of,
    only,
    shown,
)

METRIC_NAMES = {
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "tokens_per_j": "tokens per joule",
    "exposed_s": "exposed time",
    "exposed_frac": "exposed share",
    "bus_bytes_per_s": "bus bandwidth",
    "mfu_frac": "MFU",
}
"""Metrics that a sentence calls by another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric of a comparison."""

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
class RunComparison:
    """Runs against a base run: each or any of them has more, or less, of something."""

    test: Literal["compares"]
    at: Where
    base: Where
    has: tuple[MetricComparison, ...]
    """All of them in the same run."""
    which: Literal["all", "any"] = "all"
    each: tuple[str, ...] = ()
    """Columns in which a run and its base agree; the test holds in every group."""
    margin_frac: float = NOISE
    name: str = "series"
    """Column that tells runs apart in words."""

    def __post_init__(self) -> None:
        if not self.has:
            raise SpecError("has is empty: nothing would be compared", code="missing-field", field="has")

    @property
    def bar(self) -> str:
        tests = " and ".join(f"{t.than} {METRIC_NAMES.get(t.metric, t.metric)}" for t in self.has)
        return f"{'each' if self.which == 'all' else 'one'}: {tests}, beyond {self.margin_frac:.0%}"

    def check(self, rows: Rows, study: str) -> Finding:
        outcomes, changes = [], []
        for group, runs, base in self._groups(rows, study):
            passed = []
            for row in runs:
                apart = [change(metric_of(row, t.metric), metric_of(base, t.metric)) for t in self.has]
                passed.append(all(t.holds(a, self.margin_frac) for t, a in zip(self.has, apart, strict=True)))
                label = " ".join(str(x) for x in (*group, row.get(self.name, "")) if x != "")
                changes.append(f"{label} " + " and ".join(f"{a:+.1%}" for a in apart))
            outcomes.append(all(passed) if self.which == "all" else any(passed))
        return Finding(holds=all(outcomes), value=", ".join(changes))

    def _groups(self, rows: Rows, study: str) -> Iterator[tuple[tuple[Any, ...], list[Row], Row]]:
        runs, bases = chosen(rows, study, self.at), chosen(rows, study, self.base)
        for group in dict.fromkeys(tuple(row.get(c) for c in self.each) for row in runs):
            of = [b for b in bases if tuple(b.get(c) for c in self.each) == group]
            if len(of) != 1:
                text = (
                    f"{len(of)} runs match, but exactly one is expected for the comparison "
                    f"({', '.join(map(str, group))})"
                )
                raise NotTestable(text, code="several-runs" if of else "no-run")
            yield group, [row for row in runs if tuple(row.get(c) for c in self.each) == group], of[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """More runs beat their base here than there."""

    test: Literal["counts"]
    metric: str
    at: Where
    base: Where
    other_at: Where
    other_base: Where
    margin_frac: float = NOISE

    @property
    def bar(self) -> str:
        return f"more runs {self.margin_frac:.0%} above their base"

    def check(self, rows: Rows, study: str) -> Finding:
        here, there = (
            sum(metric_of(row, self.metric) > (1 + self.margin_frac) * limit for row in chosen(rows, study, at))
            for at, limit in (
                (self.at, metric_of(only(chosen(rows, study, self.base)), self.metric)),
                (self.other_at, metric_of(only(chosen(rows, study, self.other_base)), self.metric)),
            )
        )
        return Finding(holds=here > there, value=f"{here} against {there}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestBest:
    """The least of a column among runs as good as the best, larger here than there."""

    test: Literal["least of the best"]
    metric: str
    column: str
    at: Where
    other_at: Where
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        return f"larger; the least within {self.noise_frac:.0%} of the best"

    def check(self, rows: Rows, study: str) -> Finding:
        here, there = (self._least(chosen(rows, study, at)) for at in (self.at, self.other_at))
        return Finding(holds=here > there, value=f"{here:g} against {there:g}")

    def _least(self, found: Sequence[Row]) -> float:
        best = max(metric_of(row, self.metric) for row in found)
        least = best * (1 - self.noise_frac)
        return min(metric_of(row, self.column) for row in found if metric_of(row, self.metric) >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Rows with a published reading beside them agree with it."""

    test: Literal["agrees"]
    metric: str
    published: str
    """Column of the reading."""
    least: Mapping[str, float] = field(default_factory=dict)
    """Columns that must be at least so large."""
    within: float
    """Of the metric's own unit: how exactly a reading was read."""

    def __post_init__(self) -> None:
        if not isfinite(self.within):
            raise SpecError("a limit is not a number", code="not-finite", field="within")

    @property
    def bar(self) -> str:
        return f"median error of at most {shown(self.metric, self.within)}, as it was read"

    def check(self, rows: Rows, study: str) -> Finding:
        found = [
            row
            for row in rows.get(study, ())
            if row.get(self.published) and all(metric_of(row, key) >= low for key, low in self.least.items())
        ]
        if not found:
            raise NotTestable("no run has a published value", code="no-run", field=self.published)
        pairs = [(metric_of(row, self.metric), metric_of(row, self.published)) for row in found]
        middle = median(abs(value - read) for value, read in pairs)
        errors = [abs(change(value, read)) for value, read in pairs]
        worst = f"worst {max(errors):.0%} of {len(found)}"
        return Finding(
            holds=middle <= self.within,
            value=f"median {shown(self.metric, middle)} ({median(errors):.1%}), {worst}",
            off=f"off by {shown(self.metric, middle)}",
        )
