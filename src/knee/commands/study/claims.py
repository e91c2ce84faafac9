"""The paper's claims: a statement, the tests that judge it by rows, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, isfinite, log10
from statistics import median
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from knee.base.errors import SpecError
from knee.commands.study.quantities import (
    NOISE,
    NOT_KNOWN,
    SEVERAL_RUNS,
    TOO_FEW_RUNS,
    Finding,
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
from knee.show.figures.labels import name_of

# Tests along an axis: how a metric goes, shrinks, peaks or steepens.


@dataclass(frozen=True, slots=True, kw_only=True)
class AlongAxis:
    """A test of a metric along an axis."""

    metric: str
    over: str
    at: Where = field(default_factory=dict)

    def points(self, rows: Rows, study: str) -> list[tuple[float, float]]:
        """(axis, metric) in the axis's order; an axis of words, such as models, stays in the rows' order."""
        found, over = chosen(rows, study, self.at), self.over
        if len(found) < 2:
            raise NotTestable(f"a curve over {over} needs two runs", code=TOO_FEW_RUNS, field=over)
        if any(row.get(over) is None for row in found):
            raise NotTestable(f"{over} is not known of every run", code=NOT_KNOWN, field=over)
        if len({row[over] for row in found}) != len(found):
            raise NotTestable(f"several runs have the same {over}", code=SEVERAL_RUNS, field=over)
        if isinstance(found[0][over], str):
            return [(float(number), metric_of(row, self.metric)) for number, row in enumerate(found, start=1)]
        return sorted((metric_of(row, over), metric_of(row, self.metric)) for row in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend(AlongAxis):
    """How a metric goes along an axis."""

    test: Literal["trend"]
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
        values = [v for _, v in self.points(rows, study)]
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
class Diminishing(AlongAxis):
    """A metric whose changes shrink along an axis."""

    test: Literal["diminishes"]
    goes: Literal["rises", "falls"]

    @property
    def bar(self) -> str:
        if self.goes == "rises":
            return (
                "every step brings more tokens/s, but less than in proportion; the last step brings less than the first"
            )
        return "every step falls by less than the step before"

    def check(self, rows: Rows, study: str) -> Finding:
        points = self.points(rows, study)
        if self.goes == "rises":
            growth = [(1.0 + change(v2, v1), 1.0 + change(n2, n1)) for (n1, v1), (n2, v2) in pairwise(points)]
            holds = all(1.0 < got <= ideal * (1 + 1e-9) for got, ideal in growth) and growth[-1][0] < growth[0][0]
            return Finding(holds=holds, value="each step gives " + ", ".join(f"{got:.2f}x" for got, _ in growth))
        drops = [v1 - v2 for (_, v1), (_, v2) in pairwise(points)]
        holds = all(d > 0 for d in drops) and all(b < a for a, b in pairwise(drops))
        return Finding(holds=holds, value=listed([v for _, v in points], self.metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(AlongAxis):
    """A metric that rises and then falls along an axis."""

    test: Literal["peaks"]
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        return f"the maximum is not at an end, and the last value is {self.noise_frac:.0%} below it"

    def check(self, rows: Rows, study: str) -> Finding:
        values = [v for _, v in self.points(rows, study)]
        most = values.index(max(values))
        holds = 0 < most < len(values) - 1 and values[-1] < max(values) * (1 - self.noise_frac)
        return Finding(holds=holds, value=listed(values, self.metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steeper(AlongAxis):
    """A metric falls faster beyond a point than up to it."""

    test: Literal["steeper"]
    beyond: float
    noise_frac: float = NOISE

    @property
    def bar(self) -> str:
        points = f"{100 * self.noise_frac:g} point" + ("" if self.noise_frac == NOISE else "s")
        return f"every step after that loses more than any step before, by more than {points}"

    def check(self, rows: Rows, study: str) -> Finding:
        points = self.points(rows, study)
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


def listed(values: Sequence[float], metric: str) -> str:
    """Values as people read them."""
    return ", ".join(shown(metric, value) for value in values)


# Tests of runs against others: more or less than a base, how many beat it, the least of the best, readings.


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
        tests = " and ".join(f"{t.than} {name_of(t.metric)}" for t in self.has)
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
                names = ", ".join(map(str, group))
                text = f"{len(of)} runs match, but exactly one is expected for the comparison ({names})"
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

Outcome = Literal["reproduced", "off", "contradicted", "not testable"]
Role = Literal["independent", "implied", "input", "fitted"]
"""What a claim that holds is worth: only an independent one is evidence. docs/studies.md has the rules."""
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper."""

    id: str
    says: str
    paper: str
    """Its value or relation, as the paper has it."""
    test: tuple[Test, ...]
    """All must hold."""
    role: Role = "independent"
    by: tuple[str, ...] = ()
    """Of an implied claim: those that it follows from."""
    because: str = ""
    """How it follows from them, which input it restates, or what was fitted on it."""
    why: str = ""
    """Where it is known to fail: the reason."""

    def __post_init__(self) -> None:
        follows, free = self.role == "implied", self.role == "independent"
        if bool(self.by) is not follows:
            text = "by names the claims that an implied one follows from, and no other role has it"
            raise SpecError(text, code="missing-field" if follows else "contradiction", field="by")
        if bool(self.because) is free:
            text = "because says why a claim is not independent, and is empty of one that is"
            raise SpecError(text, code="contradiction" if free else "missing-field", field="because")
        if not self.test:
            raise SpecError("test is empty: nothing would be tested", code="missing-field", field="test")

    @property
    def bar(self) -> str:
        """What counts as reproduced."""
        return "; ".join(test.bar for test in self.test)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim, held against the runs."""

    id: str
    study: str
    says: str
    paper: str
    bar: str
    found: str
    """What the runs say, or why they say nothing."""
    verdict: Outcome
    off: str
    """By how much a number misses."""
    kind: str
    """Of the runs: simulated, measured, or both."""
    role: Role
    by: str
    """Claims that an implied one follows from."""
    because: str
    """Why it is not independent."""
    why: str
    """Why it failed, where it did."""
    miss_frac: float | None = None
    """Of a number that the paper states: how far the runs' value is from it, relative to it."""

    @property
    def failed(self) -> bool:
        """Whether it was tested and not reproduced."""
        return self.verdict in ("off", "contradicted")

    @property
    def words(self) -> str:
        """Its role, and why, in a line."""
        by = f" by {self.by}" if self.by else ""
        return f"{self.role}{by}" + (f": {self.because}" if self.because else "")


def judge(claims: Sequence[Claim], rows: Rows, study: str, kind: str = "simulated") -> list[Verdict]:
    """Test each claim against the rows."""
    return [_judged(claim, rows, study, kind) for claim in claims]


def not_testable(claims: Sequence[Claim], study: str, why: str) -> list[Verdict]:
    """Claims that the runs at hand say nothing of."""
    return [_verdict(claim, study, "", "not testable", why) for claim in claims]


def _judged(claim: Claim, rows: Rows, study: str, kind: str) -> Verdict:
    try:
        findings = [test.check(rows, study) for test in claim.test]
    except NotTestable as error:
        return _verdict(claim, study, kind, "not testable", error.message)
    outcome: Outcome = "reproduced"
    if not all(finding.holds for finding in findings):
        # a number misses by so much; an ordering the other way round is contradicted
        outcome = "off" if all(f.holds or f.off for f in findings) else "contradicted"
    return _verdict(claim, study, kind, outcome, "; ".join(f.value for f in findings), findings)


def _verdict(
    claim: Claim, study: str, kind: str, outcome: Outcome, found: str, findings: Sequence[Finding] = ()
) -> Verdict:
    return Verdict(
        id=claim.id,
        study=study,
        says=claim.says,
        paper=claim.paper,
        bar=claim.bar,
        found=found,
        verdict=outcome,
        off="; ".join(f.off for f in findings if not f.holds and f.off),
        kind=kind,
        role=claim.role,
        by=", ".join(claim.by),
        because=claim.because,
        why=claim.why if outcome in ("off", "contradicted") else "",
        miss_frac=findings[0].miss_frac if len(findings) == 1 else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many claims came out how."""

    reproduced: int
    failed: int
    not_testable: int

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Tally:
        """Count the verdicts by their outcome."""
        return cls(
            reproduced=sum(v.verdict == "reproduced" for v in verdicts),
            failed=sum(v.failed for v in verdicts),
            not_testable=sum(v.verdict == "not testable" for v in verdicts),
        )

    @classmethod
    def by_role(cls, verdicts: Sequence[Verdict]) -> dict[Role, Tally]:
        """The same of each role: the headline is that of the independent claims."""
        return {role: cls.of([v for v in verdicts if v.role == role]) for role in ROLES}

    def __str__(self) -> str:
        return f"{self.reproduced} reproduced, {self.failed} failed, {self.not_testable} not testable"
