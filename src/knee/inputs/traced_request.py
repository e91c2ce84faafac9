"""A simulated job as the trainer runs it on fake ranks."""

from __future__ import annotations

from dataclasses import replace

from knee.parallelism.trainer_job import TrainJob, activation_dtype
from knee.specs import Job
from knee.specs.load import load_profile


def with_own_fp8(job: Job) -> Job:
    """The job with the trainer's own fp8 layers, whatever the profile's stack does."""
    if job.plan.precision != "fp8":
        return job
    own = load_profile("knee").spec
    facts = {name: getattr(own, name) for name in ("fp8_shared_casts", "fp8_gathers", "fp8_smallest")}
    return replace(job, profile=replace(job.profile, **facts))


def traced_job(job: Job) -> TrainJob:
    """The same job for the trainer; types as on GPUs."""
    return TrainJob(
        model=job.model,
        plan=job.plan,
        gpus=job.gpus,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        steps=2,
        warmup=0,
        dtype=activation_dtype(job.plan.precision, "cuda"),
        routing="balanced" if job.model.experts else "learned",  # fake tokens choose nothing
        fp8_smallest=job.profile.fp8_smallest,
    )
