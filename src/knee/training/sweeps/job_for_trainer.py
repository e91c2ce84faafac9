"""A job as the trainer takes it: how long, on what device, and the facts of the catalogue that its record needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from knee.specs import Job
from knee.specs.choices import Device
from knee.specs.defaults import DEFAULT_CONVENTION, TIMEOUT_S, TRACE_STEPS
from knee.training.parallelism.trainer_job import AUTO, TrainJob, activation_dtype

STEPS: dict[Device, int] = {"cuda": 60, "cpu": 30}
"""The paper's, and fewer on a processor."""
WARMUP, WARMUP_SHARE = 10, 6
"""The paper's 10 of 60; of fewer steps, one in so many."""
PROCESSOR = "generic"
"""Vendor of the catalogue's stand-in for a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of the trainer that all runs of a sweep share."""

    steps: int | None = None
    warmup: int | None = None
    trace_steps: int = TRACE_STEPS
    device: Device | None = None
    """The processor where the cluster is one, the GPUs elsewhere, if None."""
    checkpoint_every: int = 0
    """Steps between checkpoints; a run that is started again goes on from its newest one. 0 writes none."""
    timeout_s: float = TIMEOUT_S
    """A run that does not move for so long is ended."""


def device_of(job: Job, settings: RunSettings) -> Device:
    """Return the kind of device that a job's ranks need."""
    return settings.device or ("cpu" if job.cluster.gpu.vendor == PROCESSOR else "cuda")


def train_job(job: Job, settings: RunSettings, *, out: str, command: list[str]) -> TrainJob:
    """The same job for the trainer; SpecError where it cannot train it."""
    device = device_of(job, settings)
    steps = STEPS[device] if settings.steps is None else settings.steps
    # the record's profile is that of the program that ran, whatever stack the grid has simulated
    facts = facts_of(job, cluster=job.cluster.name, profile=None, convention=DEFAULT_CONVENTION, command=command)
    return TrainJob(
        model=job.model,
        plan=job.plan,
        gpus=job.gpus,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        steps=steps,
        warmup=warmup_of(steps) if settings.warmup is None else settings.warmup,
        device=device,
        dtype=activation_dtype(job.plan.precision, device),
        trace_steps=settings.trace_steps,
        out=out,
        checkpoint_every=settings.checkpoint_every,
        resume=AUTO if settings.checkpoint_every else "",
        timeout_s=settings.timeout_s,
        facts=facts | {"profile_asked": job.profile.name},
    )


def warmup_of(steps: int) -> int:
    """Return the number of first steps that are not measured."""
    return min(WARMUP, steps // WARMUP_SHARE)


def facts_of(
    job: Job, *, cluster: str | None, profile: str | None, convention: str, command: list[str]
) -> dict[str, Any]:
    """What the record says besides, and what workers need of the catalogue."""
    import numpy as np

    from knee.engine.workload.parameters import model_flop_per_token

    return {
        "cluster": cluster,
        "profile": profile,
        "flop_convention": convention,
        "flop_per_token": float(model_flop_per_token(job.model, np.array([job.seq_len]), convention)[0]),
        "gpus_known": gpus_known(),
        "command": command,
    }


@cache
def gpus_known() -> list[dict[str, Any]]:
    """Dense peaks of the catalogue's GPUs with their sources, and the cluster that stands for each."""
    from knee.specs.catalog import entry_names, gpu_aliases
    from knee.specs.load import load_cluster

    known: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*gpu_aliases().values(), *entry_names("cluster"))):
        loaded = load_cluster(name)
        gpu = loaded.spec.gpu
        if gpu.vendor == PROCESSOR or gpu.name in known:
            continue
        source = loaded.sources.get("gpu.bf16_flop_per_s") or loaded.sources.get("gpu.fp16_flop_per_s")
        known[gpu.name] = {
            "gpu": gpu.name,
            "word": gpu.name.split("-")[0].upper(),
            "cluster": name,
            "sms": gpu.sms,
            "memory_bytes": gpu.hbm_bytes,
            "peaks": {"bf16": gpu.bf16_flop_per_s, "fp16": gpu.fp16_flop_per_s},
            "source": source.text if source else "",
        }
    return list(known.values())
