"""Numbers of a study, on small rows made by hand."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from knee.base.errors import SpecError
from knee.commands.study.quantities import NotTestable, Quantity, Rows, change, chosen, shown

ROWS: Rows = {
    "mine": (
        {"series": "FSDP", "gpus": 8, "v": 100.0, "share_frac": 0.1, "model": "a", "fits": True},
        {"series": "FSDP", "gpus": 16, "v": 180.0, "share_frac": 0.2, "model": "a", "fits": True},
        {"series": "TP", "gpus": 8, "v": 110.0, "share_frac": 0.3, "model": "b", "fits": True},
        {"series": "TP", "gpus": 16, "v": 240.0, "share_frac": 0.4, "model": "b", "fits": False},
    ),
    "theirs": ({"series": "FSDP", "gpus": 8, "v": 50.0, "zero": 0.0, "none": None},),
}
ONE = {"series": "FSDP", "gpus": 8}


def of(**given: Any) -> float:
    return Quantity(**{"metric": "v"} | given).of(ROWS, "mine")


def why(**given: Any) -> str:
    with pytest.raises(NotTestable) as caught:
        of(**given)
    return caught.value.message


@pytest.mark.parametrize(("given", "number"), [
    ({"at": ONE}, 100.0),
    ({"at": ONE | {"study": "theirs"}}, 50.0),
    ({"at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "change"}, 0.8),
    ({"at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "ratio"}, 1.8),
    ({"at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "difference"}, 80.0),
    ({"at": ONE, "base": ONE | {"study": "theirs"}, "how": "ratio"}, 2.0),
    ({"at": {"series": ("FSDP", "TP"), "gpus": 8}, "how": "least"}, 100.0),
    ({"how": "most"}, 240.0),
    ({"how": "median"}, 145.0),
    ({"at": {"fits": True}, "how": "count"}, 3.0),
    ({"pick": "v"}, 240.0),
    ({"pick": "-v"}, 100.0),
    ({"metric": "gpus", "pick": "share_frac", "at": {"fits": True}}, 8.0),
    ({"pick": "v", "at": {"series": "TP"}, "base": {"series": "FSDP"}, "how": "ratio"}, 240 / 180),
    ({"at": {"series": "TP"}, "base": {"series": "FSDP"}, "how": "ratio", "same": ("gpus",)}, 1.1),
    ({"at": {"series": "TP"}, "base": {"series": "FSDP"}, "how": "ratio", "same": ("gpus",), "worst": "most"}, 4 / 3),
])  # fmt: skip
def test_numbers(given: dict[str, Any], number: float) -> None:
    assert of(**given) == pytest.approx(number)


def test_what_is_not_there_is_said() -> None:
    assert why(at={"series": ("TP", "PP"), "gpus": 4}) == "no run has series TP or PP, gpus 4"
    assert why(at={"study": "nobody"}) == "no run has study nobody"
    assert why(at={"series": "FSDP"}) == "2 runs match, but exactly one is expected"
    assert why(metric="nothing", at=ONE) == "nothing is not known of FSDP on 8 GPUs"
    assert why(metric="none", at={"study": "theirs"}) == "none is not known of FSDP on 8 GPUs"
    assert why(metric="model", at=ONE) == "model is not known of FSDP on 8 GPUs"
    assert why(metric="zero", at={"study": "theirs"}, base={"study": "theirs"}, how="ratio") == "zero of the base is 0"
    assert why(at={"gpus": 16}, base={"gpus": 8, "series": "TP"}, how="change", same=("model",)) == (
        "no base has model a"
    )
    with pytest.raises(NotTestable, match="there are no runs"):
        chosen({}, "mine", {})


def curve(**values: float) -> Rows:
    return {"mine": [{"series": "s", "gpus": int(name[1:]), "v": value} for name, value in values.items()]}


@pytest.mark.parametrize(("values", "knee"), [
    ({"n8": 100, "n16": 200, "n32": 290}, 16),  # doublings buy 2 and 1.45
    ({"n8": 100, "n16": 150, "n32": 225}, 32),  # exactly 1.5 pays
    ({"n8": 100, "n16": 140}, 8),
    ({"n8": 100, "n32": 230}, 32),  # two doublings of 1.52
    ({"n8": 100, "n32": 220}, 8),
    ({"n8": 100, "n16": 120, "n32": 200}, 32),  # the last that pays, as in `knee scale`
    ({"n32": 290, "n8": 100, "n16": 200}, 16),  # whatever the order
    ({"n8": 1}, 8),
])  # fmt: skip
def test_the_knee_of_a_curve(values: dict[str, float], knee: int) -> None:
    assert Quantity(metric="v", how="knee").of(curve(**values), "mine") == knee


def test_a_knee_needs_an_axis() -> None:
    assert why(how="knee") == "several runs have the same gpus"
    assert why(how="knee", over="nodes").startswith("nodes is not known")


@pytest.mark.parametrize(("given", "words"), [
    ({"at": ONE}, "100"),
    ({"at": ONE, "form": ".1f"}, "100.0"),
    ({"at": ONE, "label": "series"}, "FSDP"),
    ({"pick": "v", "label": "gpus"}, "16"),
    ({"at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "change"}, "+80.0%"),
    ({"at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "ratio"}, "1.80x"),
    ({"at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "difference"}, "+80"),
    ({"metric": "share_frac", "at": ONE}, "10.0%"),
    ({"metric": "share_frac", "at": {"series": "FSDP", "gpus": 16}, "base": ONE, "how": "difference"}, "+10.0 points"),
    ({"how": "count"}, "4"),
])  # fmt: skip
def test_words(given: dict[str, Any], words: str) -> None:
    assert Quantity(**{"metric": "v"} | given).text(ROWS, "mine") == words


def test_a_label_that_is_not_there() -> None:
    with pytest.raises(NotTestable, match="colour is not known of FSDP"):
        Quantity(metric="v", at=ONE, label="colour").text(ROWS, "mine")


@pytest.mark.parametrize(("metric", "value", "words"), [
    ("mfu_frac", 0.4077, "40.8%"),
    ("power_w_per_gpu", 658.0, "658 W"),
    ("memory_bytes", 2.0**30, "1.00 GiB"),
    ("bus_bytes_per_s", 4e11, "400 GB/s"),
    ("step_s", 0.25, "250 ms"),
    ("tokens_per_s", 12345.6, "12,346"),
    ("tokens_per_j", 1.23456, "1.23"),
])  # fmt: skip
def test_units(metric: str, value: float, words: str) -> None:
    assert shown(metric, value) == words


def test_change_from_nothing_has_no_bound() -> None:
    assert (change(3, 2), change(0, 0), change(1, 0), change(-1, 0)) == (0.5, 0.0, inf, -inf)


@pytest.mark.parametrize("given", [
    {"how": "change"}, {"how": "ratio"}, {"how": "difference"}, {"base": ONE}, {"base": ONE, "how": "most"},
    {"same": ("gpus",)}, {"form": "zz"}, {"form": "d"},
])  # fmt: skip
def test_what_would_mean_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Quantity(metric="v", **given)
