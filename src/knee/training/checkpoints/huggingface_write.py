"""The weights of a checkpoint as a Hugging Face folder: safetensors, their index and the model's config."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from knee.base.files import cannot_write
from knee.specs.model import Model
from knee.training.checkpoints.folder import read_state
from knee.training.checkpoints.huggingface_names import config_of, family_of, order_of, tiles_of
from knee.training.checkpoints.huggingface_read import INDEX, safetensors
from knee.training.checkpoints.resume import check_whole
from knee.training.checkpoints.trainer_state import MODEL
from knee.training.parallelism.precision import TYPES
from knee.training.parallelism.trainer_job import TrainJob

SHARD_BYTES = 5 << 30
"""Most bytes of one file, as transformers has it; they are in memory at once."""


def write_huggingface(
    checkpoint: Path, out: Path, dtype: str | None = None, say: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write a folder that ``transformers`` reads; ``dtype`` (fp32, bf16, fp16) is the checkpoint's if left out."""
    save = safetensors().torch.save_file
    model = TrainJob.from_json(read_state(checkpoint)["job"]).model
    family = family_of(model)
    saved = check_whole(checkpoint, None).state_dict_metadata
    weights = {name: entry for name, entry in saved.items() if name.startswith(MODEL)}
    made = out.with_name(f".partial-{out.name}")
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(parents=True)
        shards = list(_shards(weights))
        index: dict[str, str] = {}
        kind = ""
        for number, names in enumerate(shards, 1):
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            say(f"writing {file}")
            tensors = _tensors(checkpoint, {name: weights[name] for name in names}, model, family, dtype)
            save(tensors, made / file, metadata={"format": "pt"})
            index |= dict.fromkeys(tensors, file)
            kind = kind or str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        plain = {"metadata": {}, "weight_map": index}
        (made / INDEX).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        config = json.dumps(config_of(model, kind), indent=1)
        (made / "config.json").write_text(config + "\n", encoding="utf-8")
        os.replace(made, out)
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return sorted(out.iterdir())


def _shards(weights: dict[str, Any]) -> Iterator[list[str]]:
    """Names of the weights of each file."""
    names: list[str] = []
    size = 0
    for name, entry in weights.items():
        width = entry.size.numel() * entry.properties.dtype.itemsize
        if names and size + width > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += width
    yield names


def _tensors(checkpoint: Path, weights: dict[str, Any], model: Model, family: str, dtype: str | None) -> dict[str, Any]:
    """Hugging Face's tensors of some weights."""
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in weights.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        dcp.load(state, storage_reader=dcp.FileSystemReader(checkpoint), no_dist=True)
    found = {}
    for name, whole in state.items():
        own = name.removeprefix(MODEL)
        order = order_of(own, model)
        if order is not None:
            theirs = torch.empty_like(whole)
            theirs[order] = whole
            whole = theirs
        tiles = tiles_of(own, whole.shape[0], model, family)
        for tile, part in zip(tiles, whole.split([tile.rows for tile in tiles]), strict=True):
            found[tile.name] = part.to(TYPES[dtype] if dtype else part.dtype).contiguous()
    return found
