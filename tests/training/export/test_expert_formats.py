"""Exports of models with experts: options of Megatron-LM and torchtitan, what they cannot run, and knee's own file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from export_jobs import expert_jobs, made, sparse

from knee.specs.load import load_job, load_model
from knee.specs.model.decoder import Experts
from knee.training.export.formats import export
from knee.training.export.megatron import _layout, layer_pattern
from refusals import caught, kind

DEEPSEEK = {"gpus": 256, "batch": 1024, "pp": 8, "ep": 32}
TITAN = {"sharding": "fsdp", "seq_len": 4096}


def options(script: str) -> dict[str, str]:
    """Option -> the words after it, as a shell would have them."""
    words = shlex.split(script[script.index("\ntorchrun") :].replace("\\\n", " "))
    found: dict[str, list[str]] = {}
    for word in (word for word in words if word != "$@"):
        if word.startswith("--"):
            found[name := word] = []
        elif found:
            found[name].append(word)
    return {name: " ".join(values) for name, values in found.items()}


def test_megatron_gets_the_shape_of_deepseek_v3() -> None:
    asked = options(
        export(sparse("deepseek-v3", **DEEPSEEK, recompute="modules", recompute_modules=["moe_act"]), "megatron")
    )
    expected = {
        "--num-layers": "61",
        "--num-experts": "256",
        "--moe-router-topk": "8",
        "--moe-ffn-hidden-size": "2048",
        "--moe-shared-expert-intermediate-size": "2048",
        "--moe-layer-freq": "[0]*3+[1]*58",
        "--moe-router-score-function": "sigmoid",
        "--moe-router-num-groups": "8",
        "--moe-router-group-topk": "4",
        "--moe-router-enable-expert-bias": "",
        "--multi-latent-attention": "",
        "--q-lora-rank": "1536",
        "--kv-lora-rank": "512",
        "--qk-head-dim": "128",
        "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128",
        "--qk-layernorm": "",
        "--mtp-num-layers": "1",
        "--expert-model-parallel-size": "32",
        "--expert-tensor-parallel-size": "1",
        "--moe-token-dispatcher-type": "alltoall",
        "--recompute-modules": "moe_act",
    }
    assert {name: asked.get(name) for name in expected} == expected
    assert "--moe-router-force-load-balancing" not in asked


def test_an_expert_is_split_as_the_plan_says_and_not_over_tp() -> None:
    assert options(export(sparse(tp=4, ep=4), "megatron"))["--expert-tensor-parallel-size"] == "1"
    assert options(export(sparse(tp=4, ep=4, etp=4), "megatron"))["--expert-tensor-parallel-size"] == "4"


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_flex_dispatchers(dispatcher: str) -> None:
    asked = options(export(sparse(dispatcher=dispatcher), "megatron"))
    assert asked["--moe-token-dispatcher-type"] == "flex"
    assert asked["--moe-flex-dispatcher-backend"] == dispatcher
    alone = options(export(sparse(dispatcher=dispatcher, ep=1), "megatron"))
    assert alone["--moe-token-dispatcher-type"] == "alltoall"


@pytest.mark.parametrize("name", ["deepseek-v3", "llama4-maverick", "mixtral-8x7b"])
def test_a_pattern_names_the_layers_with_experts(name: str) -> None:
    model = load_model(name).spec
    assert model.experts is not None
    # Megatron-LM evaluates it, too
    assert eval(layer_pattern(model.experts, model.layers)) == [
        int(model.experts.has_experts(layer)) for layer in range(model.layers)
    ]


def test_a_pattern_ends_with_the_layers_that_are_left() -> None:
    experts = Experts(count=4, top_k=1, ffn=8, dense_layers=2, every=3)
    assert eval(layer_pattern(experts, 10)) == [int(experts.has_experts(layer)) for layer in range(10)]


def test_layers_of_multi_token_prediction_end_the_layout() -> None:
    assert _layout((1, 2, 2, 1), 1) == "Et*1|(t*2|)*2,m*1L"
    assert _layout((2, 2), 3) == "Et*1m*1|m*2L"
    text = export(sparse("deepseek-v3", **DEEPSEEK), "megatron")
    assert "m*1L" in options(text)["--pipeline-model-parallel-layout"]


def test_sinks_windows_and_biases_of_gpt_oss() -> None:
    asked = options(export(sparse("gpt-oss-120b", profile="fused"), "megatron"))
    assert asked["--softmax-type"] == "learnable"
    assert (asked["--window-size"], asked["--window-attn-skip-freq"]) == ("127,0", "2")
    assert "--disable-bias-linear" not in asked
    assert "--moe-router-enable-expert-bias" not in asked


@pytest.mark.parametrize(
    ("model", "flavor"),
    [("deepseek-v2-lite", "16B"), ("deepseek-v2", "236B"), ("qwen3-30b-a3b", "30B-A3B"), ("gpt-oss-20b", "20b")],
)
def test_torchtitan_registers(model: str, flavor: str) -> None:
    plan = {"dispatcher": "hybridep"} if model != "deepseek-v2" else {}
    text = export(made(model, ep=8, **TITAN, **plan), "torchtitan")
    assert f'model_registry("{flavor}"' in text
    assert options(text)["--parallelism.expert_parallel_degree"] == "8"


def test_torchtitan_trains_a_registered_configuration_as_it_is() -> None:
    asked = options(export(made("gpt-oss-120b", ep=8, **TITAN), "torchtitan"))
    assert (asked["--module"], asked["--config"]) == ("gpt_oss", "gpt_oss_120b")


def test_torchtitan_predicts_further_tokens_without_a_pipeline() -> None:
    text = export(made("deepseek-v3", gpus=256, batch=256, ep=32, precision="fp8", **TITAN), "torchtitan")
    assert "num_mtp_layers=1" in text
    assert "config.loss = MTPLoss" in text
    assert "Float8GroupedExpertsConverter" in text


OVERLAP = {"ep_overlap": True}
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("megatron", {"sharding": "fsdp_no_reshard"}, "plan.sharding", "zero1"),
    ("megatron", {"sharding": "fsdp"} | OVERLAP, "plan.ep_overlap", "zero1"),
    ("megatron", {"pp": 2} | OVERLAP, "plan.ep_overlap", "--virtual-stages 2"),
    ("megatron", {"recompute": "full"} | OVERLAP, "plan.ep_overlap", "--recompute modules"),
    ("megatron", {"model": "deepseek-v3", "ep": 32} | OVERLAP, "plan.ep_overlap", "no --ep-overlap"),
    ("megatron", {"model": "llama4-scout"}, "model.window_kind", "knee"),
    ("megatron", {"sets": {"model.experts.router_bias": "true"}}, "model.experts.router_bias", "knee"),
    ("torchtitan", {"sharding": "fsdp"}, "model", "megatron"),
    ("torchtitan", {"model": "llama4-maverick", "sharding": "fsdp"}, "model", "megatron"),
    ("torchtitan", {"model": "qwen3-30b-a3b", "sharding": "fsdp", "tp": 2, "etp": 2}, "plan.etp", "--etp 1"),
    ("torchtitan", {"model": "qwen3-30b-a3b", "sharding": "fsdp", "tp": 2, "ep": 1}, "plan.etp", "--etp 2"),
    ("torchtitan", {"model": "qwen3-30b-a3b", "sharding": "ddp"}, "plan.sharding", "fsdp_no_reshard"),
    ("torchtitan", {"model": "qwen3-30b-a3b", "sharding": "fsdp"} | OVERLAP, "plan.ep_overlap", "no --ep-overlap"),
    ("torchtitan", {"model": "qwen3-30b-a3b", "sharding": "fsdp", "capacity_factor": 1.5}, "plan.capacity_factor",
     "no --capacity-factor"),
    ("torchtitan", {"model": "deepseek-v3", "sharding": "fsdp", "pp": 2}, "model.mtp_layers", "mtp_layers=0"),
    ("torchtitan", {"model": "qwen3-30b-a3b", "sharding": "fsdp", "recompute": "modules", "recompute_modules": ["moe"]},
     "plan.recompute", "full"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "asked", "field", "nearest"), REFUSED)
def test_what_cannot_be_run_with_experts_is_refused(tool: str, asked: dict[str, Any], field: str, nearest: str) -> None:
    error = caught(lambda: export(sparse(**asked), tool))
    assert kind(error) == ("cannot-run", field)
    assert nearest in str(error.hint)


def test_plans_with_experts_come_back(tmp_path: Path) -> None:
    more = [sparse(imbalance=1.5, routing="dropless"), sparse(tp=2, etp=2, routing="power_law:1.2")]
    for job in (*expert_jobs(), *more):
        path = tmp_path / "plan.toml"
        path.write_text(export(job, "knee"), encoding="utf-8")
        assert load_job(path).spec == job
