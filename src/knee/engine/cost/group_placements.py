"""The process groups of every plan, placed on the nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Bools, Ints, equal_rows, expanded, names_of
from knee.engine.cost.placement import GroupPlacement, gpus_used, place, place_all, place_folded
from knee.engine.workload.traffic import Modes
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacements:
    """The process groups of every plan."""

    shard: GroupPlacement
    """FSDP and ZeRO: dp_shard x cp."""
    replicate: GroupPlacement
    """HSDP's second level; for DDP all ranks that hold the same weights. Where replicas do not meet in every step, who
    is left: nobody, or DDP's context-parallel ranks."""
    exchange: GroupPlacement
    """Replicas, where they exchange every ``sync_every`` steps."""
    tp: GroupPlacement
    cp: GroupPlacement
    pp: GroupPlacement
    ep: GroupPlacement
    """Ranks that hold different experts."""
    etp: GroupPlacement
    """Ranks that split each expert."""
    expert_shard: GroupPlacement
    """Ranks over which the experts of a rank are sharded, or which have the same ones under DDP."""
    world: GroupPlacement
    """All GPUs that a step keeps together: those of one replica where replicas do not meet in every step."""


def groups_of(model: Model, cluster: Cluster, table: PlanTable, modes: Modes) -> GroupPlacements:
    """Place every group on the nodes, once for each way to cut the GPUs."""
    axes = [getattr(table, axis) for axis in table.placement]
    first, kind = equal_rows(table.gpus, modes.ddp, table.sync_every, table.collectives, table.ep, table.etp, *axes)
    if len(first) == len(table):
        return _groups_of(model, cluster, table, modes.ddp)
    return expanded(_groups_of(model, cluster, table.rows(first), modes.ddp[first]), kind)


def _groups_of(model: Model, cluster: Cluster, table: PlanTable, ddp: Bools) -> GroupPlacements:
    per_node = gpus_used(table.gpus, cluster.node.gpus)
    copied, sharded = ("dp_replicate", "dp_shard", "cp"), ("dp_shard", "cp")
    groups = (("dp_replicate",), copied, table.placement, sharded, ("tp",), ("cp",), ("pp",))
    replicate, copies, world, shard, tp, cp, pp = place_all(table, per_node, groups)
    together = _either(ddp, copies, replicate)
    apart = table.sync_every > 1
    if apart.any():
        alone = _either(ddp, shard, place(table, per_node))
        together = _either(apart, alone, together)
        one = [axis for axis in table.placement if axis != "dp_replicate"]
        world = _either(apart, place(table, per_node, *one), world)
    alone = place(table, per_node)
    experts = (alone, alone, alone) if model.experts is None else _expert_groups(table, per_node, ddp)
    return GroupPlacements(
        etp=experts[0],
        ep=experts[1],
        expert_shard=experts[2],
        shard=shard,
        replicate=together,
        exchange=replicate,
        tp=tp,
        cp=cp,
        pp=pp,
        world=world,
    )


def _expert_groups(table: PlanTable, per_node: Ints, ddp: Bools) -> tuple[GroupPlacement, ...]:
    """Experts are laid over tp, cp and the data-parallel ranks of one replica (all of them under DDP)."""
    axes = ("tp", "cp", "dp_replicate", "dp_shard")
    split, dealt = table.etp, table.etp * table.ep
    ranks = np.where(ddp, table.dp_replicate, table.dp_shard) * table.tp * table.cp
    bounds = ((np.ones_like(split), split), (split, dealt), (dealt, ranks))
    inside = tuple(axis for axis in axes if axis != "dp_replicate")
    sharded = place_folded(table, per_node, inside, bounds)
    if not ddp.any():
        return tuple(sharded)
    copied = place_folded(table, per_node, axes, bounds)
    return tuple(_either(ddp, copy, shard) for copy, shard in zip(copied, sharded, strict=True))


def _either(where: Bools, a: GroupPlacement, b: GroupPlacement) -> GroupPlacement:
    """For each plan one group or the other."""
    return GroupPlacement(
        **{name: np.where(where, getattr(a, name), getattr(b, name)) for name in names_of(GroupPlacement)}
    )
