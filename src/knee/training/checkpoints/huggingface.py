"""Weights in Hugging Face folders: each rank reads the rows and columns that it holds; a checkpoint's are written."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from knee.base.errors import InputError, MissingExtra
from knee.base.files import cannot_write
from knee.specs.model import Model
from knee.training.checkpoints.folder import read_state
from knee.training.checkpoints.huggingface_names import Tile, config_of, family_of, order_of, tiles_of
from knee.training.checkpoints.save_and_resume import check_whole
from knee.training.checkpoints.trainer_state import MODEL, Box, TensorPart, weight_parts
from knee.training.parallelism.precision import TYPES
from knee.training.parallelism.trainer import Trainer
from knee.training.parallelism.trainer_job import TrainJob

INDEX = "model.safetensors.index.json"


def safetensors() -> Any:
    """The package, or one sentence about it."""
    try:
        import safetensors.torch
    except ImportError:
        raise MissingExtra(
            "Hugging Face weights need the package safetensors", hint="pip install 'knee[train]'", field="weights"
        ) from None
    return safetensors


def read_huggingface(trainer: Trainer, folder: Path) -> None:
    """Set the weights of a trainer."""
    model, parts = trainer.job.model, weight_parts(trainer)
    family = family_of(model)
    with WeightFiles(folder) as files, torch.no_grad():
        for name, part in parts.items():
            own = name.removeprefix(MODEL)
            _fill(files, part, tiles_of(own, part.shape[0], model, family), order_of(own, model))
    trainer.cast_weights()


class WeightFiles:
    """The tensors of a folder's safetensors, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.opened = folder, safetensors().safe_open
        self.files: dict[str, Any] = {}
        self.file_of: Mapping[str, str] = {}

    def __enter__(self) -> WeightFiles:
        try:
            self.file_of = self._index()
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise self._unreadable(self.folder / INDEX, str(error)) from None
        return self

    def __exit__(self, *_: object) -> None:
        self.files = {}

    def _index(self) -> Mapping[str, str]:
        if (self.folder / INDEX).is_file():
            found: dict[str, str] = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            return found
        names = sorted(path.name for path in self.folder.glob("*.safetensors"))
        if not names:
            raise InputError(
                f"{self.folder} has neither safetensors nor a checkpoint",
                hint="give the folder of a Hugging Face model with *.safetensors, or a run's folder",
                code="no-file",
                field="weights",
            )
        return {tensor: name for name in names for tensor in self._file(name).keys()}  # noqa: SIM118 - no mapping

    def _file(self, name: str) -> Any:
        if name not in self.files:
            try:
                self.files[name] = self.opened(self.folder / name, framework="pt")
            except Exception as error:  # its own class of errors, and the system's
                raise self._unreadable(self.folder / name, str(error)) from None
        return self.files[name]

    def rows(self, tile: Tile, shape: tuple[int, ...], first: int, last: int, columns: slice) -> Any:
        """Rows of a tensor that must have this shape."""
        if tile.name not in self.file_of:
            raise self._other(f"{self.folder} has no tensor {tile.name}")
        found = self._file(self.file_of[tile.name]).get_slice(tile.name)
        if tuple(found.get_shape()) != shape:
            raise self._other(f"{tile.name} in {self.folder} has the shape {tuple(found.get_shape())} and not {shape}")
        try:
            return found[first:last] if len(shape) == 1 else found[first:last, columns]
        except Exception as error:
            raise self._unreadable(self.folder / self.file_of[tile.name], str(error)) from None

    def _other(self, text: str) -> InputError:
        hint = "give the weights of this model, or train the model of that folder: its path is a model's name too"
        return InputError(text, hint=hint, code="other-model", field="weights")

    def _unreadable(self, path: Path, why: str) -> InputError:
        text = f"{path} is damaged: {why.splitlines()[0] if why else 'it cannot be read'}"
        return InputError(text, hint="download it again", code="damaged", field="weights")


def _fill(files: WeightFiles, part: TensorPart, tiles: list[Tile], order: list[int] | None) -> None:
    for box in part.boxes:
        if order is None:
            _fill_box(files, part, box, tiles)
            continue
        whole = torch.empty(part.shape, dtype=box.tensor.dtype)
        _fill_box(files, part, Box(offsets=(0,) * len(part.shape), tensor=whole), tiles)
        first, count = box.offsets[0], box.tensor.shape[0]
        box.tensor.copy_(whole[order[first : first + count]])


def _fill_box(files: WeightFiles, part: TensorPart, box: Box, tiles: list[Tile]) -> None:
    """Copy what of each tile lies in the box."""
    begin, count = box.offsets[0], box.tensor.shape[0]
    flat = len(part.shape) == 1
    columns = slice(None) if flat else slice(box.offsets[1], box.offsets[1] + box.tensor.shape[1])
    start = 0
    for tile in tiles:
        first, last = max(begin, start), min(begin + count, start + tile.rows)
        if first < last:
            shape = (tile.rows, *part.shape[1:])
            got = files.rows(tile, shape, first - start, last - start, columns)
            box.tensor[first - begin : last - begin].copy_(got)
        start += tile.rows


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
