"""What a config may say that knee does not model: refused by name, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knee.errors import InputError
from knee.specs.huggingface.keys import Keys

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERT_FIELDS = "experts, experts per token, expert width, shared experts and leading dense layers"
LATENT_FIELDS = "q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim"
SPARSE = {
    "mixtral": "8 experts in each layer",
    "qwen2_moe": "experts",
    "qwen3_moe": "experts",
    "qwen3_next": "experts and linear attention",
    "deepseek_v2": "experts and latent attention",
    "deepseek_v3": "experts, latent attention and multi-token prediction",
    "kimi_k2": "experts and latent attention",
    "gpt_oss": "experts and attention sinks",
    "llama4": "experts and chunked attention",
    "llama4_text": "experts and chunked attention",
    "grok-1": "experts",
    "grok": "experts",
    "olmoe": "experts",
    "phimoe": "experts",
    "dbrx": "experts",
}
"""Families that are never dense, with what they have."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "layer_types": (),
    "sliding_window": (),
    "sliding_window_pattern": (),
    "attention_chunk_size": (),
    "no_rope_layers": ([],),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "use_parallel_residual": (False,),
    "parallel_attn": (False,),
    "final_logit_softcapping": (0,),
    "attn_logit_softcapping": (0,),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "clip_qkv": (0,),
    "num_nextn_predict_layers": (0,),
    "num_kv_shared_layers": (0,),
    "cross_attention_layers": ([],),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "vision_config": (),
    "audio_config": (),
    "quantization_config": (),
}
"""Keys that change the work, and the values besides null that leave it as it is."""


def refuse_sparse(path: Path, config: dict[str, Any]) -> None:
    """Experts and latent attention change FLOP, memory and communication, and none of it is modelled."""
    kind = str(config.get("model_type"))
    for key in EXPERTS:
        count = config.get(key)
        if isinstance(count, int) and count > 1:
            text = f"{path}: {count} experts ({key}): mixture-of-experts models are not modelled"
            raise _sparse(text, key, EXPERT_FIELDS)
    if config.get("kv_lora_rank"):
        text = f"{path}: kv_lora_rank {str(config['kv_lora_rank'])[:20]}: latent attention is not modelled"
        raise _sparse(text, "kv_lora_rank", LATENT_FIELDS)
    if kind in SPARSE:
        raise _sparse(
            f"{path}: model_type {kind} has {SPARSE[kind]}, which are not modelled", "model_type", EXPERT_FIELDS
        )


def _sparse(text: str, field: str, fields: str) -> InputError:
    hint = f"knee answers for dense decoders; a model needs fields that knee does not have yet: {fields}"
    return InputError(text, hint=hint, code="not-modelled", field=field)


def unknown_family(path: Path, kind: object, known: tuple[str, ...]) -> InputError:
    """A family whose keys knee does not know."""
    return InputError(
        f"{path}: model_type {str(kind)[:60]!r} is not supported (knee reads {', '.join(known)})",
        hint="describe the model in a TOML file: layers, hidden, ffn, heads, kv_heads, vocab and, if it differs from "
        "Llama, head_size, mlp, norm, layer_norms, qk_norm, window, layer_pattern, soft caps and biases",
        code="not-modelled",
        field="model_type",
    )


def refuse_unread(keys: Keys, kind: str) -> None:
    """A key that changes the work, and that the family's reader did not ask for."""
    for key, neutral in NEUTRAL.items():
        value = keys.values.get(key)
        if value is None or key in keys.used or _is_neutral(value, neutral):
            continue
        if key == "quantization_config":
            hint = "remove it: the plan's precision says in which type the products are"
            raise keys.wrong(
                key, "describes stored weights, which are not trained as they are", hint, code="not-modelled"
            )
        hint = "remove it if the model does not use it, or describe the model in a TOML file"
        raise keys.wrong(key, f"changes the work, and is not modelled for {kind}", hint, code="not-modelled")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    # 0 is not false here: a flag that is no flag is refused
    return any(type(value) in (type(one), float) and value == one for one in neutral)
