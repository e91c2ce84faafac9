"""From names and keyword arguments to a job of the trainer, on real processes or traced on fake ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import lcm, log, prod
from pathlib import Path
from typing import Any, get_args

from knee.base.errors import InputError, argument
from knee.base.files import real_path
from knee.commands.job_request import ClusterLike, ModelLike, Overrides, Request, is_job_file, request
from knee.measure.machine.inventory import read_inventory
from knee.specs import Job
from knee.specs.argument_types import checked_plan
from knee.specs.choices import Device
from knee.specs.defaults import DEFAULT_CONVENTION, TRACE_STEPS
from knee.specs.load import load_model
from knee.specs.notes import code_of
from knee.specs.plan import Plan
from knee.training.checkpoints import folder as checkpoints
from knee.training.datasets.synthetic import best_loss
from knee.training.datasets.token_batches import Shards, Share
from knee.training.parallelism.trainer_job import AUTO, Dtype, Routing, TrainJob, activation_dtype
from knee.training.run.progress import check_installed
from knee.training.run.run_record import RECORD
from knee.training.sweeps.job_for_trainer import STEPS, facts_of, warmup_of

# Where a run begins: the checkpoint or the weights that are asked for, looked at before a process starts.

RATE = ("lr", "lr_schedule", "lr_warmup", "lr_min_frac", "lr_decay_frac")
SETTINGS = (*RATE, "dtype", "balance_loss", "steps")
"""What changes the losses and may be changed on purpose."""
INHERITED = (*checkpoints.SAME, *RATE, "steps", "checkpoint_every", "keep")
"""Settings that a run goes on with unless others are given."""
PASSED_ON = (
    *("trace_steps", "compile", "attention", "balance_loss", "deterministic", "valid_every", "valid_batches", "log_to"),
    "timeout_s",
)
"""Arguments that are fields of the trainer's job under the same name."""
NOT_IN_CONFIG = (*checkpoints.NOT_COMPARED, "mtp_layers", "norm_eps")
Say = Callable[[str], None]


def settings_of_run(resume: str | Path | None) -> dict[str, Any]:
    """Settings of the run that wrote the checkpoint, which are the defaults of the one that goes on."""
    if resume is None or str(resume) == AUTO:
        return {}
    checkpoint = checkpoints.find_checkpoint(Path(resume))
    saved = checkpoints.read_state(checkpoint)["job"]
    found = {name: saved[name] for name in INHERITED if name in saved}
    for name, value in found.items():
        if isinstance(value, str) != (name == "lr_schedule") or not isinstance(value, (str, int, float)):
            raise checkpoints.damaged(checkpoint, checkpoint / checkpoints.STATE, f"{name} is {value!r}")
    return found


def run_folder(resume: str | Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to; None for one that was moved."""
    checkpoint = checkpoints.find_checkpoint(Path(resume))
    return checkpoint.parent.parent if checkpoint.parent.name == checkpoints.CHECKPOINTS else None


def checked_to_go_on(job: TrainJob) -> TrainJob:
    """The job; with "auto" it is refused if it cannot go on from the newest checkpoint in its folder, or is done."""
    found = checkpoints.checkpoints_in(Path(job.out) / checkpoints.CHECKPOINTS) if job.resume == AUTO else []
    if found:
        state = checkpoints.read_state(found[-1])
        # a run that failed after its last step is measured again from the checkpoint before
        if state["step"] < job.steps or _is_done(Path(job.out)):
            checkpoints.check_resumable(found[-1], state, job)
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
        checkpoint = checkpoints.find_checkpoint(Path(resume))
        state = checkpoints.read_state(checkpoint)
        checkpoints.check_resumable(checkpoint, state, job)
        for name in SETTINGS:
            was, now = state["job"].get(name), getattr(job, name)
            if was != now:
                say(f"{name} was {was} in the run that wrote the checkpoint, and is {now} now")
        job = replace(job, resume=str(real_path(checkpoint)))
    elif resume is not None:
        job = replace(job, resume=AUTO)
    return job if weights is None else replace(job, weights=str(real_path(_checked(Path(weights), job, say))))


def _checked(folder: Path, job: TrainJob, say: Say) -> Path:
    """A folder of weights: a checkpoint, a run, or one of Hugging Face."""
    if (folder / checkpoints.STATE).is_file() or (folder / checkpoints.CHECKPOINTS).is_dir():
        checkpoint = checkpoints.find_checkpoint(folder)
        checkpoints.check_model(checkpoint, checkpoints.read_state(checkpoint), job, "weights")
        return checkpoint
    if not any(folder.glob("*.safetensors")):
        text = f"{folder} has no *.safetensors" if folder.is_dir() else f"there is no folder {str(folder)!r}"
        hint = "give the folder of a Hugging Face model with *.safetensors, or a run's folder"
        raise InputError(text, hint=hint, code="no-file", field="weights")
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
        shown = ", ".join(checkpoints.difference(name, theirs[name], ours[name]) for name in other[:3])
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


DEGREES = ("tp", "pp", "cp", "dp_shard", "dp_replicate")
LOCAL_BATCH = 2.0
"""Sequences per process and step where no batch is given: the paper's."""
PLACEHOLDER: dict[Device, str] = {"cpu": "cpu", "cuda": "dgx-h100"}
"""A cluster that completes a job where none is named: no plan depends on it."""
READ_BYTES = 1 << 30
"""Shards up to so many bytes are held against their checksums before a run."""


def ranks_of(plan: Mapping[str, Any]) -> int:
    """Ranks that the given degrees of a plan ask for. Ranks of experts are ranks of the other degrees, or more
    data-parallel ones."""
    ranks = prod(plan.get(axis) or 1 for axis in DEGREES)
    return lcm(ranks, (plan.get("pp") or 1) * prod(plan.get(axis) or 1 for axis in ("ep", "etp")))


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun, or what sets the same variables, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def completed_request(model: ModelLike, *, sizes: Mapping[str, Any], say: Say, **asked: Any) -> Request:
    """The request of ``job_request.request``, with a batch where neither it nor a job file has one; ``say`` hears of
    its assumptions."""
    if not is_job_file(model) and sizes["global_batch"] is None and sizes["local_batch"] is None:
        sizes = {**sizes, "local_batch": LOCAL_BATCH}
    found = request(model, sizes=sizes, **asked)
    for sentence in found.assumptions:
        if code_of(sentence) != "default-profile":  # what runs is the trainer, whatever the profile
            say(sentence)
    return found


def trainer_job(
    model: ModelLike,
    *,
    nproc: int | None = None,
    device: Device | None = None,
    steps: int | None = None,
    warmup: int | None = None,
    dtype: Dtype | None = None,
    data: str | Path | None = None,
    valid_data: str | Path | None = None,
    weights: str | Path | None = None,
    resume: str | Path | None = None,
    local_batch: float | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    cluster: ClusterLike | None = None,
    profile: str | Path | None = None,
    overrides: Overrides = (),
    flop_convention: str = DEFAULT_CONVENTION,
    command: Sequence[str] = (),
    elsewhere: bool = False,
    say: Say = lambda _: None,
    **settings: Any,
) -> TrainJob:
    """The job that the arguments of ``train`` describe, resolved once. ``elsewhere``: it runs on another machine.

    ``settings`` are fields of a plan and of the trainer's job. Those that are left out are those of the run that goes
    on, or the trainer's defaults.
    """
    passed_on = {"trace_steps": TRACE_STEPS} | {name: settings.pop(name) for name in PASSED_ON if name in settings}
    given = {name: settings.pop(name, None) for name in ("seed", "checkpoint_every", "keep", *RATE)}
    valid_every, log_to = passed_on.get("valid_every", 0), tuple(passed_on.pop("log_to", ()))
    before = {} if elsewhere else settings_of_run(resume)
    if global_batch is None and local_batch is None and not is_job_file(model):
        global_batch = before.get("global_batch")
    plan = checked_plan(settings)
    world = _world(nproc, plan, torchrun=under_torchrun() and not elsewhere)
    if device not in (None, *get_args(Device)):
        text = f"{argument('device')} is {device!r}; it must be {' or '.join(get_args(Device))}"
        raise InputError(text, code="unknown-choice", field="device")
    where = (device or "cuda") if elsewhere else _device_here(device, world)
    precision = plan.get("precision")
    if dtype is not None and precision not in (None, dtype, "fp8"):
        raise InputError(
            f"{argument('dtype')} {dtype} and {argument('precision')} {precision} contradict each other",
            code="contradiction",
            field="dtype",
        )
    if dtype in ("bf16", "fp16") and precision != "fp8":
        plan["precision"] = dtype
    tell = say if os.environ.get("RANK", "0") == "0" else lambda _: None
    named = is_job_file(model) or cluster is not None
    job = completed_request(
        model,
        cluster=cluster if named else PLACEHOLDER[where],
        profile=profile,
        sizes={
            "gpus": world,
            "global_batch": global_batch,
            "local_batch": local_batch,
            "seq_len": before.get("seq_len") if seq_len is None and not is_job_file(model) else seq_len,
        },
        plan=plan,
        overrides=overrides,
        say=tell,
    ).job
    parallel = job.plan
    if job.model.experts is not None and plan.get("routing") is None:
        parallel = replace(parallel, routing="dropless")  # a real router's choice
    if not elsewhere:
        for name, folder in (("data", data), ("valid_data", valid_data)):
            if folder is not None:
                _check_data(Path(folder), job, tell, name)
        check_installed(log_to)
    if valid_every and data is not None and valid_data is None:
        raise InputError(
            f"{argument('valid_every')} needs held-out data",
            hint=f"give {argument('valid_data')} a folder of other shards",
            code="missing-argument",
            field="valid_data",
        )
    if data is not None and valid_data is not None and real_path(data) == real_path(valid_data):
        tell("the validation loss is one of the training data: both are of the same folder")
    if data is None:
        best, first = best_loss(job.model.vocab), log(job.model.vocab)
        tell(f"the tokens are synthetic: the best model has a loss of {best:.2f}, an untrained one {first:.2f}")
    steps = before.get("steps", STEPS[where]) if steps is None else steps
    chosen = {name: before.get(name) if value is None else value for name, value in given.items()}
    schedule = chosen["lr_schedule"] or "constant"
    for name, value, needed, there in (
        ("valid_data", valid_data, "valid_every", valid_every),
        ("keep", given["keep"], "checkpoint_every", chosen["checkpoint_every"]),
        ("lr_min_frac", given["lr_min_frac"], "lr_schedule linear, cosine or wsd", schedule != "constant"),
        ("lr_decay_frac", given["lr_decay_frac"], "lr_schedule wsd", schedule == "wsd"),
    ):
        if value is not None and not there:
            option, *words = needed.split(" ", 1)
            wanted = " ".join((argument(option), *words))
            text, hint = f"{argument(name)} has no effect without {wanted}", f"leave {argument(name)} out"
            raise InputError(text, hint=f"give {wanted}, or {hint}", code="contradiction", field=name)
    made = TrainJob(
        model=job.model,
        plan=parallel,
        gpus=world,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        steps=steps,
        warmup=warmup_of(steps) if warmup is None else warmup,
        device=where,
        dtype=dtype or activation_dtype(job.plan.precision, where),
        routing=_routing(parallel),
        capacity_factor=parallel.capacity_factor or 0.0,
        valid_data=_shards(valid_data),
        log_to=log_to,
        data=_shards(data),
        facts=facts_of(
            job,
            cluster=job.cluster.name if named else None,
            profile=None if profile is None else str(profile),
            convention=flop_convention,
            command=list(command),
        ),
        **passed_on,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    if made.lr_warmup > made.steps:
        tell(f"the learning rate rises in all {made.steps:,} steps, because its warm-up has {made.lr_warmup:,}")
    if elsewhere:
        return replace(made, resume=str(resume or ""), weights=str(weights or ""))
    return with_state(made, resume, weights, tell)


def _shards(folder: str | Path | None) -> dict[str, Any]:
    """A folder of shards as a job has it; synthetic tokens if there is none."""
    return {} if folder is None else {"kind": "shards", "path": str(real_path(folder))}


def _routing(plan: Plan) -> Routing:
    known: dict[str, Routing] = {"balanced": "balanced", "dropless": "learned"}
    if plan.routing not in known:
        text = f"{argument('routing')} {plan.routing} can be simulated, but not trained"
        hint = f"use {argument('routing')} dropless (the router chooses) or balanced"
        raise InputError(text, hint=hint, code="not-trained", field="plan.routing")
    return known[plan.routing]


def _world(nproc: int | None, plan: Mapping[str, Any], *, torchrun: bool) -> int:
    if not torchrun:
        if nproc is not None and nproc < 1:
            text = f"{argument('nproc')} is {nproc}; it must be at least 1"
            raise InputError(text, code="out-of-range", field="nproc")
        return nproc or max(1, ranks_of(plan))
    if nproc is not None:
        text = f"{argument('nproc')} cannot be used under torchrun, which has already started the processes"
        raise InputError(text, hint=f"leave {argument('nproc')} out", code="contradiction", field="nproc")
    try:
        return int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise InputError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; it should be a whole number") from None


def _device_here(wanted: Device | None, world: int) -> Device:
    """What was asked for, or the GPUs where torch can use them; torch itself is not imported."""
    found = read_inventory()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(found.gpus) if hidden is None else len([name for name in hidden.split(",") if name.strip()])
    usable = bool(count and found.gpus) and found.software.torch_uses_gpus
    if wanted == "cuda" and not usable:
        why = found.software.driver.trouble or f"torch {found.software.torch} was built without GPU support"
        hint = f"`knee doctor` shows the devices of this machine; {argument('device')} cpu trains on the CPU"
        raise InputError(f"{argument('device')} cuda: {why}", hint=hint, code="no-gpu", field="device")
    device = wanted or ("cuda" if usable else "cpu")
    if device == "cuda" and "RANK" not in os.environ and world > count:
        text = f"{world} processes need {world} GPUs, but {count} are visible here"
        hint = f"use several machines with torchrun, or use {argument('device')} cpu"
        raise InputError(text, hint=hint, code="too-few-gpus", field="nproc")
    return device


def _check_data(folder: Path, job: Job, say: Say, name: str) -> None:
    """Refuse shards that are not whole, or not of this model, before any process is started."""
    share = Share(seq_len=job.seq_len, global_batch=job.global_batch)
    try:
        shards = Shards(folder, share, vocab_size=job.model.vocab)
        whole = sum(path.stat().st_size for path in folder.glob("*.bin")) <= READ_BYTES
        if whole:
            shards.verify()
    except InputError as error:
        error.field = name if error.field == "folder" else error.field  # whose argument the folder is here
        raise
    if not whole:
        say(f"the contents of the shards are not checked; `knee data show {folder} --verify` checks them")
