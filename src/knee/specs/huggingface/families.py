"""What the keys of each family of Hugging Face configs mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knee.specs.huggingface.keys import Keys

GATES = {"silu": "swiglu", "swish": "swiglu", **dict.fromkeys(("gelu", "gelu_new", "gelu_pytorch_tanh"), "geglu")}
PLAIN = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
TEXT_PARTS = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text"}
"""Families with a ``text_config``, and the family of that."""


def decoder_fields(c: Keys, *, tied: bool = False) -> dict[str, Any]:
    """What all descendants of Llama share: gated MLP, RMSNorm, rotary embedding."""
    heads = c.need("num_attention_heads")
    return {
        "layers": c.need("num_hidden_layers"),
        "hidden": c.need("hidden_size"),
        "ffn": c.need("intermediate_size"),
        "heads": heads,
        "kv_heads": c.get("num_key_value_heads", heads),
        "head_size": c.get("head_dim", 0),
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_position_embeddings", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings", tied),
        "mlp": c.choice("hidden_act", "silu", GATES),
        "norm": "rmsnorm",
        "norm_eps": c.number("rms_norm_eps", 1e-6),
        "positions": "rope",
        **c.rope(),
    }


def attention_biases(c: Keys) -> dict[str, bool]:
    bias = c.flag("attention_bias")
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _llama(c: Keys) -> dict[str, Any]:
    return {**decoder_fields(c), **attention_biases(c), "mlp_bias": c.flag("mlp_bias"), **c.window()}


def _mistral(c: Keys) -> dict[str, Any]:
    c.need("num_key_value_heads")
    return {**decoder_fields(c), **c.window()}


def qwen2_fields(c: Keys) -> dict[str, Any]:
    """Queries, keys and values have biases. The window is off unless it is switched on, and then begins at a layer."""
    c.need("num_key_value_heads")
    window: dict[str, Any] = {}
    first = c.number("max_window_layers", 0)
    if c.flag("use_sliding_window"):
        layers = c.number("num_hidden_layers")
        full = max(0, min(int(first), int(layers)))
        window = c.window(pattern="f" * full + "s" * (int(layers) - full) if full else "s")
    elif c.get("layer_types") is not None:
        window = c.window()
    c.used.add("sliding_window")
    return {**decoder_fields(c), "qkv_bias": True, **window}


def qwen3_fields(c: Keys) -> dict[str, Any]:
    """A norm of each head instead of biases."""
    return {**qwen2_fields(c), **attention_biases(c), "head_size": c.get("head_dim", 128), "qk_norm": "head"}


def _phi3(c: Keys) -> dict[str, Any]:
    """The fused projections have the shapes of Llama's."""
    return {**decoder_fields(c), **c.window()}


def _olmo2(c: Keys) -> dict[str, Any]:
    """Norms after attention and the MLP, and of all queries and keys; OLMo 3 has windows."""
    return {**decoder_fields(c), **attention_biases(c), "qk_norm": "full", **c.window()}


def _gemma(c: Keys) -> dict[str, Any]:
    default = c.get("hidden_act", "gelu_pytorch_tanh")
    c.values = {
        "hidden_act": c.get("hidden_activation", default),
        **{k: v for k, v in c.values.items() if k != "hidden_act"},
    }
    return {**decoder_fields(c, tied=True), **attention_biases(c), "head_size": c.get("head_dim", 256)}


def _gemma2(c: Keys) -> dict[str, Any]:
    """Four norms, soft caps, and a window in every second layer."""
    c.values = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} | c.values
    return {**_four_norms(c), **c.window(4096, pattern="sf")}


def _four_norms(c: Keys) -> dict[str, Any]:
    """What Gemma 2 and 3 share."""
    caps = {"attention_soft_cap": "attn_logit_softcapping", "final_soft_cap": "final_logit_softcapping"}
    c.need("num_key_value_heads")
    return {
        **_gemma(c),
        "layer_norms": 4,
        **{field: c.get(key, 0.0) for field, key in caps.items()},
    }


GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
}
"""What the configs of Gemma 3 leave out: transformers' defaults."""


def _gemma3(c: Keys) -> dict[str, Any]:
    """A norm of each head instead of soft caps, and full attention in every sixth layer."""
    c.values = GEMMA3 | c.values
    every = c.get("sliding_window_pattern", c.get("_sliding_window_pattern", 6))
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        hint = "6 means five layers with the window and one without"
        raise c.wrong("sliding_window_pattern", "must be a whole number of at least 1", hint, code="out-of-range")
    layers = int(c.number("num_hidden_layers"))
    pattern = ("s" * (every - 1) + "f")[: max(layers, 1)] if every <= layers else "s"
    return {**_four_norms(c), "qk_norm": "head", **c.window(4096, pattern=pattern)}


def _with_biases(c: Keys, activation: str, rope_frac: float) -> dict[str, Any]:
    """What GPT-NeoX and the first Phi share: biases everywhere, a plain MLP, LayerNorm and a rotated share."""
    heads = c.need("num_attention_heads")
    return {
        "layers": c.need("num_hidden_layers"),
        "hidden": c.need("hidden_size"),
        "ffn": c.need("intermediate_size"),
        "heads": heads,
        "kv_heads": heads,
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_position_embeddings", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings"),
        "biases": True,
        "mlp": c.choice("hidden_act", activation, PLAIN),
        "norm": "layernorm",
        "norm_eps": c.number("layer_norm_eps", 1e-5),
        "positions": "rope",
        **c.rope(),
        **({} if c.get("rotary_pct", c.get("partial_rotary_factor")) is not None else {"rope_frac": rope_frac}),
    }


def _gpt_neox(c: Keys) -> dict[str, Any]:
    """Two norms, and a parallel residual unless it is switched off."""
    if not c.flag("attention_bias", True):
        raise c.wrong(
            "attention_bias", "must be true in GPT-NeoX", "describe the model in a TOML file", code="not-modelled"
        )
    return {**_with_biases(c, "gelu", 0.25), "parallel_residual": c.flag("use_parallel_residual", True)}


def _phi(c: Keys) -> dict[str, Any]:
    """Phi-1 to Phi-2: attention and the MLP read one norm, and the output projection has a bias too."""
    grouped = {"kv_heads": c.get("num_key_value_heads", c.need("num_attention_heads"))}
    beside = {"layer_norms": 1, "parallel_residual": True, "output_bias": True}
    return {**_with_biases(c, "gelu_new", 0.5), **grouped, **beside}


def _gpt2(c: Keys) -> dict[str, Any]:
    heads = c.need("n_head")
    return {
        "layers": c.need("n_layer"),
        "hidden": c.need("n_embd"),
        "ffn": c.get("n_inner") or 4 * c.number("n_embd"),
        "heads": heads,
        "kv_heads": heads,
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("n_positions", 1024),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "biases": True,
        "mlp": c.choice("activation_function", "gelu_new", PLAIN),
        "norm": "layernorm",
        "positions": "learned",
    }


def _mpt(c: Keys) -> dict[str, Any]:
    attention = c.inside("attn_config")
    c.inside("ffn_config").choice("ffn_type", "mptmlp", {"mptmlp": "gelu"})
    for key, off in (("clip_qkv", 0), ("sliding_window_size", -1), ("qk_gn", False)):
        if attention.get(key, off) != off:
            raise attention.wrong(
                key, "changes the work, and is not modelled for mpt", "remove it", code="not-modelled"
            )
    kv_heads = {"multiquery_attention": 1, "grouped_query_attention": attention.get("kv_n_heads")}
    heads, alibi = c.need("n_heads"), attention.flag("alibi")
    return {
        "layers": c.need("n_layers"),
        "hidden": c.need("d_model"),
        "ffn": int(c.number("expansion_ratio", 4) * c.number("d_model")),
        "heads": heads,
        "kv_heads": kv_heads.get(str(attention.get("attn_type"))) or heads,
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_seq_len", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "biases": not c.flag("no_bias"),
        "mlp": "gelu",
        "norm": "layernorm",
        "qk_norm": "full" if attention.flag("qk_ln") else "none",
        "positions": "alibi" if alibi else "rope" if attention.flag("rope") else "learned",
    }


FAMILIES: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": qwen2_fields,
    "qwen3": qwen3_fields,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi": _phi,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "mpt": _mpt,
}
