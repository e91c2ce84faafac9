"""Where a run begins: the checkpoint or the weights that are asked for, looked at before a process starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from knee.checkpoints.folder import (
    CHECKPOINTS,
    NOT_COMPARED,
    SAME,
    STATE,
    check_model,
    check_resumable,
    checkpoints_in,
    damaged,
    difference,
    find_checkpoint,
    read_state,
)
from knee.errors import InputError, argument
from knee.files import real_path
from knee.parallelism.trainer_job import AUTO, TrainJob
from knee.specs.load import load_model
from knee.train.run_record import RECORD

SETTINGS = ("lr", "lr_schedule", "lr_warmup", "lr_min_frac", "lr_decay_frac", "dtype", "balance_loss", "steps")
"""What changes the losses and may be changed on purpose."""
INHERITED = (
    *SAME,
    "lr",
    "lr_schedule",
    "lr_warmup",
    "lr_min_frac",
    "lr_decay_frac",
    "steps",
    "checkpoint_every",
    "keep",
)
"""Settings that a run goes on with unless others are given."""
NOT_IN_CONFIG = (*NOT_COMPARED, "mtp_layers", "norm_eps")
Say = Callable[[str], None]


def settings_of_run(resume: str | Path | None) -> dict[str, Any]:
    """Settings of the run that wrote the checkpoint, which are the defaults of the one that goes on."""
    if resume is None or str(resume) == AUTO:
        return {}
    checkpoint = find_checkpoint(Path(resume))
    saved = read_state(checkpoint)["job"]
    found = {name: saved[name] for name in INHERITED if name in saved}
    for name, value in found.items():
        if isinstance(value, str) != (name == "lr_schedule") or not isinstance(value, (str, int, float)):
            raise damaged(checkpoint, checkpoint / STATE, f"{name} is {value!r}")
    return found


def run_folder(resume: str | Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to; None for one that was moved."""
    checkpoint = find_checkpoint(Path(resume))
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else None


def checked_to_go_on(job: TrainJob) -> TrainJob:
    """The job; with "auto" it is refused if it cannot go on from the newest checkpoint in its folder, or is done."""
    found = checkpoints_in(Path(job.out) / CHECKPOINTS) if job.resume == AUTO else []
    if found:
        state = read_state(found[-1])
        # a run that failed after its last step is measured again from the checkpoint before
        if state["step"] < job.steps or _is_done(Path(job.out)):
            check_resumable(found[-1], state, job)
    return job


def _is_done(out: Path) -> bool:
    try:
        return bool(json.loads((out / RECORD).read_text(encoding="utf-8"))["status"] == "done")
    except (OSError, ValueError, TypeError, KeyError):
        return False


def with_state(job: TrainJob, resume: str | Path | None, weights: str | Path | None, say: Say) -> TrainJob:
    """The job with its checkpoint and its weights; refused if they are of another model or cannot be read."""
    if resume is not None and weights is not None and str(resume) != AUTO:
        text = f"{argument('resume')} and {argument('weights')} contradict each other: a checkpoint has weights"
        raise InputError(text, hint=f"leave {argument('weights')} out", code="contradiction", field="weights")
    if resume is not None and str(resume) != AUTO:
        checkpoint = find_checkpoint(Path(resume))
        state = read_state(checkpoint)
        check_resumable(checkpoint, state, job)
        _say_changes(state["job"], job, say)
        job = replace(job, resume=str(real_path(checkpoint)))
    elif resume is not None:
        job = replace(job, resume=AUTO)
    return job if weights is None else replace(job, weights=str(real_path(_checked(Path(weights), job, say))))


def _say_changes(before: dict[str, Any], job: TrainJob, say: Say) -> None:
    for name in SETTINGS:
        if before.get(name) != getattr(job, name):
            say(f"{name} was {before.get(name)} in the run that wrote the checkpoint, and is {getattr(job, name)} now")


def _checked(folder: Path, job: TrainJob, say: Say) -> Path:
    """A folder of weights: a checkpoint, a run, or one of Hugging Face."""
    if not folder.is_dir():
        hint = "give the folder of a Hugging Face model with *.safetensors, or a run's folder"
        raise InputError(f"there is no folder {str(folder)!r}", hint=hint, code="no-file", field="weights")
    if (folder / STATE).is_file() or (folder / CHECKPOINTS).is_dir():
        checkpoint = find_checkpoint(folder)
        check_model(checkpoint, read_state(checkpoint), job, "weights")
        return checkpoint
    if not any(folder.glob("*.safetensors")):
        hint = "give the folder of a Hugging Face model with *.safetensors, or a run's folder"
        raise InputError(f"{folder} has no *.safetensors", hint=hint, code="no-file", field="weights")
    if (folder / "config.json").is_file():
        _check_config(folder, job, say)
    return folder


def _check_config(folder: Path, job: TrainJob, say: Say) -> None:
    folder = real_path(folder)  # a name without a slash would be one of the catalogue
    theirs, ours = (asdict(model) for model in (load_model(str(folder)).spec, job.model))
    for fields in (theirs, ours):
        fields["head_size"] = fields["head_size"] or fields["hidden"] // fields["heads"]
        for name in ("weight_scale", "normalised_weights"):
            (fields["experts"] or {}).pop(name, None)
    other = [name for name in ours if name not in NOT_IN_CONFIG and theirs[name] != ours[name]]
    if other:
        shown = ", ".join(difference(name, theirs[name], ours[name]) for name in other[:3])
        hint = f"train the model of that folder: knee train {folder}"
        raise InputError(f"{folder} has another model: {shown}", hint=hint, code="other-model", field="weights")
    scaling = rope_scaling(folder / "config.json")
    if scaling:
        say(f"{folder} stretches its rotary embedding ({scaling}); it is trained without that, so long texts differ")
    if theirs["norm_eps"] != ours["norm_eps"]:
        say(f"norms add {ours['norm_eps']:g}, but {theirs['norm_eps']:g} in {folder}: `knee train {folder}` uses it")


def rope_scaling(config: Path) -> str:
    """How a config stretches the rotary embedding; empty if it does not."""
    plain = json.loads(config.read_text(encoding="utf-8"))
    for key in ("rope_scaling", "rope_parameters"):
        table = plain.get(key) or {}
        kind = table.get("rope_type", table.get("type", "default"))
        if kind != "default":
            return str(kind)
    return ""
