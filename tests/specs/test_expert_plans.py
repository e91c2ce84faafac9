"""Plans that a model with experts, or a dense one, does not take: refused alike by commands, job files and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

import knee
from knee.commands.options.plan_options import split_words
from refusals import caught, kind, refused

WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("mixtral-8x7b", {"ep": 3}, "does-not-divide", "plan.ep"),
    ("mixtral-8x7b", {"ep": 0}, "out-of-range", "plan.ep"),
    ("qwen3-30b-a3b", {"ep": 32}, "does-not-divide", "plan.ep"),
    ("qwen3-30b-a3b", {"ep": 8, "pp": 2}, "does-not-divide", "plan.ep"),
    ("qwen3-30b-a3b", {"ep": 8, "tp": 2, "etp": 2}, "does-not-divide", "plan.ep"),
    ("qwen3-30b-a3b", {"etp": 5}, "out-of-range", "plan.etp"),
    ("qwen3-30b-a3b", {"ep": 4, "capacity_factor": 0.5}, "out-of-range", "plan.capacity_factor"),
    ("qwen3-30b-a3b", {"ep": 4, "imbalance": 0.9}, "out-of-range", "plan.imbalance"),
    ("qwen3-30b-a3b", {"tp": 2, "sequence_parallel": False}, "contradiction", "plan.sequence_parallel"),
    ("qwen3-30b-a3b", {"recompute": "modules"}, "contradiction", "plan.recompute_modules"),
    ("qwen3-30b-a3b", {"recompute_modules": ["moe"]}, "contradiction", "plan.recompute_modules"),
    ("llama2-7b", {"ep": 4}, "contradiction", "plan.ep"),
    ("llama2-7b", {"etp": 2}, "contradiction", "plan.etp"),
    ("llama2-7b", {"dispatcher": "deepep"}, "contradiction", "plan.dispatcher"),
    ("llama2-7b", {"routing": "dropless"}, "contradiction", "plan.routing"),
    ("llama2-7b", {"imbalance": 2.0}, "contradiction", "plan.imbalance"),
    ("llama2-7b", {"capacity_factor": 1.5}, "contradiction", "plan.capacity_factor"),
    ("llama2-7b", {"ep_overlap": True}, "contradiction", "plan.ep_overlap"),
]
MODULES = [
    ("llama2-7b", ["moe"]),
    ("llama2-7b", ["moe_act"]),
    ("llama2-7b", ["core_attn", "mla_up_proj"]),
    ("qwen3-30b-a3b", ["mla_up_proj"]),
    ("qwen3-30b-a3b", ["shared_experts"]),
    ("qwen3-30b-a3b", ["mlp"]),
    ("deepseek-v3", ["moe", "moe_act"]),
    ("deepseek-v3", ["mlp", "mlp"]),
]
WRONG += [
    (model, {"recompute": "modules", "recompute_modules": modules}, "contradiction", "plan.recompute_modules")
    for model, modules in MODULES
]
UNKNOWN = {"dispatcher": "nccl", "routing": "random"}


def flags(plan: dict[str, Any]) -> list[str]:
    words = []
    for name, value in plan.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-"))
        else:
            words += [option, "+".join(value) if isinstance(value, list) else str(value)]
    return words


def asked_of_command(model: str, plan: dict[str, Any]) -> tuple[str, str | None]:
    return kind(
        refused("simulate", model, "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "64", *flags(plan))
    )


def asked_of_file(model: str, plan: dict[str, Any], folder: Path) -> tuple[str, str | None]:
    job = {"model": model, "cluster": "dgx-h100", "gpus": 8, "global_batch": 64, "seq_len": 4096, "plan": plan}
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(job), encoding="utf-8")
    return kind(refused("simulate", path))


def asked_of_call(model: str, plan: dict[str, Any]) -> tuple[str, str | None]:
    return kind(caught(lambda: knee.simulate(model, cluster="dgx-h100", gpus=8, global_batch=64, **plan)))


@pytest.mark.parametrize(("model", "plan", "code", "field"), WRONG)
def test_a_wrong_plan_is_refused_alike(model: str, plan: dict[str, Any], code: str, field: str, tmp_path: Path) -> None:
    assert asked_of_command(model, plan) == (code, field)
    assert asked_of_file(model, plan, tmp_path) == (code, field)
    assert asked_of_call(model, plan) == (code, field)


@pytest.mark.parametrize("field", UNKNOWN)
def test_an_unknown_word_is_refused(field: str, tmp_path: Path) -> None:
    plan = {"ep": 4, field: UNKNOWN[field]}
    assert asked_of_command("qwen3-30b-a3b", plan)[0] == "unknown-choice"
    assert asked_of_file("qwen3-30b-a3b", plan, tmp_path) == ("unknown-choice", f"plan.{field}")
    assert asked_of_call("qwen3-30b-a3b", plan)[0] == "unknown-choice"


@pytest.mark.parametrize("text", ["foo", "moe+foo", "moe,foo"])
def test_an_unknown_module_is_refused_with_those_that_there_are(text: str) -> None:
    words = ("--ep", "4", "--recompute", "modules", "--recompute-modules", text)
    error = refused("simulate", "qwen3-30b-a3b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "8", *words)
    assert error.code == "unknown-choice"
    assert "'foo'" in error.message
    assert "shared_experts" in error.message


def test_more_experts_per_token_than_experts_are_refused() -> None:
    words = ("--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--set", "model.experts.top_k=9")
    assert kind(refused("simulate", "mixtral-8x7b", *words)) == ("out-of-range", "model.experts.top_k")


def test_modules_may_be_joined_by_commas() -> None:
    assert split_words("mlp,moe_act") == split_words("mlp+moe_act") == ("mlp", "moe_act")


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_an_imbalance_is_a_finite_number(text: str) -> None:
    words = ("--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--imbalance", text)
    assert "help()" not in str(refused("simulate", "qwen3-30b-a3b", *words).hint)
