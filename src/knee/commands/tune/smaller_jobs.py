"""Runs that are smaller than the job: fewer replicas, or fewer layers; the same plan otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import log2

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import InputError, SpecError, argument
from knee.commands.tune.candidates import Candidates
from knee.commands.tune.plan_covariance import Mechanisms, carried_transfer
from knee.specs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """What a run has of the job; None is all of it."""

    gpus: int | None = None
    layers: int | None = None

    def of(self, job: Job) -> Job:
        """The job as it is run; SpecError where its plan cannot be made smaller."""
        if self.layers is not None:
            job = replace(job, model=replace(job.model, layers=self.layers))
        if self.gpus is None:
            return job
        times = job.gpus // self.gpus
        fewer = np.gcd(times, job.plan.dp_replicate)
        shards = times // fewer
        if job.plan.dp_shard % shards or job.global_batch % times:
            text = f"a plan without {times:,} times as many replicas or shards cannot run on {self.gpus:,} GPUs"
            raise SpecError(text, code="does-not-divide", field="smaller")
        plan = replace(
            job.plan,
            dp_replicate=int(job.plan.dp_replicate // fewer),
            dp_shard=int(job.plan.dp_shard // shards),
        )
        return replace(job, plan=plan, gpus=self.gpus, global_batch=job.global_batch // times)

    def check(self, *, gpus: int, layers: int) -> None:
        """Refuse what is not smaller than the job."""
        for name, unit, mine, most in (("gpus", "GPUs", self.gpus, gpus), ("layers", "layers", self.layers, layers)):
            if mine is not None and not 1 <= mine <= most:
                raise InputError(
                    f"{argument(f'smaller_{name}')} is {mine}, but the job has {most:,} {unit}",
                    hint=f"give a number between 1 and {most:,}",
                    code="out-of-range",
                    field=f"smaller_{name}",
                )
        if self.gpus is not None and gpus % self.gpus:
            raise InputError(
                f"{argument('smaller_gpus')} is {self.gpus}, which does not divide the {gpus:,} GPUs of the job",
                hint="a smaller run has fewer replicas of the same plan",
                code="does-not-divide",
                field="smaller_gpus",
            )

    def error_frac(self, job: Job) -> float:
        """Standard deviation of a plan's log throughput at full size around what its smaller run tells.

        Formula: sqrt(g^2 log2(N / n) + l^2 log2(L / k))
        Where: N GPUs and L layers of the job, n and k of the run; g and l fitted to pairs of published runs of one plan
        Source: tools/fit_tuning.py (transfer_pairs.py)
        """
        spreads = carried_transfer()
        halvings = log2(job.gpus / (self.gpus or job.gpus))
        cuts = log2(job.model.layers / (self.layers or job.model.layers))
        return float(np.sqrt(spreads["gpus"] ** 2 * halvings + spreads["layers"] ** 2 * cuts))


def joined(small: Candidates, full: Candidates) -> Candidates:
    """The plans as they are run, and after them the same plans at full size."""
    # a plan with fewer replicas or layers is the same plan: its mechanisms are those at full size
    m = {f.name: np.concatenate([getattr(full.mechanisms, f.name)] * 2) for f in fields(Mechanisms)}
    return Candidates(
        mechanisms=Mechanisms(**m),
        tokens_per_s_per_gpu=np.concatenate([small.tokens_per_s_per_gpu, full.tokens_per_s_per_gpu]),
        memory_bytes=np.concatenate([small.memory_bytes, full.memory_bytes]),
        log_rate_draws=np.concatenate([small.log_rate_draws, full.log_rate_draws], axis=1),
        log_memory_draws=np.concatenate([small.log_memory_draws, full.log_memory_draws], axis=1),
        hbm_bytes=full.hbm_bytes,
        gpu_h=np.concatenate([small.gpu_h, full.gpu_h]),
        parameters=full.parameters,
        positions=full.positions,
    )


def transfer_variance(jobs: Sequence[Job], smaller: Smaller) -> Floats:
    """Covariance: none of the runs; the error of the transfer of the plans at full size, each for itself."""
    own = smaller.error_frac(jobs[0]) ** 2
    return np.diag(np.concatenate([np.zeros(len(jobs)), np.full(len(jobs), own)]))
