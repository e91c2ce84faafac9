"""Goodput: the share of a run's time that trains, what takes the rest, and which cause is to blame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from knee.errors import SpecError
from knee.reliability.checkpoint import Checkpoint, checkpoint_of
from knee.reliability.defaults import Conditions, conditions_of
from knee.reliability.intervals import best_interval_s, daly_interval_s, time_per_work, young_interval_s
from knee.reliability.restart import Restart, restart_of
from knee.specs.hardware import Cluster
from knee.units import DAY_S, HOUR_S, duration

Part = Literal[
    "training", "checkpoints", "lost_work", "detection", "restart", "planned_stops", "evaluation", "slow_nodes"
]
NO_PROGRESS = "no-progress"
SHORTEST_S = 1e-9
"""Between checkpoints that cost nothing."""
MOST_SLOWDOWN = 100.0
"""Wall clock over the time of steps; a run that takes longer is said to make no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """A run on so many GPUs, per second of its wall clock."""

    gpus: int
    paid_gpus: int
    """With those of the spare nodes."""
    goodput_frac: float
    """Share of the wall clock in which training makes progress that is kept."""
    parts: dict[Part, float]
    """Shares of the wall clock; they sum to 1."""
    causes: dict[str, float]
    """Cause of interruptions -> share of the wall clock that it takes."""
    interruptions_per_day: dict[str, float]
    """By cause, planned stops included."""
    mean_s: float | None
    """Mean time between failures; None without failures."""
    interval_s: float | None
    """Training time between checkpoints; None if none is needed."""
    young_s: float | None
    daly_s: float | None
    checkpoint: Checkpoint
    restart: Restart
    planned_per_s: float
    """Planned stops per second of the run between them."""
    conditions: Conditions

    @property
    def slowdown(self) -> float:
        """Wall clock divided by the time of the steps alone."""
        return 1.0 / self.goodput_frac

    @property
    def cost_factor(self) -> float:
        """Rent with failures and spare nodes, divided by that of the steps alone."""
        return self.slowdown * self.paid_gpus / self.gpus

    @property
    def all_interruptions_per_day(self) -> float:
        """Of all causes."""
        return sum(self.interruptions_per_day.values())

    def energy_factor(self, power_w: float, idle_w: float) -> float:
        """Energy of the GPUs with failures, divided by that of the steps alone.

        Formula: (training + lost work + slow nodes + evaluation) * power + the rest * idle power, over training * power
        """
        busy = sum(self.parts[name] for name in ("training", "lost_work", "slow_nodes", "evaluation"))
        return (busy + (1.0 - busy) * idle_w / power_w) / self.goodput_frac

    def as_json(self) -> dict[str, Any]:
        """Plain data; every key carries its unit."""
        return {
            "goodput_frac": self.goodput_frac,
            "parts_frac": dict(self.parts),
            "causes_frac": dict(self.causes),
            "interruptions_per_day": dict(self.interruptions_per_day),
            "mean_time_between_failures_s": self.mean_s,
            "checkpoint_interval_s": self.interval_s,
            "young_interval_s": self.young_s,
            "daly_interval_s": self.daly_s,
            "checkpoint_bytes": self.checkpoint.total_bytes,
            "checkpoint_wait_s": self.checkpoint.wait_s,
            "checkpoint_write_s": self.checkpoint.write_s,
            "restart_s": self.restart.failed_s,
            "initialisation_s": self.restart.initialisation_s,
            "detection_s": self.conditions.detection_s,
            "spare_nodes": self.conditions.spare_nodes,
            "defaults": list(self.conditions.defaults),
        }


def goodput_of(params: float, cluster: Cluster, gpus: int, *, step_s: float = 0.0) -> Goodput:
    """What failures leave of a run's time.

    Formula: training = 1 / ((1 + evaluation + slow nodes) * ``time_per_work`` * (1 + planned stops))
    Where:   params are all parameters of the model; every failure stops the whole run, which restarts from its last
             checkpoint
    Valid:   independent failures with constant rates
    """
    given = conditions_of(cluster)
    saved = checkpoint_of(params, cluster, gpus, given)
    per_s = {cause: rate * gpus / HOUR_S for cause, rate in given.failures_per_gpu_h.items()}
    rate = sum(per_s.values())
    mean = 1.0 / rate if rate else None
    restart = restart_of(given, gpus, per_s, saved.read_s)
    interval = _interval_s(given, saved, mean, gpus, step_s)
    planned_per_s = given.planned_stops_per_gpu_h * gpus / HOUR_S
    planned = planned_per_s * (saved.wait_s + restart.planned_s)
    parts = _parts(given, saved, restart, gpus=gpus, mean_s=mean, interval_s=interval, planned=planned)
    lost = parts["lost_work"] + parts["detection"] + parts["restart"]
    up = 1.0 - parts["detection"] - parts["planned_stops"]
    return Goodput(
        gpus=gpus,
        paid_gpus=gpus + cluster.node.gpus * (given.spare_nodes or 0),
        goodput_frac=parts["training"],
        parts=parts,
        causes={cause: lost * one / rate if rate else 0.0 for cause, one in per_s.items()}
        | {"planned": parts["planned_stops"]},
        interruptions_per_day={cause: one * up * DAY_S for cause, one in per_s.items()}
        | {"planned": planned_per_s * DAY_S / (1.0 + planned)},
        mean_s=mean,
        interval_s=interval,
        young_s=young_interval_s(saved.wait_s, mean) if mean else None,
        daly_s=daly_interval_s(saved.wait_s, mean) if mean else None,
        checkpoint=saved,
        restart=restart,
        planned_per_s=planned_per_s,
        conditions=given,
    )


def _parts(
    given: Conditions,
    saved: Checkpoint,
    restart: Restart,
    *,
    gpus: int,
    mean_s: float | None,
    interval_s: float | None,
    planned: float,
) -> dict[Part, float]:
    """What a second of the wall clock consists of. ``planned`` are seconds of planned stops per second between them."""
    evaluation = given.evaluation_s / given.evaluation_interval_s
    slow = given.slow_frac * -math.expm1(-given.slow_nodes_per_gpu_h * gpus / HOUR_S * given.slow_detection_s)
    base, waits = 1.0 + evaluation + slow, 0.0 if interval_s is None else saved.wait_s / interval_s
    stretched, down, again = 1.0 + waits, 0.0, 0.0
    if mean_s is not None and interval_s is not None:
        begins = restart.failed_s
        stretched = time_per_work(interval_s, saved.wait_s, given.detection_s, begins + saved.write_s, mean_s)
        if stretched > MOST_SLOWDOWN:
            long = {"a restart": begins, "a checkpoint interval": interval_s}
            what = max(long, key=lambda name: long[name])
            raise _no_progress(gpus, mean_s, f"{what} of {duration(long[what])}")
        count = stretched / (mean_s + given.detection_s)
        down, again = count * given.detection_s, count * mean_s * -math.expm1(-begins / mean_s)
    total = base * stretched * (1.0 + planned)
    return {
        "training": 1.0 / total,
        "checkpoints": base * waits / total,
        "lost_work": base * (stretched - 1.0 - waits - down - again) / total,
        "detection": base * down / total,
        "restart": base * again / total,
        "planned_stops": base * stretched * planned / total,
        "evaluation": evaluation / total,
        "slow_nodes": slow / total,
    }


def _interval_s(given: Conditions, saved: Checkpoint, mean_s: float | None, gpus: int, step_s: float) -> float | None:
    """Given or best; at least a step and the time to write a checkpoint, and no checkpoints without failures."""
    if mean_s is None:
        return given.checkpoint_interval_s
    takes = saved.wait_s + saved.write_s
    if takes >= mean_s:
        raise _no_progress(gpus, mean_s, f"a checkpoint of {duration(takes)}")
    if given.checkpoint_interval_s is not None:
        if given.checkpoint_interval_s < saved.write_s - saved.wait_s:
            raise SpecError(
                f"checkpoint_interval_s is {duration(given.checkpoint_interval_s)}, but writing a checkpoint takes "
                f"{duration(saved.write_s)}",
                hint="use a longer interval or faster storage",
                code="contradiction",
                field="reliability.checkpoint_interval_s",
            )
        return given.checkpoint_interval_s
    return max(best_interval_s(saved.wait_s, mean_s), saved.write_s - saved.wait_s, step_s, SHORTEST_S)


def _no_progress(gpus: int, mean_s: float, what: str) -> SpecError:
    return SpecError(
        f"{what} is too long for the {duration(mean_s)} between failures of {gpus:,} GPUs: the run makes no progress",
        hint="use fewer GPUs, lower failure rates, faster storage, a shorter checkpoint_interval_s, or checkpoint "
        "'async' or 'memory' in [reliability]",
        code=NO_PROGRESS,
        field="reliability",
    )
