"""Flat or hierarchical collectives, as a choice of the search: where a job crosses a slow tier of the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knee.base.arrays import Ints
from knee.engine.cost.placement import gpus_used
from knee.engine.simulator import Results
from knee.specs.hardware import Cluster
from knee.specs.plan import COLLECTIVES, Collectives
from knee.specs.plan_table import COLUMNS, PlanTable

FLAT, HIERARCHICAL = COLLECTIVES.index("flat"), COLLECTIVES.index("hierarchical")


def searched_collectives(cluster: Cluster, gpus: int) -> tuple[Collectives, ...]:
    """Both kinds if the job crosses a tier that is oversubscribed, or farther away than a hop between nodes; else none
    that a plan does not have anyway, because other searches would take twice as long for nothing."""
    fabric = cluster.fabric
    nodes = -(-gpus // int(gpus_used(np.array(gpus), cluster.node.gpus)))
    slow = [tier for tier in fabric.tiers if tier.oversubscription > 1 or tier.hop_s > fabric.hop_s]
    return COLLECTIVES if any(nodes > tier.nodes for tier in slow) else ()


def with_each(table: PlanTable, choices: tuple[Collectives, ...]) -> PlanTable:
    """Every plan with each kind of collectives."""
    if len(choices) == 1:
        return table
    row, choice = (grid.ravel() for grid in np.indices((len(table), len(choices))))
    return replace(table.rows(row), collectives=np.array([COLLECTIVES.index(name) for name in choices])[choice])


def without_twins(table: PlanTable, results: Results) -> Ints:
    """Rows, less those of hierarchical plans that take exactly what the same plan with flat collectives takes."""
    if not (table.collectives == HIERARCHICAL).any() or not (table.collectives == FLAT).any():
        return np.arange(len(table))
    names = [name for name in COLUMNS if name != "collectives"]
    columns = [np.nan_to_num(getattr(table, name), nan=-1.0).tolist() for name in names]
    takes = [results.step_s.tolist(), results.power_w_per_gpu.tolist()]
    keys = list(zip(*columns, *takes, strict=True))
    flat = {key for key, kind in zip(keys, table.collectives.tolist(), strict=True) if kind == FLAT}
    kept = [kind == FLAT or key not in flat for key, kind in zip(keys, table.collectives.tolist(), strict=True)]
    return np.flatnonzero(kept)
