"""Reads a checkpoint into a trainer, whatever plan wrote it."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from knee.base.errors import KneeError
from knee.training.checkpoints.folder import check_file, damaged
from knee.training.checkpoints.trainer_state import (
    PartsLoadPlanner,
    TensorPart,
    share_counts,
    state_parts,
    weight_parts,
)
from knee.training.parallelism.trainer import Trainer

OPTIONAL = ("loss_scale", "loss_scale_steps")
"""What only runs in fp16 have."""


def load_state(trainer: Trainer, checkpoint: Path, step: int, group: Any) -> None:
    """Set the trainer to the state of a checkpoint; ``group`` is from ``host_group``."""
    _load(state_parts(trainer), checkpoint, group)
    share_counts(trainer)
    trainer.cast_weights()
    trainer.steps_done = step


def load_weights(trainer: Trainer, checkpoint: Path, group: Any) -> None:
    """Set the weights alone."""
    _load(weight_parts(trainer), checkpoint, group)
    trainer.cast_weights()


def check_whole(checkpoint: Path, group: Any) -> Any:
    """The checkpoint's metadata, once its files were held against their checksums; ranks share the reading."""
    rank, ranks = (dist.get_rank(group), dist.get_world_size(group)) if group is not None else (0, 1)
    trouble: KneeError | None = None
    metadata = None
    try:
        check_file(checkpoint, ".metadata")
        metadata = dcp.FileSystemReader(checkpoint).read_metadata()
        names = sorted({info.relative_path for info in metadata.storage_data.values()})
        for name in names[rank::ranks]:
            check_file(checkpoint, name)
    except KneeError as error:
        trouble = error
    except (OSError, EOFError, ValueError, AttributeError, ImportError, pickle.UnpicklingError) as error:
        trouble = damaged(checkpoint, checkpoint / ".metadata", str(error))
    found: list[Any] = [trouble]
    if group is not None:
        found = [None] * ranks
        dist.all_gather_object(found, trouble, group=group)
    first = next((error for error in found if error is not None), None)
    if first is not None:
        raise first
    return metadata


def _load(state: dict[str, TensorPart], checkpoint: Path, group: Any) -> None:
    saved = check_whole(checkpoint, group).state_dict_metadata
    state = {name: part for name, part in state.items() if name in saved or name not in OPTIONAL}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        dcp.load(
            state,
            storage_reader=dcp.FileSystemReader(checkpoint),
            planner=PartsLoadPlanner(),
            process_group=group,
        )
