"""Goodput: the share of a run's time that trains, what takes the rest, and which cause is to blame; with
the conditions of a run, from the cluster file or the catalogue's defaults."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

import numpy as np

from knee.base import units
from knee.base.arrays import normal_deviations
from knee.base.errors import SpecError
from knee.base.units import DAY_S, HOUR_S, duration
from knee.specs.catalog import Source, catalog_file
from knee.specs.fields import unit_of
from knee.specs.hardware import CAUSES, Cause, CheckpointMethod, Cluster, Reliability, Startup

NO_DEFAULT = ("initialisation_s", "checkpoint_interval_s", "spare_nodes")
"""Fields whose absence means something else than a number."""
RATE_ENDS = ("rate_low_frac", "rate_high_frac")
"""Failure rates of clusters over the default: the 10th and the 90th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Every value of ``Reliability``, given or default."""

    failures_per_gpu_h: dict[Cause, float]
    planned_stops_per_gpu_h: float
    detection_s: float
    scheduling_s: float
    initialisation_s: float | None
    startup: Startup
    warmup_s: float
    checkpoint: CheckpointMethod
    checkpoint_interval_s: float | None
    storage_bytes_per_s: float
    host_copy_bytes_per_s: float
    evaluation_s: float
    evaluation_interval_s: float
    spare_nodes: int | None
    repair_s: float
    slow_nodes_per_gpu_h: float
    slow_frac: float
    slow_detection_s: float
    defaults: tuple[str, ...]
    """Fields that have their default."""

    @property
    def rate_spread(self) -> float:
        """Standard deviation of the logarithm of the failure rate: between clusters where no rate is given, else 0."""
        if any(field not in self.defaults for field in CAUSES.values()):
            return 0.0
        low, high = (default_of("run", name)[0] for name in RATE_ENDS)
        return math.log(high / low) / (2.0 * normal_deviations(0.8))


DEFAULTS = "reliability.toml"
"""The catalogue's file of failure rates and restart times."""


@cache
def default_of(table: str, name: str) -> tuple[Any, Source]:
    """A value of catalog/reliability.toml in base SI, and its source."""
    entry = catalog_file(DEFAULTS)[table][name]
    unit = unit_of(name)
    value = units.parse(entry["value"], unit or "frac") if unit or table == "run" else entry["value"]
    return value, Source(value=entry["value"], kind=entry["kind"], text=entry["source"])


def conditions_of(cluster: Cluster) -> Conditions:
    """What is known of a cluster, with the defaults named."""
    given = cluster.reliability or Reliability()
    values: dict[str, Any] = {}
    defaults = []
    for field in fields(Reliability):
        value = getattr(given, field.name)
        if value is None and field.name not in NO_DEFAULT:
            value, _ = default_of("defaults", field.name)
            defaults.append(field.name)
        values[field.name] = value
    rates = {cause: values.pop(name) for cause, name in CAUSES.items()}
    return Conditions(failures_per_gpu_h=rates, defaults=tuple(defaults), **values)


def rate_words(defaults: Collection[str]) -> str:
    """Whose failure rates a run has, by the fields that have their default."""
    own = [name for name in CAUSES.values() if name not in defaults]
    if not own:
        return "default failure rates"
    return "the cluster's failure rates" if len(own) == len(CAUSES) else "failure rates of the cluster and defaults"


def initialisation_source(startup: Startup) -> Source:
    """Where the initialisation times of a communication library come from."""
    points = catalog_file(DEFAULTS)["initialisation"][startup]
    return Source(value=points["time_s"], kind=points["kind"], text=points["source"])


def initialisation_time_s(startup: Startup, gpus: int) -> float:
    """Time until every rank can communicate.

    Formula: a straight line between published points in the logarithms of GPUs and seconds, with its slope beyond the
             last point, and in proportion to the GPUs below the first
    Source:  arXiv 2510.20171, in catalog/reliability.toml
    Valid:   8,192 to 98,304 GPUs
    """
    points = catalog_file(DEFAULTS)["initialisation"][startup]
    counts, times = np.log(points["gpus"]), np.log(points["time_s"])
    wanted = math.log(gpus)
    if wanted <= counts[0]:
        return float(points["time_s"][0] * gpus / points["gpus"][0])
    slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2])
    beyond = max(wanted - counts[-1], 0.0) * slope
    return float(np.exp(np.interp(wanted, counts, times) + beyond))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run."""

    total_bytes: float
    wait_s: float
    """Training waits."""
    write_s: float
    """Time after that until the checkpoint can be used, while training goes on."""
    read_s: float
    """Time that a restart takes to read it."""


def checkpoint_of(params: float, cluster: Cluster, gpus: int, conditions: Conditions) -> Checkpoint:
    """A checkpoint by bytes, rates and method.

    Formula: wait = bytes / (GPUs * rate), with the storage's rate if it blocks, and that of the copy to the host if not
    Where:   bytes = 14 per parameter; all GPUs write equal parts at the same time
    Source:  ``run.checkpoint_bytes_per_param`` in catalog/reliability.toml; in-memory replicas as in Gemini (SOSP 2023)
    Valid:   the rate of the storage grows with the GPUs of the run
    """
    total = default_of("run", "checkpoint_bytes_per_param")[0] * params
    part = total / gpus
    stored_s, copied_s = part / conditions.storage_bytes_per_s, part / conditions.host_copy_bytes_per_s
    # a replica goes to another node, and comes back from there
    sent_s = part / (cluster.fabric.nic_bytes_per_s * cluster.fabric.nic_frac)
    waits = {"blocking": stored_s, "async": copied_s, "memory": copied_s}
    writes = {"blocking": 0.0, "async": stored_s, "memory": sent_s}
    reads = {"blocking": stored_s, "async": stored_s, "memory": sent_s + copied_s}
    method = conditions.checkpoint
    return Checkpoint(total_bytes=total, wait_s=waits[method], write_s=writes[method], read_s=reads[method])


# What a restart consists of: new processes, a replaced node, initialisation, reading of the checkpoint, warm-up.

NODE_CAUSES: tuple[Cause, ...] = ("gpu", "gpu_memory", "host")
"""Causes that take a node out until it is repaired."""
FEWEST_NODES = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The parts of a restart, one after the other."""

    scheduling_s: float
    node_wait_s: float
    """For a spare or a repaired node, mean over all failures."""
    initialisation_s: float
    read_s: float
    """Of the checkpoint."""
    warmup_s: float

    @property
    def planned_s(self) -> float:
        """After a planned stop, which waits for no node."""
        return self.scheduling_s + self.initialisation_s + self.read_s + self.warmup_s

    @property
    def failed_s(self) -> float:
        """Seconds until training goes on after a failure."""
        return self.planned_s + self.node_wait_s


def restart_of(given: Conditions, gpus: int, per_s: Mapping[Cause, float], read_s: float) -> Restart:
    """A restart on so many GPUs, which fail so often."""
    started = given.initialisation_s
    if started is None:
        started = initialisation_time_s(given.startup, gpus) if gpus > 1 else 0.0
    rate, broken = sum(per_s.values()), sum(per_s[cause] for cause in NODE_CAUSES)
    # only failures that take a node out wait for a repair
    share = broken / rate if rate else 0.0
    wait_s = spare_wait_s(given.spare_nodes, broken * given.repair_s, given.repair_s)
    return Restart(
        scheduling_s=given.scheduling_s,
        node_wait_s=share * wait_s,
        initialisation_s=started,
        read_s=read_s,
        warmup_s=given.warmup_s,
    )


def spare_wait_s(spares: int | None, in_repair: float, repair_s: float) -> float:
    """Mean time until a failed node is replaced.

    Formula: P(n > spares) repair / (spares + 1), n Poisson with mean a
    Where:   a nodes in repair on average; without a spare left, at least spares + 1 nodes are in repair, and the first
             of them is ready after repair / (spares + 1)
    Valid:   independent repairs with an exponential distribution; an upper bound, as more nodes may be in repair; a
             replacement is always there if spares is None
    """
    if spares is None or in_repair < FEWEST_NODES:
        return 0.0
    log_a = math.log(in_repair)
    # far above the mean, nothing is left to add
    most = min(spares, int(in_repair + 40.0 * math.sqrt(in_repair) + 100.0))
    enough = sum(math.exp(n * log_a - in_repair - math.lgamma(n + 1.0)) for n in range(most + 1))
    return max(1.0 - enough, 0.0) * repair_s / (spares + 1.0)


# How often to save a checkpoint, and what a run with failures takes: formulas of Young and Daly, and the exact ones.
# All of them take the failures of a run to be independent, with a constant rate.


def young_interval_s(wait_s: float, mean_s: float) -> float:
    """Young's best time between checkpoints.

    Formula: sqrt(2 C M)
    Where:   C time that training waits for a checkpoint, M mean time between failures
    Source:  Young, Communications of the ACM 17(9), 1974
    Valid:   C much smaller than M
    """
    return math.sqrt(2.0 * wait_s * mean_s)


def daly_interval_s(wait_s: float, mean_s: float) -> float:
    """Daly's best time between checkpoints.

    Formula: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2M, else M
    Source:  Daly, Future Generation Computer Systems 22(3), 2006
    """
    if wait_s >= 2.0 * mean_s:
        return mean_s
    ratio = wait_s / (2.0 * mean_s)
    return young_interval_s(wait_s, mean_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - wait_s


def best_interval_s(wait_s: float, mean_s: float) -> float:
    """The time between checkpoints with the shortest expected run.

    Formula: the root x of 1 - x = exp(-(x + C / M)), times M
    Where:   the derivative of ``time_per_work`` is zero there; it depends neither on detection nor on the restart
    Source:  Daly 2006, solved by bisection
    """
    cost, low, high = wait_s / mean_s, 0.0, 1.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if -math.expm1(-(middle + cost)) > middle:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high) * mean_s


def time_per_work(interval_s: float, wait_s: float, down_s: float, again_s: float, mean_s: float) -> float:
    """Expected seconds per second of training.

    Formula: (M + D) exp(R / M) (exp((t + C) / M) - 1) / t
    Where:   t training between checkpoints, C wait for one, M mean time between failures, D time after a failure in
             which no other can happen (detection), R time in which one can (restart; writing of the last checkpoint)
    Source:  Daly 2006, with the downtime of Bougeret et al., SC 2011. It is exact: a run is a renewal process with
             cycles of M + D, each of which saves t as often as failures leave time for
    """
    exponent = again_s / mean_s + (interval_s + wait_s) / mean_s
    if exponent > 500.0:
        return math.inf
    return (mean_s + down_s) / interval_s * math.exp(again_s / mean_s) * math.expm1((interval_s + wait_s) / mean_s)


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
            text = f"checkpoint_interval_s is {duration(given.checkpoint_interval_s)}, but writing a checkpoint takes "
            text += f"{duration(saved.write_s)}"
            hint = "use a longer interval or faster storage"
            raise SpecError(text, hint=hint, code="contradiction", field="reliability.checkpoint_interval_s")
        return given.checkpoint_interval_s
    return max(best_interval_s(saved.wait_s, mean_s), saved.write_s - saved.wait_s, step_s, SHORTEST_S)


def _no_progress(gpus: int, mean_s: float, what: str) -> SpecError:
    text = f"{what} is too long for the {duration(mean_s)} between failures of {gpus:,} GPUs: the run makes no progress"
    hint = "use fewer GPUs, lower failure rates, faster storage, a shorter checkpoint_interval_s, or checkpoint "
    hint += "'async' or 'memory' in [reliability]"
    return SpecError(text, hint=hint, code=NO_PROGRESS, field="reliability")
