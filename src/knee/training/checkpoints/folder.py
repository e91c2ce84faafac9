"""The checkpoints in a run's folder: which there are, what they are of, and what may go on from them. Needs no torch.

    RUN/checkpoints/step-00000100/   state.json, .metadata, and for each rank __RANK_0.distcp with its checksum

A checkpoint has a temporary name until it is complete. A run that is killed while it saves leaves the one before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, argument
from knee.base.files import write_text
from knee.training.parallelism.trainer_job import TrainJob

CHECKPOINTS = "checkpoints"
STATE = "state.json"
CHECKSUM = ".crc32"
STEP = re.compile(r"step-(\d{8,})")
UNFINISHED = (".partial-", ".old-")
BLOCK_BYTES = 1 << 24
SAME = ("global_batch", "seq_len", "seed")
"""What the position in the data depends on."""
NOT_COMPARED = ("name", "max_seq_len")
"""Fields of a model that change no weight and no result."""


def name_of(step: int) -> str:
    """The folder of a step's checkpoint."""
    return f"step-{step:08d}"


def checkpoints_in(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = {int(match[1]): path for path in folder.glob("step-*") if (match := STEP.fullmatch(path.name))}
    return [found[step] for step in sorted(found) if (found[step] / STATE).is_file()]


def find_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the newest one of a run's folder."""
    if not path.is_dir():
        text = f"there is no folder {str(path)!r}"
        raise InputError(text, hint="give the folder of a run, or one checkpoint", code="no-file", field="resume")
    if (path / STATE).is_file():
        return path
    found = checkpoints_in(path / CHECKPOINTS) or checkpoints_in(path)
    if not found:
        raise InputError(
            f"{path} has no checkpoint",
            hint=f"a run writes checkpoints if it is started with {argument('checkpoint_every')}; leave "
            f"{argument('resume')} out to start a new run",
            code="no-checkpoint",
            field="resume",
        )
    return found[-1]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint is of: its step, job and data."""
    try:
        plain = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        return {"step": int(plain["step"]), "job": dict(plain["job"]), "data": plain["data"], **plain}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise damaged(checkpoint, checkpoint / STATE, str(error)) from None


def write_state(folder: Path, job: TrainJob, step: int, data: Mapping[str, Any]) -> None:
    """Describe the checkpoint in a folder."""
    plain = {"step": step, "job": {**job.as_json(), "facts": {}}, "data": dict(data)}
    write_text(folder / STATE, json.dumps(plain, indent=1) + "\n")


def damaged(checkpoint: Path, file: Path, why: str) -> InputError:
    """The error about a file of a checkpoint."""
    return InputError(
        f"{file} is damaged: {why}",
        hint=f"remove {checkpoint}; {argument('resume')} then uses the checkpoint before it",
        code="damaged",
        field="resume",
    )


def check_model(checkpoint: Path, state: Mapping[str, Any], job: TrainJob, field: str) -> None:
    """Refuse the checkpoint of another model."""
    saved, asked = state["job"].get("model", {}), json.loads(json.dumps(asdict(job.model)))
    other = [name for name in asked if name not in NOT_COMPARED and saved.get(name) != asked[name]]
    if other:
        shown = ", ".join(difference(name, saved.get(name), asked[name]) for name in other[:3])
        raise InputError(
            f"{checkpoint} is of the model {saved.get('name')}, which has {shown}",
            hint=f"train the model of the checkpoint, or give {argument(field)} a checkpoint of this one",
            code="other-model",
            field=field,
        )


def difference(name: str, saved: Any, asked: Any) -> str:
    """How a field of two models differs; tables such as experts by their first field that does."""
    if isinstance(saved, dict) and isinstance(asked, dict):
        inner = next(key for key in {**asked, **saved} if saved.get(key) != asked.get(key))
        return difference(f"{name}.{inner}", saved.get(inner), asked.get(inner))
    if isinstance(saved, dict) or isinstance(asked, dict):
        return name if isinstance(saved, dict) else f"no {name}"
    return f"{name} {saved} and not {asked}"


def check_resumable(checkpoint: Path, state: Mapping[str, Any], job: TrainJob) -> None:
    """Refuse a checkpoint from which this job cannot go on with the same losses."""
    check_model(checkpoint, state, job, "resume")
    if state["step"] >= job.steps:
        raise InputError(
            f"{checkpoint} already has {state['step']:,} steps, and the run has {job.steps:,}",
            hint=f"give {argument('steps')} more than {state['step']:,}",
            code="already-done",
            field="steps",
        )
    for name in SAME:
        if state["job"].get(name) != getattr(job, name):
            raise InputError(
                f"{checkpoint} was trained with {name} {state['job'].get(name)}, and the run has {getattr(job, name)}: "
                "its place in the data would be another",
                hint=f"use {argument(name)} {state['job'].get(name)}, or start a new run with {argument('weights')} "
                f"{checkpoint}",
                code="contradiction",
                field=name,
            )


def check_same_data(checkpoint: Path, state: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Refuse other data than the checkpoint's run has read; a folder may have moved."""
    saved, asked = ({k: v for k, v in d.items() if k != "path"} for d in (state["data"], json.loads(json.dumps(data))))
    if saved != asked:
        raise InputError(
            f"{checkpoint} was trained on other data ({saved.get('kind')}) than the run has ({asked.get('kind')})",
            hint=f"give {argument('data')} the same shards, or start a new run with {argument('weights')} {checkpoint}",
            code="contradiction",
            field="data",
        )


def checksum(path: Path) -> str:
    """Length and CRC-32 of a file, as text."""
    value = length = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            value, length = zlib.crc32(block, value), length + len(block)
    return f"{length} {value:08x}\n"


def check_file(checkpoint: Path, name: str) -> None:
    """Hold a file of a checkpoint against its checksum."""
    path = checkpoint / name
    try:
        whole = checksum(path) == path.with_name(name + CHECKSUM).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(checkpoint, path, getattr(error, "strerror", None) or str(error)) from None
    if not whole:
        raise damaged(checkpoint, path, "its content is not what was written")


def write_checksum(path: Path) -> None:
    """The checksum of a file, beside it."""
    path.with_name(path.name + CHECKSUM).write_text(checksum(path), encoding="utf-8")


def complete(partial: Path, final: Path, keep: int) -> None:
    """Give a complete checkpoint its name, and remove all but the newest ``keep`` ones."""
    if final.exists():  # a run that went on from an earlier step
        _remove(final)
    os.replace(partial, final)
    handle = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # names in a folder survive a loss of power
    finally:
        os.close(handle)
    for old in checkpoints_in(final.parent)[:-keep] if keep else ():
        if old != final:
            _remove(old)


def remove_unfinished(folder: Path) -> None:
    """Remove what a run that was killed left half written or half removed."""
    for path in folder.glob(".*"):
        if path.name.startswith(UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)


def remove_all(out: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for path in checkpoints_in(out / CHECKPOINTS):
        _remove(path)
    remove_unfinished(out / CHECKPOINTS)


def _remove(path: Path) -> None:
    """Remove a checkpoint; one that is half removed no longer has its name."""
    aside = path.with_name(f".old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    shutil.rmtree(aside, ignore_errors=True)
