"""Whole training steps that were measured on one device, simulated."""

from __future__ import annotations

from dataclasses import replace

from knee.record.measurement import Measurement
from knee.record.probe_points import StepPoint
from knee.single import simulate
from knee.specs.hardware import AttentionKernel, Cluster
from knee.specs.job import Job
from knee.specs.load import load_profile, make_job
from knee.specs.model import Model
from knee.specs.profile import Profile


def simulate_step(point: StepPoint, cluster: Cluster) -> Measurement:
    """The same step on one GPU of a cluster."""
    return simulate(job_of_step(point, cluster))


def job_of_step(point: StepPoint, cluster: Cluster, profile: Profile | None = None) -> Job:
    """A step as a job, under the catalogue's profile if none is given. The measured loop loads no data, logs nothing
    and waits for nobody."""
    kernel: AttentionKernel = point.attention  # type: ignore[assignment]
    profile = profile or load_profile("compiled" if point.compiled else "eager").spec
    model = Model(
        name=point.model,
        layers=point.layers,
        hidden=point.hidden,
        ffn=point.ffn,
        heads=point.heads,
        kv_heads=point.kv_heads,
        vocab=point.vocab,
        max_seq_len=point.seq_len,
    )
    job, _ = make_job(
        model,
        cluster,
        replace(profile, step_overhead_s=0.0, straggler_frac=0.0, attention=kernel),
        gpus=1,
        global_batch=point.micro_batch,
        seq_len=point.seq_len,
        plan_options={"sharding": "ddp", "state_dtype": point.master, "reduce_dtype": point.master},
    )
    return job
