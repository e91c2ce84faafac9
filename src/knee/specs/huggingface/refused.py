"""What a config may say that knee does not model: refused by name, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knee.errors import InputError
from knee.specs.huggingface.keys import Keys

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
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "n_routed_experts": (0, 1),
    "moe_num_experts": (0, 1),
    "moe_intermediate_size": (),
    "n_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "n_group": (1,),
    "topk_group": (1,),
    "first_k_dense_replace": (0,),
    "moe_layer_freq": (1,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "moe_layers": ([],),
    "interleave_moe_layer_step": (1,),
    "kv_lora_rank": (0,),
    "q_lora_rank": (0,),
    "index_topk": (0,),
    "lm_head_bias": (False,),
    "num_kv_shared_layers": (0,),
    "cross_attention_layers": ([],),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "vision_config": (),
    "audio_config": (),
    "quantization_config": (),
}
"""Keys that change the work, and the values besides null that leave it as it is."""


def unknown_family(path: Path, kind: object, known: tuple[str, ...]) -> InputError:
    """A family whose keys knee does not know."""
    return InputError(
        f"{path}: model_type {str(kind)[:60]!r} is not supported (knee reads {', '.join(known)})",
        hint="describe the model in a TOML file: layers, hidden, ffn, heads, kv_heads, vocab and, if it differs from "
        "Llama, head_size, mlp, norm, layer_norms, qk_norm, window, layer_pattern, soft caps and biases; experts need "
        "the table experts (count, top_k, ffn), and latent attention the table latent_attention (kv_rank, nope_size, "
        "rope_size, value_size)",
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
