"""Every way in which a statement is tested, on small rows made by hand: where it holds, where it does not, and where
nothing can be said."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest
from pydantic import TypeAdapter

from knee.base.errors import SpecError
from knee.commands.study.claims import (
    Claim,
    MetricComparison,
    Number,
    RunComparison,
    Tally,
    Test,
    Verdict,
    judge,
    not_testable,
)
from knee.commands.study.quantities import Finding, NotTestable, Quantity, Row, Rows
from refusals import caught, kind

ADAPTER: TypeAdapter[Any] = TypeAdapter(Test)


def rows(*values: float | None, over: str = "gpus", axis: Sequence[Any] = (8, 16, 32, 64, 128), **more: Any) -> Rows:
    """One curve."""
    made = zip(values, axis, strict=False)
    return {"mine": [{"study": "mine", "series": "A", over: x, "v": value} | more for value, x in made]}


def made(text: dict[str, Any]) -> Any:
    """A test, as a file has it."""
    return ADAPTER.validate_python(text)


def find(text: dict[str, Any], found: Rows) -> Finding:
    finding: Finding = made(text).check(found, "mine")
    return finding


def why(text: dict[str, Any], found: Rows) -> tuple[str, str | None]:
    """Code and column of what cannot be tested."""
    error = caught(lambda: find(text, found))
    assert isinstance(error, NotTestable)
    return kind(error)


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bar", "value", "holds"), [
    ({"equals": 10, "within": 1}, 11.0, True),
    ({"equals": 10, "within": 1}, 9.0, True),
    ({"equals": 10, "within": 1}, 11.01, False),
    ({"equals": 10, "within_frac": 0.1}, 10.99, True),
    ({"equals": 10, "within_frac": 0.1}, 8.99, False),
    ({"equals": -10, "within_frac": 0.1}, -10.5, True),
    ({"equals": 64, "within": 0}, 64.0, True),
    ({"equals": 64, "within": 0}, 64.001, False),
    ({"above": 3}, 3.0, False),
    ({"above": 3}, 3.01, True),
    ({"below": 3}, 3.0, False),
    ({"below": 3}, 2.99, True),
    ({"above": 1, "below": 3}, 2.0, True),
    ({"above": 1, "below": 3}, 0.5, False),
    ({"above": 1, "below": 3}, 3.5, False),
])  # fmt: skip
def test_a_number_and_its_bar(bar: dict[str, float], value: float, holds: bool) -> None:
    finding = find({"test": "number", "of": {"metric": "v"}} | bar, rows(value))
    assert finding.holds is holds
    assert bool(finding.off) is not holds


@pytest.mark.parametrize(("of", "bar", "values", "off"), [
    ({"metric": "v"}, {"equals": 10, "within": 1}, (12.0,), "off by +20.0%"),
    ({"metric": "v"}, {"equals": 0, "within": 1}, (2.0,), "off by 2"),
    ({"metric": "v"}, {"above": 1, "below": 4}, (5.0,), "off by +25.0%"),
    ({"metric": "v"}, {"above": 4}, (3.0,), "off by -25.0%"),
    ({"metric": "v", "how": "change", "at": {"gpus": 16}, "base": {"gpus": 8}}, {"equals": -0.3, "within": 0.05},
     (100.0, 80.0), "off by +10.0 points"),
    ({"metric": "v", "how": "difference", "at": {"gpus": 16}, "base": {"gpus": 8}}, {"equals": 30, "within": 15},
     (100.0, 160.0), "off by +30"),
])  # fmt: skip
def test_by_how_much_a_number_misses(
    of: dict[str, Any], bar: dict[str, float], values: tuple[float, ...], off: str
) -> None:
    assert find({"test": "number", "of": of} | bar, rows(*values)).off == off


@pytest.mark.parametrize(("bar", "words"), [
    ({"equals": 10, "within": 1}, "10 ± 1"),
    ({"equals": 10, "within_frac": 0.1}, "10 ± 1"),
    ({"equals": 64}, "exactly 64"),
    ({"above": 1}, "above 1"),
    ({"above": 1, "below": 4}, "above 1 and below 4"),
])  # fmt: skip
def test_the_bar_in_words(bar: dict[str, float], words: str) -> None:
    assert made({"test": "number", "of": {"metric": "v"}} | bar).bar == words


@pytest.mark.parametrize("bar", [
    {}, {"equals": 1, "above": 0}, {"within": 1}, {"above": 1, "within": 1},
    {"equals": 1, "within": 1, "within_frac": 0.1}, {"equals": nan, "within": 1}, {"above": inf},
])  # fmt: skip
def test_a_number_without_a_bar_is_refused(bar: dict[str, float]) -> None:
    with pytest.raises(SpecError):
        Number(test="number", of=Quantity(metric="v"), **bar)


# ---- trends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("goes", "values", "holds"), [
    ("rises", (100, 101.1, 103), True),
    ("rises", (100, 100.9, 103), False),  # a step within the noise is no rise
    ("rises", (100, 110, 109), False),
    ("rises", (0, 1, 2), True),  # from nothing
    ("falls", (100, 98.9, 97), True),
    ("falls", (100, 99.1, 97), False),
    ("falls", (100, 90, 91), False),
    ("constant", (100, 100.9, 100), True),
    ("constant", (100, 101.1, 100), False),
    ("constant", (0, 0, 0), True),
    ("constant", (0, 1, 0), False),
    ("does not rise", (100, 100.9, 90), True),
    ("does not rise", (100, 101.1, 90), False),
    ("does not fall", (100, 99.1, 110), True),
    ("does not fall", (100, 98.9, 110), False),
])  # fmt: skip
def test_a_trend(goes: str, values: tuple[float, ...], holds: bool) -> None:
    finding = find({"test": "trend", "metric": "v", "over": "gpus", "goes": goes}, rows(*values))
    assert (finding.holds, finding.off) == (holds, "")


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ((100, 99.5, 99.4, 90), True),  # steps may stand still
        ((100, 100.9, 95, 90), True),
        ((100, 101.1, 95, 90), False),  # one goes the other way
        ((100, 99.8, 99.5, 99.2), False),  # the whole is within the noise
    ],
)
def test_a_trend_from_end_to_end(values: tuple[float, ...], holds: bool) -> None:
    text = {"test": "trend", "metric": "v", "over": "gpus", "goes": "falls", "ends": True}
    assert find(text, rows(*values)).holds is holds


def test_a_trend_s_own_noise() -> None:
    text = {"test": "trend", "metric": "v", "over": "gpus", "goes": "constant", "noise_frac": 0.1}
    assert find(text, rows(100, 109)).holds
    assert "10%" in made(text).bar
    assert find(text | {"goes": "rises"}, rows(100, 109)).holds is False


def test_an_axis_is_sorted_and_words_stay_in_their_order() -> None:
    text = {"test": "trend", "metric": "v", "over": "gpus", "goes": "rises"}
    assert find(text, rows(3, 1, 2, axis=(32, 8, 16))).holds
    assert find(text | {"over": "model"}, rows(1, 2, 3, over="model", axis=("z", "y", "x"))).holds
    assert not find(text | {"over": "model"}, rows(3, 2, 1, over="model", axis=("z", "y", "x"))).holds


def test_a_curve_that_is_none() -> None:
    text = {"test": "trend", "metric": "v", "over": "gpus", "goes": "rises"}
    assert why(text, rows(1)) == ("too-few-runs", "gpus")
    assert why(text, rows()) == ("no-run", None)
    assert why(text, rows(1, 2, axis=(8, 8))) == ("several-runs", "gpus")
    assert why(text | {"over": "nodes"}, rows(1, 2)) == ("not-known", "nodes")
    assert why(text, rows(1, None)) == ("not-known", "v")
    assert why(text | {"metric": "w"}, rows(1, 2)) == ("not-known", "w")
    assert why(text | {"at": {"series": "B"}}, rows(1, 2)) == ("no-run", None)


@pytest.mark.parametrize(("goes", "values", "holds"), [
    ("rises", (100, 190, 340), True),
    ("rises", (100, 200, 390), True),  # the ideal itself is allowed
    ("rises", (100, 201, 300), False),  # more than its share
    ("rises", (100, 190, 189), False),
    ("rises", (100, 180, 330), False),  # the last buys more than the first
    ("falls", (100, 80, 70, 65), True),
    ("falls", (100, 80, 60), False),  # as much again
    ("falls", (100, 80, 81), False),
])  # fmt: skip
def test_diminishing(goes: str, values: tuple[float, ...], holds: bool) -> None:
    assert find({"test": "diminishes", "metric": "v", "over": "gpus", "goes": goes}, rows(*values)).holds is holds


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ((1, 2, 1), True),
        ((1, 2, 1.99), False),  # hardly below it
        ((1, 2, 3), False),
        ((3, 2, 1), False),
    ],
)
def test_a_peak(values: tuple[float, ...], holds: bool) -> None:
    assert find({"test": "peaks", "metric": "v", "over": "gpus"}, rows(*values)).holds is holds


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ((100, 99, 90, 80), True),  # 1% up to 16, then 9% and 11%
        ((100, 95, 90, 80), False),  # 5% and 5.3%: within a point
        ((100, 99, 90, 89), False),  # one step beyond is not
    ],
)
def test_a_loss_that_becomes_steeper(values: tuple[float, ...], holds: bool) -> None:
    assert find({"test": "steeper", "metric": "v", "over": "gpus", "beyond": 16}, rows(*values)).holds is holds


def test_a_loss_needs_both_sides() -> None:
    text = {"test": "steeper", "metric": "v", "over": "gpus", "beyond": 16}
    assert why(text, rows(100, 90)) == why(text | {"beyond": 4}, rows(100, 90)) == ("too-few-runs", "gpus")


# ---- comparisons ---------------------------------------------------------------------------------------------------


def pair(base: float, *others: float, w: float = 1.0, **more: Any) -> list[Row]:
    return [
        {"study": "mine", "series": name, "gpus": 8, "v": value, "w": w} | more
        for name, value in (("base", base), *((f"other {i}", v) for i, v in enumerate(others)))
    ]


def compares(*has: tuple[str, str], others: int = 1, **more: Any) -> dict[str, Any]:
    at = {"series": [f"other {i}" for i in range(others)]}
    words = [{"metric": metric, "than": than} for metric, than in has]
    return {"test": "compares", "at": at, "base": {"series": "base"}, "has": words} | more


@pytest.mark.parametrize(("than", "value", "holds"), [
    ("more", 101.1, True), ("more", 100.9, False), ("less", 98.9, True), ("less", 99.1, False),
    ("no less", 99.1, True), ("no less", 98.9, False), ("no more", 100.9, True), ("no more", 101.1, False),
])  # fmt: skip
def test_more_and_less_beyond_the_noise(than: str, value: float, holds: bool) -> None:
    finding = find(compares(("v", than)), {"mine": pair(100, value)})
    assert (finding.holds, finding.off) == (holds, "")


def test_all_and_any() -> None:
    found = {"mine": pair(100, 110, 90)}
    assert not find(compares(("v", "more"), others=2), found).holds
    assert find(compares(("v", "more"), others=2, which="any"), found).holds
    assert find(compares(("v", "more"), others=2, which="any"), found).value == "other 0 +10.0%, other 1 -10.0%"
    assert not find(compares(("v", "more"), others=2, which="any", margin_frac=0.2), found).holds


def test_several_metrics_hold_in_the_same_run() -> None:
    text = compares(("v", "more"), ("w", "less"), others=2, which="any")
    split = [*pair(100, 110, 90)]
    split[1] |= {"w": 2.0}
    split[2] |= {"w": 0.5}
    assert not find(text, {"mine": split}).holds
    split[1] |= {"w": 0.5}
    assert find(text, {"mine": split}).holds


def test_each_group_has_a_base_of_its_own() -> None:
    text = compares(("v", "more"), each=["cluster"])
    found = {"mine": [*pair(100, 110, cluster="a"), *pair(10, 11, cluster="b")]}
    assert find(text, found).holds
    assert find(text, found).value == "a other 0 +10.0%, b other 0 +10.0%"
    found["mine"][3] |= {"v": 9.0}
    assert not find(text, found).holds
    assert not find(text | {"which": "any"}, found).holds  # in every group
    assert why(text, {"mine": [*pair(1, 2, cluster="a"), pair(1, 2, cluster="b")[1]]}) == ("no-run", None)
    assert why(compares(("v", "more")), found) == ("several-runs", None)


def test_a_base_of_nothing() -> None:
    assert find(compares(("v", "more")), {"mine": pair(0, 1)}).holds
    assert not find(compares(("v", "less")), {"mine": pair(0, 1)}).holds


def test_a_comparison_needs_its_rows() -> None:
    assert why(compares(("v", "more")), {"mine": pair(1)}) == ("no-run", None)
    assert why(compares(("x", "more")), {"mine": pair(1, 2)}) == ("not-known", "x")
    with pytest.raises(SpecError):
        RunComparison(test="compares", at={}, base={}, has=())


def test_against_another_study() -> None:
    text = compares(("v", "more")) | {"base": {"study": "theirs"}}
    assert find(text, {"mine": pair(5, 2), "theirs": pair(1)}).holds
    assert why(text, {"mine": pair(5, 2)}) == ("no-run", None)


def test_how_many_beat_their_base() -> None:
    text = {
        "test": "counts",
        "metric": "v",
        "at": {"gpus": 8},
        "base": {"series": "base"},
        "other_at": {"study": "theirs"},
        "other_base": {"study": "theirs", "series": "base"},
    }
    two, one, none = pair(100, 102, 103, 100.5), pair(100, 102, 90), pair(100, 90)
    assert find(text, {"mine": two, "theirs": one}).holds
    assert find(text, {"mine": two, "theirs": one}).value == "2 against 1"
    assert not find(text, {"mine": one, "theirs": one}).holds
    assert find(text, {"mine": one, "theirs": none}).holds
    assert not find(text | {"margin_frac": 0.025}, {"mine": one, "theirs": none}).holds
    assert "2%" in made(text | {"margin_frac": 0.025}).bar
    assert why(text, {"mine": [*two, *pair(99)], "theirs": one}) == ("several-runs", None)


def test_the_least_of_the_best() -> None:
    text = {
        "test": "least of the best",
        "metric": "v",
        "column": "degree",
        "at": {"series": "A"},
        "other_at": {"study": "theirs"},
    }
    here = [{"series": "A", "degree": d, "v": v} for d, v in ((1, 90), (2, 98.9), (4, 99.1), (8, 100))]
    there = [{"series": "A", "degree": d, "v": v} for d, v in ((1, 90), (2, 99.5), (4, 100))]
    assert find(text, {"mine": here, "theirs": there}).value == "4 against 2"
    assert find(text, {"mine": here, "theirs": there}).holds
    assert not find(text, {"mine": there, "theirs": here}).holds
    assert not find(text, {"mine": here, "theirs": here}).holds
    assert find(text | {"noise_frac": 0.02}, {"mine": here, "theirs": there}).value == "2 against 2"
    assert why(text | {"column": "colour"}, {"mine": here, "theirs": there}) == ("not-known", "colour")


def test_agreement_with_published_readings() -> None:
    text = {"test": "agrees", "metric": "v", "published": "read", "least": {"size": 16}, "within": 10.0}
    found: list[Row] = [{"series": "A", "size": size, "v": v, "read": read} for size, v, read in (
        (1, 300, 100), (16, 105, 100), (32, 91, 100), (64, 120, 100), (64, 7, None))]  # fmt: skip
    finding = find(text, {"mine": found})
    assert (finding.holds, finding.value) == (True, "median 9 (9.0%), worst 20% of 3")
    off = find(text | {"within": 5.0}, {"mine": found})
    assert (off.holds, off.off) == (False, "off by 9")
    assert why(text, {"mine": found[-1:]}) == ("no-run", "read")
    assert why(text | {"published": "series"}, {"mine": found}) == ("not-known", "series")
    assert why(text | {"least": {"weight": 1}}, {"mine": found}) == ("not-known", "weight")


@pytest.mark.parametrize("text", [
    {"test": "trend", "metric": "v", "over": "gpus", "goes": "rises"},
    {"test": "trend", "metric": "v", "over": "gpus", "goes": "falls", "ends": True},
    {"test": "trend", "metric": "v", "over": "gpus", "goes": "does not rise"},
    {"test": "diminishes", "metric": "v", "over": "gpus", "goes": "rises"},
    {"test": "diminishes", "metric": "v", "over": "gpus", "goes": "falls"},
    {"test": "peaks", "metric": "v", "over": "gpus"},
    {"test": "steeper", "metric": "v", "over": "gpus", "beyond": 16},
    {"test": "counts", "metric": "v", "at": {}, "base": {}, "other_at": {}, "other_base": {}},
    {"test": "least of the best", "metric": "v", "column": "gpus", "at": {}, "other_at": {}},
    {"test": "agrees", "metric": "v", "published": "w", "within": 0.1},
    compares(("v", "more")),
])  # fmt: skip
def test_every_test_has_a_bar_in_words(text: dict[str, Any]) -> None:
    assert made(text).bar


# ---- claims and verdicts -------------------------------------------------------------------------------------------


def claim(*tests: dict[str, Any], **more: Any) -> Claim:
    return Claim(id="T1", says="it rises", paper="rises", test=tuple(map(made, tests)), **more)


NUMBER = {"test": "number", "of": {"metric": "v", "at": {"gpus": 8}}, "equals": 1, "within": 0.1}
TREND = {"test": "trend", "metric": "v", "over": "gpus", "goes": "rises"}


def verdict_of(found: Rows, *tests: dict[str, Any], **more: Any) -> Verdict:
    [verdict] = judge([claim(*tests, **more)], found, "mine")
    return verdict


def test_a_number_is_off_and_an_ordering_contradicted() -> None:
    assert verdict_of(rows(1, 2), NUMBER, TREND).verdict == "reproduced"
    off = verdict_of(rows(1.5, 2), NUMBER, TREND)
    assert (off.verdict, off.off, off.failed) == ("off", "off by +50.0%", True)
    assert verdict_of(rows(1, 0.5), NUMBER, TREND).verdict == "contradicted"
    assert verdict_of(rows(1.5, 0.5), NUMBER, TREND).verdict == "contradicted"  # the graver of the two
    assert verdict_of(rows(1, 0.5), TREND).off == ""


def test_what_the_rows_do_not_say_is_not_testable() -> None:
    found = verdict_of(rows(1), NUMBER, TREND, why="because")
    assert (found.verdict, found.failed) == ("not testable", False)
    assert found.found == caught(lambda: find(TREND, rows(1))).message
    assert found.why == ""  # a reason for failing is not one for not being tested


def test_why_is_said_of_failures_only() -> None:
    assert verdict_of(rows(1, 2), TREND, why="because").why == ""
    assert verdict_of(rows(2, 1), TREND, why="because").why == "because"


def test_a_verdict_says_all_of_it() -> None:
    found = verdict_of(rows(1, 2), NUMBER, TREND, role="fitted", because="v")
    assert (found.id, found.study, found.says, found.paper, found.words) == (
        "T1",
        "mine",
        "it rises",
        "rises",
        "fitted: v",
    )
    assert (found.kind, found.found) == ("simulated", "1; 1, 2")
    assert found.bar == f"{made(NUMBER).bar}; {made(TREND).bar}"


def test_a_claim_without_a_test_is_refused() -> None:
    with pytest.raises(SpecError):
        claim()


def test_counts() -> None:
    some = [verdict_of(rows(*values), TREND) for values in ((1, 2), (2, 1), (1,), (1, 3))]
    tally = Tally.of([*some, *not_testable([claim(TREND)], "mine", "no")])
    assert (tally.reproduced, tally.failed, tally.not_testable) == (2, 1, 2)
    assert [v.found for v in not_testable([claim(TREND)], "mine", "no")] == ["no"]


def test_than_is_one_of_four() -> None:
    assert MetricComparison(metric="v", than="more").holds(0.02, 0.01)
    assert not MetricComparison(metric="v", than="more").holds(0.01, 0.01)
    assert MetricComparison(metric="v", than="no less").holds(-0.01, 0.01)


@pytest.mark.parametrize(("more", "wrong"), [
    ({"role": "implied", "because": "x"}, ("missing-field", "by")),
    ({"role": "fitted", "because": "x", "by": ("T2",)}, ("contradiction", "by")),
    ({"role": "input"}, ("missing-field", "because")),
    ({"because": "x"}, ("contradiction", "because")),
])  # fmt: skip
def test_a_role_has_its_reason(more: dict[str, Any], wrong: tuple[str, str]) -> None:
    assert kind(caught(lambda: claim(NUMBER, **more))) == wrong


def test_the_digits_that_decide_are_shown() -> None:
    share = {"test": "number", "of": {"metric": "mfu_frac"}, "equals": 0.5967, "within": 0.00005}
    assert made(share).bar == "59.67% ± 0.005 points"
    finding = find(share, {"mine": [{"series": "A", "mfu_frac": 0.5968}]})
    assert (finding.holds, finding.off) == (False, "off by +0.010 points")
    assert finding.miss_frac == pytest.approx(1 / 5967)


def test_tallies_by_role() -> None:
    some = [verdict_of(rows(1, 2), NUMBER, TREND), verdict_of(rows(1, 2), NUMBER, TREND, role="input", because="v")]
    found = Tally.by_role(some)
    assert [found[role].reproduced for role in ("independent", "implied", "input", "fitted")] == [1, 0, 1, 0]
