"""Numbers of a study: a metric of one row, or how it compares with another's. Rows are all they know.

A row is a point of a study: labels and metrics, measured or simulated. What is chosen of them is a ``Where``: column ->
value or list of values; ``study`` names another study's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, Literal

from knee.base.errors import KneeError, SpecError
from knee.base.units import show
from knee.engine.doublings import doubling_pays
from knee.specs.defaults import THRESHOLD
from knee.specs.metrics import unit_of

NOISE = 0.01

Value = str | int | float | bool
Where = Mapping[str, Value | tuple[Value, ...]]
Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Study -> its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the rows say to one test."""

    holds: bool
    value: str
    off: str = ""
    """By how much a number misses; empty for orderings."""
    miss_frac: float | None = None
    """How far a value is from the number that it is held against, relative to that number."""


class NotTestable(KneeError):
    """The rows that a test needs are not there, or do not have its metric."""

    code = "not-testable"


NO_RUN, SEVERAL_RUNS, TOO_FEW_RUNS, NOT_KNOWN = "no-run", "several-runs", "too-few-runs", "not-known"
"""Codes of what cannot be tested."""


def chosen(rows: Rows, study: str, where: Where) -> list[Row]:
    """Rows that match, in their order; NotTestable where there are none."""
    pool = rows.get(str(where.get("study", study)), ())
    columns = {key: value if isinstance(value, tuple) else (value,) for key, value in where.items() if key != "study"}
    found = [row for row in pool if all(row.get(key) in values for key, values in columns.items())]
    if not found:
        words = ", ".join(f"{key} {_join_choices(value)}" for key, value in where.items())
        raise NotTestable(f"no run has {words}" if words else "there are no runs", code=NO_RUN)
    return found


def _join_choices(value: Value | tuple[Value, ...]) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def only(found: Sequence[Row]) -> Row:
    """The one row that is meant."""
    if len(found) != 1:
        raise NotTestable(f"{len(found)} runs match, but exactly one is expected", code=SEVERAL_RUNS)
    return found[0]


def metric_of(row: Row, metric: str) -> float:
    """A number of a row; NotTestable where it is not known."""
    value = row.get(metric)
    if not isinstance(value, (int, float)):
        where = f" on {row['gpus']:,} GPUs" if row.get("gpus") else ""
        raise NotTestable(f"{metric} is not known of {row.get('series')}{where}", code=NOT_KNOWN, field=metric)
    return float(value)


def change(value: float, base: float) -> float:
    """Relative change; from nothing to something it has no bound."""
    if base == 0:
        return 0.0 if value == 0 else inf if value > 0 else -inf
    return value / base - 1.0


COMPARED = ("change", "difference", "ratio")
REDUCE: dict[str, Callable[[Sequence[float]], float]] = {"least": min, "most": max, "median": median}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number of a study: a metric, or how it compares with another run's."""

    metric: str
    at: Where = field(default_factory=dict)
    base: Where | None = None
    how: Literal["value", "change", "difference", "ratio", "least", "most", "median", "knee", "count"] = "value"
    """``value`` of one run; its relative ``change``, ``difference`` or ``ratio`` to ``base``; ``least``, ``most`` or
    ``median`` of several; the ``knee`` of a curve (the last count to which a doubling pays); how many (``count``)."""
    pick: str = ""
    """Of several runs the one with the most of this metric; ``-metric`` for the least."""
    same: tuple[str, ...] = ()
    """Each run has a base of its own, which agrees with it in these columns;"""
    worst: Literal["least", "most"] = "least"
    """of them all this one counts."""
    over: str = "gpus"
    """Axis of the knee."""
    label: str = ""
    """Instead of the number: this column of the run that was picked."""
    form: str = ""
    """How it is written; by its unit where left out."""

    def __post_init__(self) -> None:
        if (self.base is not None) != (self.how in COMPARED):
            raise SpecError(f"base and how go together: {', '.join(COMPARED)}", code="contradiction", field="how")
        if self.same and self.how not in COMPARED:
            raise SpecError("same is about bases, and there is none", code="contradiction", field="same")
        try:
            format(1.0, self.form)
        except ValueError:
            text = f"form {self.form!r} is not how Python writes a number"
            raise SpecError(text, code="not-a-format", field="form") from None

    def of(self, rows: Rows, study: str) -> float:
        """Return the number that the rows give."""
        found = chosen(rows, study, self.at)
        if self.how == "count":
            return float(len(found))
        if self.how in ("least", "most", "median"):
            return REDUCE[self.how]([metric_of(row, self.metric) for row in found])
        if self.how == "knee":
            return knee_of(found, self.metric, self.over)
        if self.same:
            every = [self._against(row, self._base(rows, study, row)) for row in found]
            return min(every) if self.worst == "least" else max(every)
        one = self._one(found)
        if self.how == "value":
            return metric_of(one, self.metric)
        return self._against(one, self._one(chosen(rows, study, self.base or {})))

    def _base(self, rows: Rows, study: str, row: Row) -> Row:
        """The run that one is held against: the same in these columns."""
        bases = chosen(rows, study, self.base or {})
        bases = [base for base in bases if all(base.get(c) == row.get(c) for c in self.same)]
        if not bases:
            raise NotTestable("no base has " + ", ".join(f"{c} {row.get(c)}" for c in self.same), code=NO_RUN)
        return self._one(bases)

    def _against(self, row: Row, base: Row) -> float:
        value, of = metric_of(row, self.metric), metric_of(base, self.metric)
        if self.how == "difference":
            return value - of
        if of == 0:
            raise NotTestable(f"{self.metric} of the base is 0", code="zero-base", field=self.metric)
        return value / of - (1.0 if self.how == "change" else 0.0)

    def text(self, rows: Rows, study: str) -> str:
        """The number, or the label, as people read it."""
        if self.label:
            one = self._one(chosen(rows, study, self.at))
            if one.get(self.label) is None:
                text = f"{self.label} is not known of {one.get('series')}"
                raise NotTestable(text, code=NOT_KNOWN, field=self.label)
            return str(one[self.label])
        return self.shown(self.of(rows, study))

    def shown(self, value: float) -> str:
        """A number of this kind with its unit."""
        if self.form:
            return format(value, self.form).replace("e+", "e")
        if self.how == "change":
            return f"{100 * value:+.1f}%"
        if self.how == "ratio":
            return f"{value:.2f}x"
        if self.how in ("count", "knee"):
            return f"{value:,.0f}"
        if self.metric.endswith("_frac"):
            return f"{100 * value:+.1f} points" if self.how == "difference" else f"{100 * value:.1f}%"
        sign = "+" if self.how == "difference" and value >= 0 else ""
        return sign + shown(self.metric, value)

    def _one(self, found: Sequence[Row]) -> Row:
        if self.pick:
            name, sign = self.pick.removeprefix("-"), -1.0 if self.pick.startswith("-") else 1.0
            return max(found, key=lambda row: sign * metric_of(row, name))
        return only(found)


def shown(metric: str, value: float) -> str:
    """A metric's value with its unit."""
    unit = {"w_per_gpu": "w", "bits_per_s": "bytes_per_s"}.get(unit_of(metric), unit_of(metric))
    if unit == "frac":
        return f"{100 * value:.1f}%"
    if unit not in ("", "usd"):
        return show(value, unit)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def knee_of(found: Sequence[Row], metric: str, over: str) -> float:
    """The largest count to which a doubling still multiplies the metric by ``knee scale``'s threshold."""
    ordered = sorted((metric_of(row, over), metric_of(row, metric)) for row in found)
    last = ordered[0][0]
    for (n1, v1), (n2, v2) in pairwise(ordered):
        if n1 <= 0 or n1 == n2:
            if n1 == n2:
                raise NotTestable(f"several runs have the same {over}", code=SEVERAL_RUNS, field=over)
            raise NotTestable(f"{over} is {n1:g}", code="out-of-range", field=over)
        if doubling_pays(1.0 + change(v2, v1), n1, n2, THRESHOLD):
            last = n2
    return last
