"""An answer as a record: what was asked, every metric, and how far they can be trusted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from knee.engine.measurement import Measurement
from knee.specs.job import Job
from knee.trust.trust import Trust


def asked_of(job: Job) -> dict[str, Any]:
    """What was asked, as a record names it."""
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "profile": job.profile.name,
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "plan": asdict(job.plan),
    }


def record_of(job: Job, measurement: Measurement, trust: Trust) -> dict[str, Any]:
    """Plain data; every key carries its unit."""
    return {
        **asked_of(job),
        **measurement.as_json(),
        "trust": trust.as_json() | {"fits": trust.fits(measurement.memory_bytes, job.cluster.gpu.hbm_bytes)},
    }
