"""A whole run with failures: days, GPU-hours and dollars, as a mean and as a distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from knee.base.errors import SpecError
from knee.base.units import DAY_S, HOUR_S
from knee.engine.reliability.defaults import conditions_of
from knee.engine.reliability.drawn_runs import drawn_times
from knee.engine.reliability.goodput import MOST_SLOWDOWN, NO_PROGRESS, Goodput, goodput_of, time_per_work
from knee.engine.workload.parameters import parameter_count
from knee.specs.hardware import Cluster
from knee.specs.model import Model

DRAWS = 1_000_000
"""Failures that are drawn for one answer."""
FEWEST_RUNS, MOST_RUNS = 100, 1_000
PERCENTILES = (10, 50, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A run of so many seconds of steps, with failures."""

    goodput: Goodput
    mean_s: float
    """By the closed form."""
    p10_s: float
    p50_s: float
    p90_s: float
    interruptions: float
    runs: int
    """Runs that were drawn."""

    def as_json(self, *, cost_usd: float | None) -> dict[str, Any]:
        """Plain data; GPU-hours and dollars include the spare nodes."""
        return {
            "days": self.mean_s / DAY_S,
            "p10_days": self.p10_s / DAY_S,
            "p50_days": self.p50_s / DAY_S,
            "p90_days": self.p90_s / DAY_S,
            "gpu_hours": self.mean_s / HOUR_S * self.goodput.paid_gpus,
            "cost_usd": None if cost_usd is None else cost_usd * self.goodput.cost_factor,
            "interruptions": self.interruptions,
            "runs_drawn": self.runs,
            "reason": None,
            **self.goodput.as_json(),
        }


def whole_run(goodput: Goodput, steps_s: float) -> WholeRun:
    """What ``steps_s`` of steps take with failures: the mean by the closed form, percentiles by drawing.

    The drawn runs differ in their failures, and in their failure rate if it is the default: clusters differ in it.
    """
    mean = steps_s * goodput.slowdown
    failures = mean / goodput.mean_s if goodput.mean_s else 0.0
    runs = int(np.clip(DRAWS / (failures + 1.0), FEWEST_RUNS, MOST_RUNS))
    times = drawn_times(goodput, steps_s, runs=runs, spread=goodput.conditions.rate_spread)
    ends = np.percentile(times, PERCENTILES)
    return WholeRun(
        goodput=goodput,
        mean_s=mean,
        p10_s=float(ends[0]),
        p50_s=float(ends[1]),
        p90_s=float(ends[2]),
        interruptions=goodput.all_interruptions_per_day * mean / DAY_S,
        runs=runs,
    )


def run_with_failures(
    model: Model,
    cluster: Cluster,
    gpus: int,
    steps_s: float,
    *,
    step_s: float,
    cost_usd: float | None,
    power_w: float | None = None,
    energy: Mapping[str, float | None] | None = None,
    pue: float = 1.0,
) -> dict[str, Any]:
    """A run as plain data. ``energy`` has the MWh of GPUs (``gpu_mwh``) and of what stands beside them, without
    failures."""
    try:
        run = whole_run(goodput_of(parameter_count(model), cluster, gpus, step_s=step_s), steps_s)
    except SpecError as error:
        if error.code != NO_PROGRESS or cluster.reliability is not None:
            raise
        # the defaults are nobody's mistake, and the answer without failures stands
        return {"goodput_frac": 0.0, "days": None, "reason": error.message}
    data = run.as_json(cost_usd=cost_usd)
    if energy is None or power_w is None or any(mwh is None for mwh in energy.values()):
        return data | {"energy_mwh": None}
    factor, slowdown = run.goodput.energy_factor(power_w, cluster.gpu.idle_w), run.goodput.slowdown
    drawn = sum((mwh or 0.0) * (factor if name == "gpu_mwh" else slowdown) for name, mwh in energy.items())
    return data | {"energy_mwh": drawn * pue}


def restarted_time_s(cluster: Cluster, gpus: int, run_s: float) -> float | None:
    """Expected time of a short run without checkpoints, which starts again from its beginning after a failure.

    Formula: ``time_per_work`` with the whole run as the interval; None if the run would hardly ever end
    """
    given = conditions_of(cluster)
    rate = sum(given.failures_per_gpu_h.values()) * gpus / HOUR_S
    if rate == 0:
        return run_s
    factor = time_per_work(run_s, 0.0, given.detection_s, given.scheduling_s, 1.0 / rate)
    # the first start is not a restart
    factor = factor * math.exp(-given.scheduling_s * rate)
    return None if factor > MOST_SLOWDOWN else run_s * factor


def poisson_range(mean: float, *, covered: float = 0.95) -> tuple[int, int]:
    """Counts between which a Poisson variable lies with this probability."""
    tail, total, low, n = (1.0 - covered) / 2.0, 0.0, None, 0
    while True:
        total += math.exp(n * math.log(mean) - mean - math.lgamma(n + 1.0)) if mean > 0 else 1.0
        if low is None and total > tail:
            low = n
        if total >= 1.0 - tail:
            return (0 if low is None else low), n
        n += 1
