"""What a restart consists of: new processes, a replaced node, initialisation, reading of the checkpoint, warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from knee.reliability.defaults import Conditions, initialisation_time_s
from knee.specs.reliability import Cause

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
        """After a failure."""
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
