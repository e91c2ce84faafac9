"""A Hugging Face ``config.json``, or the folder that holds one -> the fields of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.base.files import is_deep
from knee.specs.huggingface.families import FAMILIES, SPARSE_FAMILIES, TEXT_PARTS, Keys

# What a config may say that knee does not model: refused by name, never ignored.

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


READERS = {**FAMILIES, **SPARSE_FAMILIES}


def read_config(path: Path, text: str) -> dict[str, Any]:
    """The fields of a model, from the text of its ``config.json`` at ``path``."""
    config = _parse_json(path, text)
    name = _name(path, config)
    kind = str(config.get("model_type"))
    if kind in TEXT_PARTS and isinstance(config.get("text_config"), dict):
        # the decoder of a model that also sees: its name says that the rest is left out
        tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
        outer = {key: config[key] for key in ("quantization_config",) if key in config}
        config = {"model_type": TEXT_PARTS[kind], **tied, **outer, **config["text_config"]}
        name, kind = f"{name}-text", str(config["model_type"])
    reader = READERS.get(kind)
    if reader is None:
        raise unknown_family(path, config.get("model_type"), tuple(READERS))
    keys = Keys(path, config)
    try:
        shape = reader(keys)
    except KeyError as error:
        text = f"{path}: {error.args[0]} is missing, which a {kind} config needs"
        hint = f"add {error.args[0]} to the file"
        raise InputError(text, hint=hint, code="missing-field", field=str(error.args[0])) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        text = f"{path}: a value is not of the type that a {kind} config has there"
        raise InputError(text, code="wrong-type") from None
    refuse_unread(keys, kind)
    return {"name": name, **shape}


def _parse_json(path: Path, text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
        if is_deep(config):
            raise RecursionError
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: {error}", code="not-json", field="model") from None
    except (ValueError, RecursionError):
        text = f"{path} is not a model's config: it is nested too deeply, or a number is too long"
        raise InputError(text, code="not-json", field="model") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model's config: it is not a JSON object", code="wrong-type")
    return config


def _name(path: Path, config: dict[str, Any]) -> str:
    given = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return given or (path.parent.resolve().name if path.stem == "config" else path.stem)
