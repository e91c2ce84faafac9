"""A Hugging Face ``config.json``, or the folder that holds one -> the fields of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from knee.errors import InputError
from knee.specs.catalog import read_text
from knee.specs.huggingface.families import FAMILIES, TEXT_PARTS
from knee.specs.huggingface.keys import Keys
from knee.specs.huggingface.refused import refuse_unread, unknown_family
from knee.specs.huggingface.sparse_families import SPARSE_FAMILIES
from knee.text_files import is_deep

READERS = {**FAMILIES, **SPARSE_FAMILIES}


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a model, from a config file or the folder that holds one."""
    path = path / "config.json" if path.is_dir() else path
    config = _read_json(path)
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
