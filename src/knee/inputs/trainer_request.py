"""From names and keyword arguments to a job of the trainer, on real processes or traced on fake ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm, log, prod
from pathlib import Path
from typing import Any, get_args

from knee.datasets.synthetic import best_loss
from knee.datasets.token_batches import Shards, Share
from knee.errors import InputError, argument
from knee.files import real_path
from knee.inputs.arguments import checked_plan
from knee.inputs.request import ClusterLike, ModelLike, Overrides, ProfileLike, Request, is_job_file, request
from knee.inputs.state_request import settings_of_run, with_state
from knee.parallelism.trainer_job import AttentionChoice, Dtype, LrSchedule, Routing, TrainJob, activation_dtype
from knee.probe.inventory import read_inventory
from knee.specs import Job
from knee.specs.choices import Device
from knee.specs.defaults import DEFAULT_CONVENTION, TIMEOUT_S, TRACE_STEPS
from knee.specs.notes import code_of
from knee.specs.plan import Plan
from knee.sweeps.job_for_trainer import STEPS, facts_of, warmup_of
from knee.train.metrics_log import check_installed

DEGREES = ("tp", "pp", "cp", "dp_shard", "dp_replicate")
LOCAL_BATCH = 2.0
"""Sequences per process and step where no batch is given: the paper's."""
PLACEHOLDER: dict[Device, str] = {"cpu": "cpu", "cuda": "dgx-h100"}
"""A cluster that completes a job where none is named: no plan depends on it."""
READ_BYTES = 1 << 30
"""Shards up to so many bytes are held against their checksums before a run."""
Say = Callable[[str], None]


def ranks_of(plan: Mapping[str, Any]) -> int:
    """Ranks that the given degrees of a plan ask for. Ranks of experts are ranks of the other degrees, or more
    data-parallel ones."""
    ranks = prod(plan.get(axis) or 1 for axis in DEGREES)
    return lcm(ranks, (plan.get("pp") or 1) * prod(plan.get(axis) or 1 for axis in ("ep", "etp")))


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun, or what sets the same variables, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def completed_request(
    model: ModelLike,
    *,
    cluster: ClusterLike | None,
    profile: ProfileLike | None,
    sizes: Mapping[str, Any],
    plan: Mapping[str, Any],
    overrides: Overrides,
    say: Say,
) -> Request:
    """The request, with a batch where neither it nor a job file has one; ``say`` hears of its assumptions."""
    sizes = dict(sizes)
    if not is_job_file(model) and sizes["global_batch"] is None and sizes["local_batch"] is None:
        sizes["local_batch"] = LOCAL_BATCH
    asked = request(model, cluster=cluster, profile=profile, sizes=sizes, plan=plan, overrides=overrides)
    for sentence in asked.assumptions:
        if code_of(sentence) != "default-profile":  # what runs is the trainer, whatever the profile
            say(sentence)
    return asked


def trainer_job(
    model: ModelLike,
    *,
    nproc: int | None = None,
    device: Device | None = None,
    steps: int | None = None,
    warmup: int | None = None,
    trace_steps: int = TRACE_STEPS,
    dtype: Dtype | None = None,
    compile: bool = False,
    attention: AttentionChoice = "auto",
    balance_loss: float = 0.0,
    data: str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    lr: float | None = None,
    lr_schedule: LrSchedule | None = None,
    lr_warmup: int | None = None,
    lr_min_frac: float | None = None,
    lr_decay_frac: float | None = None,
    valid_data: str | Path | None = None,
    valid_every: int = 0,
    valid_batches: int = 10,
    weights: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep: int | None = None,
    resume: str | Path | None = None,
    log_to: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
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
    **plan: Any,
) -> TrainJob:
    """The job that the arguments of ``train`` describe, resolved once. ``elsewhere``: it runs on another machine.

    Settings that are left out are those of the run that goes on, or the trainer's defaults.
    """
    before = {} if elsewhere else settings_of_run(resume)
    if global_batch is None and local_batch is None and not is_job_file(model):
        global_batch = before.get("global_batch")
    plan = checked_plan(plan)
    world = _world(nproc, plan, torchrun=under_torchrun() and not elsewhere)
    _check_device(device)
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
        check_installed(tuple(log_to))
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
    given: dict[str, Any] = {
        "seed": seed,
        "checkpoint_every": checkpoint_every,
        "keep": keep,
        "lr": lr,
        "lr_schedule": lr_schedule,
    }
    given |= {"lr_warmup": lr_warmup, "lr_min_frac": lr_min_frac, "lr_decay_frac": lr_decay_frac}
    chosen = {name: before.get(name) if value is None else value for name, value in given.items()}
    schedule = chosen["lr_schedule"] or "constant"
    for name, value, needed, there in (
        ("valid_data", valid_data, "valid_every", valid_every),
        ("keep", keep, "checkpoint_every", chosen["checkpoint_every"]),
        ("lr_min_frac", lr_min_frac, "lr_schedule linear, cosine or wsd", schedule != "constant"),
        ("lr_decay_frac", lr_decay_frac, "lr_schedule wsd", schedule == "wsd"),
    ):
        if value is not None and not there:
            raise _without_effect(name, needed)
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
        compile=compile,
        attention=attention,
        routing=_routing(parallel),
        capacity_factor=parallel.capacity_factor or 0.0,
        balance_loss=balance_loss,
        deterministic=deterministic,
        valid_data=_shards(valid_data),
        valid_every=valid_every,
        valid_batches=valid_batches,
        log_to=tuple(log_to),
        trace_steps=trace_steps,
        data=_shards(data),
        timeout_s=timeout_s,
        facts=facts_of(
            job,
            cluster=job.cluster.name if named else None,
            profile=None if profile is None else str(profile),
            convention=flop_convention,
            command=list(command),
        ),
        **{name: value for name, value in chosen.items() if value is not None},
    )
    if made.lr_warmup > made.steps:
        tell(f"the learning rate rises in all {made.steps:,} steps, because its warm-up has {made.lr_warmup:,}")
    if elsewhere:
        return replace(made, resume=str(resume or ""), weights=str(weights or ""))
    return with_state(made, resume, weights, tell)


def _without_effect(name: str, needed: str) -> InputError:
    option, *words = needed.split(" ", 1)
    wanted = " ".join((argument(option), *words))
    text = f"{argument(name)} has no effect without {wanted}"
    return InputError(text, hint=f"give {wanted}, or leave {argument(name)} out", code="contradiction", field=name)


def _shards(folder: str | Path | None) -> dict[str, Any]:
    """A folder of shards as a job has it; synthetic tokens if there is none."""
    return {} if folder is None else {"kind": "shards", "path": str(real_path(folder))}


def _routing(plan: Plan) -> Routing:
    """How the trainer's tokens choose experts."""
    known: dict[str, Routing] = {"balanced": "balanced", "dropless": "learned"}
    if plan.routing not in known:
        raise InputError(
            f"{argument('routing')} {plan.routing} can be simulated, but not trained",
            hint=f"use {argument('routing')} dropless (the router chooses) or balanced",
            code="not-trained",
            field="plan.routing",
        )
    return known[plan.routing]


def _world(nproc: int | None, plan: Mapping[str, Any], *, torchrun: bool) -> int:
    """Processes of the run."""
    if not torchrun:
        if nproc is not None and nproc < 1:
            raise InputError(
                f"{argument('nproc')} is {nproc}; it must be at least 1", code="out-of-range", field="nproc"
            )
        return nproc or max(1, ranks_of(plan))
    if nproc is not None:
        raise InputError(
            f"{argument('nproc')} cannot be used under torchrun, which has already started the processes",
            hint=f"leave {argument('nproc')} out",
            code="contradiction",
            field="nproc",
        )
    try:
        return int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise InputError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; it should be a whole number") from None


def _check_device(device: str | None) -> None:
    if device not in (None, *get_args(Device)):
        raise InputError(
            f"{argument('device')} is {device!r}; it must be {' or '.join(get_args(Device))}",
            code="unknown-choice",
            field="device",
        )


def _device_here(wanted: Device | None, world: int) -> Device:
    """What was asked for, or the GPUs where torch can use them; torch itself is not imported."""
    found = read_inventory()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(found.gpus) if hidden is None else len([name for name in hidden.split(",") if name.strip()])
    usable = bool(count and found.gpus) and found.software.torch_uses_gpus
    if wanted == "cuda" and not usable:
        why = found.software.driver.trouble or f"torch {found.software.torch} was built without GPU support"
        raise InputError(
            f"{argument('device')} cuda: {why}",
            hint=f"`knee doctor` shows the devices of this machine; {argument('device')} cpu trains on the CPU",
            code="no-gpu",
            field="device",
        )
    device = wanted or ("cuda" if usable else "cpu")
    if device == "cuda" and "RANK" not in os.environ and world > count:
        raise InputError(
            f"{world} processes need {world} GPUs, but {count} are visible here",
            hint=f"use several machines with torchrun, or use {argument('device')} cpu",
            code="too-few-gpus",
            field="nproc",
        )
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
