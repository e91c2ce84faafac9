"""``knee plan`` as people type it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from knee.base.errors import DoesNotFit
from knee.commands.main import main
from refusals import ended, kind, numbers, refused

pytestmark = pytest.mark.slow

SMALL = ("plan", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "32")


def answered(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    return json.loads(answered(*SMALL, "--json", "--top", "5"))  # type: ignore[no-any-return]


def test_plans_come_best_first(answer: dict[str, Any]) -> None:
    assert [plan["rank"] for plan in answer["plans"]] == [1, 2, 3, 4, 5]
    speeds = [plan["tokens_per_s"] for plan in answer["plans"]]
    assert speeds == sorted(speeds, reverse=True)
    for plan in answer["plans"]:
        shape = plan["plan"]
        assert shape["dp_shard"] * shape["dp_replicate"] * shape["tp"] * shape["pp"] * shape["cp"] == 16
        assert plan["headroom_bytes"] >= 0
        assert 0 <= plan["good_frac"] <= 1
    counts = answer["counts"]
    assert len(answer["plans"]) <= counts["ranked"] <= counts["simulated"] < counts["plans"]


def test_the_rest_of_the_answer(answer: dict[str, Any]) -> None:
    best = max(p["good_frac"] for p in [answer["recommended"], *answer["plans"]])
    assert answer["recommended"]["good_frac"] > best - 0.05
    assert answer["baseline"]["plan"]["sharding"] in ("fsdp", "fsdp_no_reshard")
    assert {bar["name"] for bar in answer["sensitivity"]} == {"compute", "hbm", "nvlink", "nic", "latency", "memory"}
    assert answer["front"][0]["rank"] == 1
    assert answer["why"]
    assert answer["trust"]["label"] in ("validated", "near", "extrapolated")
    assert answer["robustness"]["parameters"]


def test_on_the_terminal() -> None:
    text = answered(*SMALL, "--top", "3")
    for word in ("recommended", "why", "robustness", "FSDP", "tokens/J"):
        assert word in text


def test_limits_and_objectives() -> None:
    found = json.loads(
        answered(
            *SMALL, "--json", "--max-tp", "2", "--sharding", "zero1", "--only", "pp == 1", "--objective", "tokens_per_j"
        )
    )
    assert found["objective"] == "tokens_per_j"
    for plan in found["plans"]:
        assert plan["plan"]["tp"] <= 2
        assert plan["plan"]["pp"] == 1
        assert plan["plan"]["sharding"] == "zero1"


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (("--top", "0"), "out-of-range", "top"),
        (("--local-batch", "2"), "contradiction", "local_batch"),
        (("--only", "tp ="), "not-a-condition", "only"),
        (("--set", "plan.tp=2"), "not-an-override", "tp"),
        (("--objective", "speed"), "unknown-choice", "objective"),
        (("--max-tp", "0"), "out-of-range", "max_tp"),
        (("--micro-batch", "0"), "out-of-range", "micro_batch"),
        (("--export", "knee", "--json"), "contradiction", None),
    ],
)
def test_bad_input(arguments: tuple[str, ...], code: str, field: str | None) -> None:
    assert kind(refused(*SMALL, *arguments)) == (code, field)


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("llama2-7b", "--gpus", "257", "--global-batch", "512"), "no-valid-plan", (256, 264)),
        (("llama3-405b", "--gpus", "8", "--global-batch", "8"), "no-plan-fits", (128,)),
        (("llama2-7b", "--gpus", "16", "--global-batch", "32", "--only", "pp==3"), "limits-leave-no-plan", (1, 2, 4)),
        (("llama2-7b", "--gpus", "1", "--global-batch", "4"), "no-plan-fits", (2,)),
    ],
)
def test_when_nothing_is_left(arguments: tuple[str, ...], code: str, hint: tuple[float, ...]) -> None:
    result, error = ended("plan", arguments[0], "--cluster", "dgx-h100", *arguments[1:])
    assert isinstance(error, DoesNotFit)
    assert error.code == code
    assert tuple(numbers(error.hint)[: len(hint)]) == hint
    assert result.stdout == ""


def test_a_batch_smaller_than_the_gpus() -> None:
    found = json.loads(
        answered(
            "plan", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "2", "--json", "--top", "1"
        )
    )
    plan = found["plans"][0]["plan"]
    assert plan["dp_shard"] * plan["dp_replicate"] <= 2
