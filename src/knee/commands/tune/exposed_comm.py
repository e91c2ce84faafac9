"""Exposed communication by collective, from the trace of a run: what it tells about the stack besides throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knee.base.arrays import Floats, extreme_values
from knee.commands.tune.candidates import Candidates, moved
from knee.engine.events import COLLECTIVES, Events
from knee.engine.intervals import covered, merge
from knee.engine.one_job import events_of
from knee.specs.job import Job
from knee.specs.profile_parameters import Parameter, applied

Shares = Mapping[str, float]
"""Collective -> share of the step in which it ran beside no compute. Groups are not told apart: a trace names those
that span all ranks by any of their axes, and some not at all."""
READ = tuple(name for name in COLLECTIVES if name != "send_recv")
"""Collectives that are compared; transfers of a pipeline wait for other stages, and that is a bubble."""
NOISE_FRAC, LEAST_NOISE = 0.5, 0.01
"""Standard deviation of a share around the simulated one of the same stack: this part of the larger of the two, and at
least this share of the step (assumed: calls in a trace include waiting for peers)."""
STEP = 0.5
"""Spreads by which a parameter is moved to find what it changes."""
MOST_PASSES = 1_024
"""Microbatches times layers of a step whose kernels are simulated one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedShares:
    """Exposed shares of one plan, and under the draws of the stack's parameters."""

    names: tuple[str, ...]
    shares: Floats
    draws: Floats
    """A row for each draw."""


def measured_shares(record: Mapping[str, Any]) -> dict[str, float]:
    """Of the record of a run; empty where it has no trace."""
    step = record.get("traced_step_s")
    loads = record.get("comm_loads")
    if not isinstance(step, (int, float)) or not step > 0 or not isinstance(loads, list):
        return {}
    found: dict[str, float] = {}
    for load in loads:
        exposed_s = load.get("exposed_s") if isinstance(load, dict) else None
        if isinstance(exposed_s, (int, float)) and load.get("collective") in READ:
            found[load["collective"]] = found.get(load["collective"], 0.0) + exposed_s / step
    return found


def simulated_shares(job: Job, candidates: Candidates) -> SimulatedShares:
    """What the simulator expects of a job, linear in the parameters of the stack.

    Formula: x(z) = x(0) + z dx/dz, the slopes by a difference of STEP
    Where: z are the positions of the parameters of the candidates' draws, in spreads
    """
    if job.microbatches * job.model.layers > MOST_PASSES:
        return SimulatedShares(names=(), shares=np.zeros(0), draws=np.zeros((len(candidates.positions), 0)))
    parameters = candidates.parameters
    now = _shares(job)
    names = tuple(sorted(now))
    slopes = np.zeros((len(parameters), len(names)))
    for at in range(len(parameters)):
        there = _shares(_moved(job, parameters, at))
        slopes[at] = [(there.get(name, 0.0) - now[name]) / STEP for name in names]
    shares = np.array([now[name] for name in names])
    return SimulatedShares(names=names, shares=shares, draws=shares + candidates.positions @ slopes)


def noise_of(measured: Floats, simulated: Floats) -> Floats:
    """Standard deviation of each share."""
    return np.maximum(NOISE_FRAC * np.maximum(measured, simulated), LEAST_NOISE)


def _moved(job: Job, parameters: Sequence[Parameter], at: int) -> Job:
    positions = np.zeros(len(parameters))
    positions[at] = STEP
    cluster, profile = applied(job.cluster, job.profile, moved(job.cluster, job.profile, parameters, positions))
    return replace(job, cluster=cluster, profile=profile)


def _shares(job: Job) -> dict[str, float]:
    """Mean over the stages of the pipeline."""
    with extreme_values():
        stages = [_of_stage(events) for events in events_of(job)]
    names = {name for stage in stages for name in stage}
    return {name: sum(stage.get(name, 0.0) for stage in stages) / len(stages) for name in names}


def _of_stage(events: Events) -> dict[str, float]:
    rows = np.flatnonzero(events.is_comm)
    start, end, compute = events.start_s, events.end_s, ~events.is_comm
    merged = merge(start[compute], end[compute])
    exposed = end[rows] - start[rows] - (covered(end[rows], *merged) - covered(start[rows], *merged))
    kinds = events.collective[rows]
    found = {name: float(exposed[kinds == COLLECTIVES.index(name)].sum()) / events.step_s for name in READ}
    return {name: share for name, share in found.items() if share > 0}
