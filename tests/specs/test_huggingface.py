"""Hugging Face configs: families of today read as their authors mean them, and what is not modelled refused by name.

The configs are those of the named repositories, less the keys that concern generation and initialisation.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import KneeError
from knee.engine.workload.parameters import parameter_count
from knee.specs.load import load_model
from knee.specs.model import Model
from refusals import caught, kind

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL: dict[str, Any] = LLAMA | {"model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 4096}
GEMMA2: dict[str, Any] = {
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
PHI4: dict[str, Any] = {
    "attention_bias": False,
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "max_position_embeddings": 16384,
    "model_type": "phi3",
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 10,
    "resid_pdrop": 0.0,
    "rope_scaling": None,
    "rope_theta": 250000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}
OLMO2: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "olmo2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}
LLAMA32: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 32.0, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
PHI_2: dict[str, Any] = {
    "model_type": "phi",
    "hidden_act": "gelu_new",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "tie_word_embeddings": False,
    "vocab_size": 51200,
}
NEOX: dict[str, Any] = {
    "hidden_act": "gelu_fast",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "vocab_size": 50432,
}


def read(folder: Path, values: dict[str, Any]) -> Model:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return load_model(str(folder / "config.json")).spec


def refusal(folder: Path, values: dict[str, Any]) -> KneeError:
    return caught(lambda: read(folder, values))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (QWEN2, "qwen2.5-7b"),
        (QWEN3, "qwen3-8b"),
        (MISTRAL, "mistral-7b-v0.1"),
        (GEMMA2, "gemma2-9b"),
        (GEMMA3, "gemma3-12b"),
        (PHI4, "phi-4"),
        (OLMO2, "olmo2-7b"),
        (LLAMA32, "llama3.2-1b"),
        (NEOX, "gpt-neox-20b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_is_the_model_of_the_catalogue(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    found, known = read(tmp_path, config), load_model(name).spec
    for field in fields(Model):
        if field.name not in ("name", "head_size", "norm_eps"):
            assert getattr(found, field.name) == getattr(known, field.name), field.name
    assert found.head_dim == known.head_dim


def test_the_first_phi_has_biases_everywhere(tmp_path: Path) -> None:
    """transformers counts 2,779,683,840 parameters."""
    found = read(tmp_path, PHI_2)
    assert parameter_count(found) == 2_779_683_840
    assert (found.layer_norms, found.rope_frac) == (1, 0.4)


def test_the_name_says_that_only_the_text_decoder_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, GEMMA3).name.endswith("-text")


@pytest.mark.parametrize(
    ("change", "window", "sliding"),
    [
        ({"sliding_window": None}, 0, 0),
        ({"sliding_window": 1024}, 1024, 32),
        ({"use_sliding_window": False}, 0, 0),
        ({"layer_types": ["full_attention"] * 32}, 0, 0),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, 4096, 16),
    ],
)
def test_windows_of_mistral(tmp_path: Path, change: dict[str, Any], window: int, sliding: int) -> None:
    model = read(tmp_path, MISTRAL | change)
    assert (model.window, model.sliding_layers) == (window, sliding)


def test_windows_of_qwen_begin_at_a_layer(tmp_path: Path) -> None:
    switched_on = QWEN2 | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    model = read(tmp_path, switched_on)
    assert (model.window, model.sliding_layers, model.layer_pattern) == (4096, 8, "f" * 20 + "s" * 8)


def test_layers_of_gemma_3_by_both_keys(tmp_path: Path) -> None:
    types = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(48)]
    given = GEMMA3 | {"text_config": GEMMA3["text_config"] | {"layer_types": types}}
    assert read(tmp_path, given).layer_pattern == read(tmp_path, GEMMA3).layer_pattern == "sssssf"
    every_fourth = GEMMA3 | {"text_config": GEMMA3["text_config"] | {"sliding_window_pattern": 4}}
    assert read(tmp_path, every_fourth).sliding_layers == 36


def test_biases_by_their_place(tmp_path: Path) -> None:
    attention = read(tmp_path, LLAMA | {"attention_bias": True})
    assert (attention.qkv_bias, attention.attention_output_bias, attention.mlp_bias) == (True, True, False)
    assert read(tmp_path, LLAMA | {"mlp_bias": True}).mlp_bias
    assert read(tmp_path, LLAMA | {"hidden_act": "gelu"}).mlp == "geglu"


def test_rope_of_later_releases(tmp_path: Path) -> None:
    both = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}
    assert read(tmp_path, LLAMA | {"rope_parameters": both}).rope_base == 1e6
    part = read(tmp_path, LLAMA | {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.75}})
    assert (part.rope_base, part.rope_frac) == (5e5, 0.75)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"layer_types": ["linear_attention"] * 32}, "not-modelled", "layer_types"),
        ({"layer_types": ["full_attention"] * 31}, "contradiction", "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, "contradiction", "sliding_window"),
        ({"layer_types": "full_attention"}, "wrong-type", "layer_types"),
        ({"use_qk_norm": True}, "not-modelled", "use_qk_norm"),
        ({"final_logit_softcapping": 30.0}, "not-modelled", "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "not-modelled", "attn_logit_softcapping"),
        ({"use_parallel_residual": True}, "not-modelled", "use_parallel_residual"),
        ({"quantization_config": {"quant_method": "fp8"}}, "not-modelled", "quantization_config"),
        ({"tie_word_embeddings": "false"}, "wrong-type", "tie_word_embeddings"),
        ({"attention_bias": 1}, "wrong-type", "attention_bias"),
        ({"mlp_bias": "no"}, "wrong-type", "mlp_bias"),
        ({"sliding_window": 0}, "out-of-range", "sliding_window"),
        ({"sliding_window": "4096"}, "out-of-range", "sliding_window"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "not-modelled", "rope_scaling"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "not-modelled", "rope_parameters"),
        ({"hidden_act": "relu"}, "not-modelled", "hidden_act"),
        ({"num_nextn_predict_layers": 1}, "not-modelled", "num_nextn_predict_layers"),
        ({"attention_chunk_size": 8192}, "not-modelled", "attention_chunk_size"),
        ({"num_key_value_heads": 5}, "does-not-divide", "model.heads"),
    ],
)
def test_keys_that_change_the_work_are_refused(
    tmp_path: Path, change: dict[str, Any], code: str, field: str | None
) -> None:
    error = refusal(tmp_path, LLAMA | change)
    assert kind(error) == (code, field)
    assert error.hint


@pytest.mark.parametrize(
    "change",
    [
        {"use_qk_norm": False},
        {"final_logit_softcapping": None},
        {"use_parallel_residual": False},
        {"num_nextn_predict_layers": 0},
        {"partial_rotary_factor": 1.0},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    ],
)
def test_keys_that_leave_the_work_as_it_is(tmp_path: Path, change: dict[str, Any]) -> None:
    assert read(tmp_path, LLAMA | change) == read(tmp_path, LLAMA)


@pytest.mark.parametrize("name", ["rwkv", "minicpm3", "qwen3_next", "deepseek_v32", "llama4_vision_model", None])
def test_other_architectures_are_refused_by_name(tmp_path: Path, name: str | None) -> None:
    error = refusal(tmp_path, LLAMA | {"model_type": name, "num_experts": 8, "kv_lora_rank": 512})
    assert kind(error) == ("not-modelled", "model_type")
    assert str(name) in str(error)
    assert "layers, hidden" in str(error.hint)
    assert "experts" in str(error.hint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_local_experts", 8),
        ("num_experts", 8),
        ("n_routed_experts", 64),
        ("kv_lora_rank", 512),
        ("mlp_only_layers", [0]),
        ("index_topk", 2048),
    ],
)
def test_keys_of_sparse_models_in_a_dense_config_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    assert kind(refusal(tmp_path, LLAMA | {key: value})) == ("not-modelled", key)
