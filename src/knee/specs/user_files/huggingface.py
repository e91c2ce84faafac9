"""Model shapes from a Hugging Face ``config.json``: Llama, Mistral, GPT-2 and MPT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knee.errors import InputError
from knee.specs.catalog import read_text
from knee.text_files import is_deep


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a model, from a config file or the folder that holds one."""
    path = path / "config.json" if path.is_dir() else path
    config = _read_json(path)
    kind = config.get("model_type")
    _refuse_experts(path, config)
    _refuse_sliding_window(path, config)
    reader = _READERS.get(str(kind))
    if reader is None:
        raise InputError(
            f"{path}: model_type {kind!r} is not supported (knee reads {', '.join(_READERS)})",
            hint="describe the model in a TOML file: layers, hidden, ffn, heads, kv_heads, vocab",
            code="not-modelled",
            field="model_type",
        )
    try:
        shape = reader(path, config)
    except KeyError as error:
        text = f"{path}: {error.args[0]} is missing, which a {kind} config needs"
        raise InputError(text, code="missing-field", field=str(error.args[0])) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        text = f"{path}: a value is not of the type that a {kind} config has there"
        raise InputError(text, code="wrong-type") from None
    return {"name": _name(path, config), **shape}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_text(path, field="model"))
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


def _refuse_experts(path: Path, config: dict[str, Any]) -> None:
    """Experts change FLOP, memory and communication, and none of it is modelled."""
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        if isinstance(config.get(key), int) and config[key] > 1:
            raise InputError(
                f"{path}: {config[key]} experts ({key}): mixture-of-experts models are not modelled",
                hint="knee answers for dense decoders",
                code="not-modelled",
                field=key,
            )


def _refuse_sliding_window(path: Path, config: dict[str, Any]) -> None:
    """A window cuts attention's FLOP; counting full attention instead would be another model."""
    window = config.get("sliding_window")
    if window is not None and config.get("use_sliding_window") is not False:
        raise InputError(
            f"{path}: sliding_window {window}: sliding windows are not modelled",
            hint="set sliding_window to null to simulate full attention",
            code="not-modelled",
            field="sliding_window",
        )


def _not_modelled(path: Path, key: str, value: object, kind: str) -> InputError:
    return InputError(f"{path}: {key} {value!r} is not modelled for {kind}", code="not-modelled", field=key)


def _llama(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Llama, and Mistral without a sliding window."""
    attention, mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if attention != mlp:
        raise InputError(
            f"{path}: attention_bias {attention} with mlp_bias {mlp} is not modelled: all linear layers have "
            "biases or none",
            hint="describe the model in a TOML file, with biases = false",
            code="not-modelled",
            field="attention_bias",
        )
    if config.get("hidden_act", "silu") != "silu":
        raise _not_modelled(path, "hidden_act", config["hidden_act"], "this model_type")
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "ffn": config["intermediate_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "head_size": config.get("head_dim") or 0,
        "vocab": config["vocab_size"],
        "max_seq_len": config.get("max_position_embeddings", 2048),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "biases": attention,
        "mlp": "swiglu",
        "norm": "rmsnorm",
        "positions": "rope",
        "rope_base": config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta") or 10_000.0,
    }


def _gpt2(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    activation = str(config.get("activation_function", "gelu_new"))
    if "gelu" not in activation:
        raise _not_modelled(path, "activation_function", activation, "GPT-2")
    return {
        "layers": config["n_layer"],
        "hidden": config["n_embd"],
        "ffn": config.get("n_inner") or 4 * _number(config["n_embd"]),
        "heads": config["n_head"],
        "kv_heads": config["n_head"],
        "vocab": config["vocab_size"],
        "max_seq_len": config.get("n_positions", 1024),
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "biases": True,
        "mlp": "gelu",
        "norm": "layernorm",
        "positions": "learned",
    }


def _number(value: Any) -> Any:
    """What can be multiplied: a word would be repeated as often as the model is wide."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(value)
    return value


def _mpt(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    attention = config.get("attn_config") or {}
    ffn_type = (config.get("ffn_config") or {}).get("ffn_type", "mptmlp")
    if ffn_type != "mptmlp":
        raise _not_modelled(path, "ffn_type", ffn_type, "MPT")
    kv_heads = {"multiquery_attention": 1, "grouped_query_attention": attention.get("kv_n_heads")}
    return {
        "layers": config["n_layers"],
        "hidden": config["d_model"],
        "ffn": int(_number(config.get("expansion_ratio", 4)) * _number(config["d_model"])),
        "heads": config["n_heads"],
        "kv_heads": kv_heads.get(str(attention.get("attn_type"))) or config["n_heads"],
        "vocab": config["vocab_size"],
        "max_seq_len": config.get("max_seq_len", 2048),
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "biases": not config.get("no_bias", False),
        "mlp": "gelu",
        "norm": "layernorm",
        "positions": "alibi" if attention.get("alibi") else "rope" if attention.get("rope") else "learned",
    }


_READERS: dict[str, Callable[[Path, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _llama,
    "gpt2": _gpt2,
    "mpt": _mpt,
}
