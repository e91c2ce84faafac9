"""Whole training steps that were measured on one device, simulated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from knee.engine.measurement import Measurement
from knee.engine.one_job import simulate
from knee.measure.machine.readings import Readings, StepPoint
from knee.specs.hardware import AttentionKernel, Cluster
from knee.specs.job import Job
from knee.specs.load import load_profile, make_job
from knee.specs.model import Model
from knee.specs.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step beside its simulation; None where something was not read, or is not simulated."""

    point: StepPoint
    measured_s: float
    simulated_s: float
    measured_w: float | None
    simulated_w: float | None
    measured_bytes: float | None
    simulated_bytes: float | None

    @property
    def error_frac(self) -> float:
        """Simulated over measured time, less one."""
        return self.simulated_s / self.measured_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the point's fields, then both sides."""
        data = asdict(self)
        times = {name: getattr(self, name) for name in ("measured_s", "simulated_s", "error_frac")}
        return {**data.pop("point"), **times, **data}


def simulated_steps(readings: Readings, cluster: Cluster) -> tuple[MeasuredStep, ...]:
    """Every step that was measured, simulated on one GPU of a cluster."""
    found = []
    for point, read in readings.good("step"):
        simulated = simulate_step(point, cluster)
        found.append(
            MeasuredStep(
                point=point,
                measured_s=read["step_s"],
                simulated_s=simulated.step_s,
                measured_w=read.get("power_w"),
                simulated_w=simulated.power_w_per_gpu,
                measured_bytes=read.get("peak_bytes"),
                simulated_bytes=simulated.memory.total_bytes if simulated.memory is not None else None,
            )
        )
    return tuple(found)


def simulate_step(point: StepPoint, cluster: Cluster) -> Measurement:
    """The same step on one GPU of a cluster."""
    return simulate(job_of_step(point, cluster))


PLAIN_LAUNCH_S = 18e-6
"""Host time of a launch in the eager loop that `knee probe` measures, on the host that others are held against: 26.8 ms
for 1,484 kernels, 16 cores of a Xeon (data/h200/kernels.jsonl). Whole training programs take two to four times that."""


def job_of_step(point: StepPoint, cluster: Cluster, profile: Profile | None = None) -> Job:
    """A step as a job, under the catalogue's profile if none is given. The measured loop loads no data, logs nothing
    and waits for nobody."""
    kernel: AttentionKernel = point.attention  # type: ignore[assignment]
    if profile is None:
        profile = load_profile("compiled" if point.compiled else "eager").spec
        profile = profile if point.compiled else replace(profile, launch_s=PLAIN_LAUNCH_S)
    sizes = {name: getattr(point, name) for name in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")}
    model = Model(name=point.model, max_seq_len=point.seq_len, **sizes)
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
