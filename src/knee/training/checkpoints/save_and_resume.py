"""Checkpoints of a trainer. They are written beside the training: tensors are copied to the host, and a thread of torch
writes them. They are read into a trainer of any plan, whatever plan wrote them."""

from __future__ import annotations

import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager

from knee.base.errors import KneeError, NotWritten, argument
from knee.base.units import show
from knee.training.checkpoints.folder import (
    CHECKPOINTS,
    check_file,
    complete,
    damaged,
    name_of,
    remove_unfinished,
    write_checksum,
    write_state,
)
from knee.training.checkpoints.trainer_state import (
    PartsLoadPlanner,
    PartsSavePlanner,
    TensorPart,
    state_bytes,
    state_parts,
    weight_parts,
)
from knee.training.parallelism.trainer import Trainer

POLL_S = 0.2
STATES = 3
"""Weights and both moments of the optimizer."""


def host_group(timeout: Any) -> Any:
    """A process group of its own for checkpoints, between hosts' processors; None for one process."""
    return dist.new_group(backend="gloo", timeout=timeout) if dist.is_initialized() else None


class CheckpointSaver:
    """Saves the state of a trainer every so many steps, and keeps the newest checkpoints."""

    def __init__(self, trainer: Trainer, out: Path, group: Any, data: Mapping[str, Any]) -> None:
        """``group`` is from ``host_group``; ``data`` describes what is read."""
        self.trainer, self.group, self.data = trainer, group, data
        self.folder = out / CHECKPOINTS
        self.stager = _HostCopies(pinned=trainer.mesh.device.type == "cuda")
        self.running: Future[Any] | None = None
        self.step = 0
        """The step of the newest checkpoint that was begun."""
        self.saved: int | None = None
        """The step of the newest complete checkpoint."""
        self.blocked_s = 0.0
        """Seconds that training has waited for checkpoints."""
        self.trouble: str | None = None
        """Why the newest checkpoint is missing."""
        if trainer.mesh.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.folder)
            needed, free = STATES * state_bytes(weight_parts(trainer)), shutil.disk_usage(self.folder).free
            if free < needed:  # with a pipeline, the first stages alone are counted
                raise NotWritten(
                    f"a checkpoint takes {show(needed, 'bytes')}, but {self.folder} has {show(free, 'bytes')} free",
                    hint=f"free space there, or give another {argument('out')}",
                )
        # one process warns that it is alone, which it knows
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")

    def begin(self, step: int, tell: Callable[[str], None] = lambda _: None) -> None:
        """Begin the checkpoint of a step; the state may change when this returns. ``tell`` hears what is waited for."""
        began_s = time.perf_counter()
        self.finish(tell)
        self.step = step
        partial = self.folder / f".partial-{name_of(step)}"
        writer = _RunFolderWriter(partial, self.folder / name_of(step), self)
        self.running = dcp.async_save(
            state_parts(self.trainer),
            storage_writer=writer,
            planner=PartsSavePlanner(),
            process_group=self.group,
            async_stager=self.stager,
        )
        self.blocked_s += time.perf_counter() - began_s

    def finish(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Wait until the checkpoint that was begun is complete, or is known to have failed (``trouble``)."""
        if self.running is None:
            return
        while not wait([self.running], POLL_S).done:
            tell(f"saving {_written_bytes(self.folder / f'.partial-{name_of(self.step)}')}")
        error = self.running.exception()
        self.running = None
        self.trouble = None if error is None else _reason(error)
        if error is None:
            self.saved = self.step

    def check(self) -> None:
        """``NotWritten`` if the newest checkpoint is missing."""
        if self.trouble is not None:
            raise NotWritten(
                f"the checkpoint of step {self.step:,} could not be written to {self.folder}: {self.trouble}",
                hint=f"free space there, keep fewer checkpoints ({argument('keep')}), or give another "
                f"{argument('out')}",
            )


class _HostCopies(AsyncStager):
    """Copies of this rank's tensors in the host's memory, which is allocated once. No save runs while another does."""

    def __init__(self, *, pinned: bool) -> None:
        self.pinned = pinned
        self.kept: dict[str, TensorPart] = {}

    @property
    def should_synchronize_after_execute(self) -> bool:
        """No: the copies are complete when ``stage`` returns."""
        return False

    def stage(self, state_dict: dict[str, TensorPart]) -> dict[str, TensorPart]:
        """The same state on the host."""
        for name, part in state_dict.items():
            if name not in self.kept:
                self.kept[name] = part.mapped(self._like)
            for kept, box in zip(self.kept[name].boxes, part.boxes, strict=True):
                kept.tensor.copy_(box.tensor, non_blocking=self.pinned)
        if self.pinned:
            torch.cuda.synchronize()
        return self.kept

    def _like(self, tensor: Any) -> Any:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.pinned)

    def close(self) -> None:
        """Free the host's memory."""
        self.kept = {}


class _RunFolderWriter(dcp.FileSystemWriter):
    """torch's files with their checksums; the folder gets its name when all ranks have written."""

    def __init__(self, partial: Path, final: Path, saver: CheckpointSaver) -> None:
        super().__init__(partial, sync_files=True, overwrite=True)
        self.partial, self.final, self.saver = partial, final, saver

    def write_data(self, plan: Any, planner: Any) -> Any:
        """This rank's files, and then their checksums."""
        written = super().write_data(plan, planner)
        written.wait()
        for name in {result.storage_data.relative_path for result in written.value()}:
            write_checksum(self.partial / name)
        return written

    def finish(self, metadata: Any, results: Any) -> None:
        """On the first rank, once all have written."""
        super().finish(metadata, results)
        write_checksum(self.partial / ".metadata")
        job = self.saver.trainer.job
        write_state(self.partial, job, self.saver.step, self.saver.data)
        complete(self.partial, self.final, job.keep)


def _written_bytes(folder: Path) -> int:
    """Bytes of a checkpoint so far; they tell the watchdog that it moves."""
    total = 0
    for path in folder.glob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _reason(error: BaseException) -> str:
    """One sentence about a failure: torch's exception has those of all ranks."""
    failures = getattr(error, "failures", None) or {}
    first = next((pair[0] for pair in failures.values()), error)
    text = str(getattr(first, "strerror", None) or first).strip().splitlines()[0][:300]
    # torch's writer of files counts what was written, and does not say why it was less
    return "a file could not be written whole, as on a full disk" if "inline_container" in text else text


OPTIONAL = ("loss_scale", "loss_scale_steps")
"""What only runs in fp16 have."""


def load_state(trainer: Trainer, checkpoint: Path, step: int, group: Any) -> None:
    """Set the trainer to the state of a checkpoint; ``group`` is from ``host_group``."""
    _load(state_parts(trainer), checkpoint, group)
    _, _, counts = trainer.optimizer.adamw.moments()
    for count in counts[1:]:  # every tensor's moments have the count of steps that was read
        count.copy_(counts[0])
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
