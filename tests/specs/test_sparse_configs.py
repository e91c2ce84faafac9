"""Hugging Face configs of models with experts: each is the model of the catalogue, and what is not modelled is refused.

The configs are those of the named repositories, less the keys that concern generation, initialisation and stored
weights.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import KneeError
from knee.specs.load import load_model
from knee.specs.model import Model
from refusals import caught, kind

Config = dict[str, Any]


def shape(kind: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, length: int) -> Config:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": length,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


MIXTRAL = shape("mixtral", 32, 4096, 14336, 32, 8, 32000, 32768) | {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
    "sliding_window": None,
    "router_aux_loss_coef": 0.02,
}
QWEN2_MOE = shape("qwen2_moe", 28, 3584, 18944, 28, 4, 151936, 131072) | {
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "rope_theta": 1000000.0,
    "sliding_window": 65536,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
QWEN3_MOE = shape("qwen3_moe", 48, 2048, 6144, 32, 4, 151936, 40960) | {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
}
DEEPSEEK = shape("deepseek", 28, 2048, 10944, 16, 16, 102400, 4096) | {
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "rope_theta": 10000,
    "scoring_func": "softmax",
}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V2_LITE = (
    DEEPSEEK
    | LATENT
    | {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 27,
        "max_position_embeddings": 163840,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "q_lora_rank": None,
        "routed_scaling_factor": 1.0,
        "rope_scaling": {"type": "yarn", "factor": 40},
    }
)
V2 = (
    V2_LITE
    | shape("deepseek_v2", 60, 5120, 12288, 128, 128, 102400, 163840)
    | {
        "moe_intermediate_size": 1536,
        "n_group": 8,
        "n_routed_experts": 160,
        "q_lora_rank": 1536,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
    }
)
V3 = (
    V2
    | shape("deepseek_v3", 61, 7168, 18432, 128, 128, 129280, 163840)
    | {
        "first_k_dense_replace": 3,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 4,
        "topk_method": "noaux_tc",
    }
)
KIMI = (
    V3
    | shape("kimi_k2", 61, 7168, 18432, 64, 64, 163840, 131072)
    | {
        "first_k_dense_replace": 1,
        "n_group": 1,
        "n_routed_experts": 384,
        "num_nextn_predict_layers": 0,
        "rope_theta": 50000.0,
        "topk_group": 1,
    }
)
MOONLIGHT = V2_LITE | {
    "model_type": "deepseek_v3",
    "intermediate_size": 11264,
    "max_position_embeddings": 8192,
    "num_nextn_predict_layers": 0,
    "rope_scaling": None,
    "rope_theta": 50000.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "vocab_size": 163840,
}
GPT_OSS = shape("gpt_oss", 36, 2880, 2880, 64, 8, 201088, 131072) | {
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "initial_context_length": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
}
SCOUT_TEXT = shape("llama4_text", 48, 5120, 8192, 40, 8, 202048, 262144) | {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "head_dim": 128,
    "interleave_moe_layer_step": 1,
    "intermediate_size_mlp": 16384,
    "no_rope_layers": [],
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "rope_theta": 500000.0,
    "use_qk_norm": True,
}
SCOUT: Config = {"model_type": "llama4", "text_config": SCOUT_TEXT, "vision_config": {"hidden_size": 1408}}
MAVERICK: Config = SCOUT | {
    "text_config": SCOUT_TEXT
    | {
        "interleave_moe_layer_step": 2,
        "moe_layers": [*range(1, 48, 2)],
        "no_rope_layers": [1, 1, 1, 0] * 12,
        "num_local_experts": 128,
        "use_qk_norm": False,
    }
}
GROK = shape("grok-1", 64, 6144, 32768, 48, 8, 131072, 8192) | {
    "attn_output_multiplier": 0.08838834764831845,
    "embedding_multiplier_scale": 78.38367176906169,
    "hidden_act": "gelu",
    "max_attn_value": 30.0,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": True,
}
OLMOE = shape("olmoe", 16, 2048, 1024, 16, 16, 50304, 4096) | {
    "attention_bias": False,
    "clip_qkv": None,
    "norm_topk_prob": False,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "rope_theta": 10000.0,
}
PHIMOE = shape("phimoe", 32, 4096, 6400, 32, 8, 32064, 131072) | {
    "attention_bias": True,
    "lm_head_bias": True,
    "num_experts_per_tok": 2,
    "num_local_experts": 16,
    "rope_scaling": {"type": "longrope", "short_mscale": 1.243163121016122},
    "rope_theta": 10000.0,
    "sliding_window": 131072,
}
GLM = shape("glm4_moe", 92, 5120, 12288, 96, 8, 151552, 131072) | {
    "attention_bias": True,
    "first_k_dense_replace": 3,
    "head_dim": 128,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1000000,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
    "use_qk_norm": True,
}
DBRX: Config = {
    "model_type": "dbrx",
    "attn_config": {"kv_n_heads": 8, "rope_theta": 500000},
    "d_model": 6144,
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_loss_weight": 0.05},
    "max_seq_len": 32768,
    "n_heads": 48,
    "n_layers": 40,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}


def read(folder: Path, values: Config) -> Model:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return load_model(str(folder / "config.json")).spec


def refusal(folder: Path, values: Config) -> KneeError:
    return caught(lambda: read(folder, values))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN2_MOE, "qwen2-57b-a14b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK, "deepseek-moe-16b"),
        (V2_LITE, "deepseek-v2-lite"),
        (V2, "deepseek-v2"),
        (V3, "deepseek-v3"),
        (KIMI, "kimi-k2"),
        (KIMI | {"model_type": "deepseek_v3"}, "kimi-k2"),
        (MOONLIGHT, "moonlight-16b-a3b"),
        (GPT_OSS, "gpt-oss-120b"),
        (SCOUT, "llama4-scout"),
        (MAVERICK, "llama4-maverick"),
        (GROK, "grok-1"),
        (OLMOE, "olmoe-1b-7b"),
        (PHIMOE, "phi-3.5-moe"),
        (GLM, "glm-4.5"),
        (DBRX, "dbrx"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_is_the_model_of_the_catalogue(tmp_path: Path, config: Config, name: str) -> None:
    found, known = read(tmp_path, config), load_model(name).spec
    # values that only real training needs are those of the config; the catalogue does not have them
    assert found.experts is not None
    only_trained = {"weight_scale": 1.0, "normalised_weights": True}
    found = replace(found, experts=replace(found.experts, **only_trained))
    known = replace(known, experts=replace(known.experts, **only_trained))
    for field in fields(Model):
        if field.name not in ("name", "head_size", "norm_eps"):
            assert getattr(found, field.name) == getattr(known, field.name), field.name
    assert found.head_dim == known.head_dim


@pytest.mark.parametrize(
    ("change", "dense", "every"),
    [
        ({"mlp_only_layers": [0, 1, 2]}, 3, 1),
        ({"decoder_sparse_step": 2}, 0, 2),
        ({"mlp_only_layers": [1, 0], "decoder_sparse_step": 2}, 2, 2),
        ({"mlp_only_layers": None}, 0, 1),
    ],
)
def test_which_layers_of_qwen_have_experts(tmp_path: Path, change: Config, dense: int, every: int) -> None:
    experts = read(tmp_path, QWEN3_MOE | change).experts
    assert experts is not None
    assert (experts.dense_layers, experts.every) == (dense, every)


def test_every_fourth_layer_of_deepseek_has_experts(tmp_path: Path) -> None:
    model = read(tmp_path, V3 | {"moe_layer_freq": 4})
    assert model.experts is not None
    assert [layer for layer in range(61) if model.experts.has_experts(layer)] == [*range(4, 61, 4)]


def test_layers_of_llama_4_by_each_key(tmp_path: Path) -> None:
    types = ["full_attention" if (layer + 1) % 4 == 0 else "chunked_attention" for layer in range(48)]
    for more in ({"layer_types": types}, {"no_rope_layer_interval": 4}, {"no_rope_layers": [1, 1, 1, 0] * 12}):
        model = read(tmp_path, SCOUT_TEXT | more)
        assert (model.layer_pattern, model.window_kind, model.sliding_layers) == ("sssf", "chunked", 36)
    whole = read(tmp_path, SCOUT_TEXT | {"attention_chunk_size": None})
    assert (whole.window, whole.window_kind, whole.rope_frac) == (0, "sliding", 0.75)


def test_the_name_of_llama_4_says_that_only_the_text_decoder_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, SCOUT).name.endswith("-text")


@pytest.mark.parametrize(
    ("config", "change", "code", "field"),
    [
        (MIXTRAL, {"num_local_experts": 8.5}, "wrong-type", "num_local_experts"),
        (MIXTRAL, {"num_local_experts": "8"}, "wrong-type", "num_local_experts"),
        (MIXTRAL, {"num_local_experts": None}, "missing-field", "num_local_experts"),
        (MIXTRAL, {"num_local_experts": -8}, "out-of-range", "num_local_experts"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "out-of-range", "model.experts.top_k"),
        (MIXTRAL, {"moe_intermediate_size": 1024}, "not-modelled", "moe_intermediate_size"),
        (MIXTRAL, {"n_shared_experts": 1}, "not-modelled", "n_shared_experts"),
        (MIXTRAL, {"rope_scaling": {"rope_type": "spiral"}}, "not-modelled", "rope_scaling"),
        (QWEN3_MOE, {"mlp_only_layers": [5]}, "not-modelled", "mlp_only_layers"),
        (QWEN3_MOE, {"mlp_only_layers": [*range(48)]}, "contradiction", "mlp_only_layers"),
        (QWEN3_MOE, {"mlp_only_layers": "none"}, "wrong-type", "mlp_only_layers"),
        (QWEN3_MOE, {"decoder_sparse_step": 0}, "out-of-range", "decoder_sparse_step"),
        (QWEN3_MOE, {"n_group": 8}, "not-modelled", "n_group"),
        (V3, {"scoring_func": "tanh"}, "not-modelled", "scoring_func"),
        (V3, {"topk_method": "best"}, "not-modelled", "topk_method"),
        (V3, {"n_group": 7}, "does-not-divide", "model.experts.groups"),
        (V3, {"topk_group": 9}, "out-of-range", "model.experts.top_groups"),
        (V3, {"first_k_dense_replace": 61}, "contradiction", "first_k_dense_replace"),
        (V3, {"first_k_dense_replace": 0, "moe_layer_freq": 4}, "not-modelled", "moe_layer_freq"),
        (V3, {"moe_layer_freq": [0, 1]}, "wrong-type", "moe_layer_freq"),
        (V3, {"attention_bias": True}, "not-modelled", "attention_bias"),
        (V3, {"kv_lora_rank": None}, "missing-field", "kv_lora_rank"),
        (V3, {"index_topk": 2048}, "not-modelled", "index_topk"),
        (V3, {"num_nextn_predict_layers": -1}, "out-of-range", "num_nextn_predict_layers"),
        (V3, {"quantization_config": {"quant_method": "gptq"}}, "not-modelled", "quantization_config"),
        (GPT_OSS, {"quantization_config": {"quant_method": "fp8"}}, "not-modelled", "quantization_config"),
        (V3, {"quantization_config": "fp8"}, "wrong-type", "quantization_config"),
        (DEEPSEEK, {"num_nextn_predict_layers": 1}, "not-modelled", "num_nextn_predict_layers"),
        (GPT_OSS, {"layer_types": ["chunked_attention"] * 36}, "not-modelled", "layer_types"),
        (SCOUT_TEXT, {"layer_types": ["sliding_attention"] * 48}, "not-modelled", "layer_types"),
        (SCOUT_TEXT, {"no_rope_layers": [1, 0]}, "contradiction", "no_rope_layers"),
        (SCOUT_TEXT, {"moe_layers": [0, 1, 5]}, "not-modelled", "moe_layers"),
        (OLMOE, {"clip_qkv": 8.0}, "not-modelled", "clip_qkv"),
        (DBRX, {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8}}, "not-modelled", "clip_qkv"),
        (DBRX, {"ffn_config": {"ffn_act_fn": {"name": "relu"}}}, "not-modelled", "name"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, config: Config, change: Config, code: str, field: str) -> None:
    error = refusal(tmp_path, config | change)
    assert kind(error) == (code, field)
    assert error.hint
