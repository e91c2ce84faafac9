"""Where the ranks of a group sit: how many share a node, how many nodes the group spans, how far apart they are;
and the process groups of every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Bools, Floats, Ints, equal_rows, expanded, names_of
from knee.engine.workload.traffic import Modes
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import COLLECTIVES
from knee.specs.plan_table import PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacement:
    """One kind of process group of every plan, as its worst placed member group sits."""

    ranks: Floats
    per_node: Floats
    """Ranks of one group on one node, mean over its nodes."""
    nodes: Floats
    """Nodes that one group uses."""
    span: Floats
    """Nodes from its first to its last one, those between included."""
    leveled: Bools = field(default_factory=lambda: np.zeros((), dtype=np.bool_))
    """Whether its collectives may go level by level."""


def gpus_used(gpus: Ints, per_node: int) -> Ints:
    """GPUs that a job takes of each node, or of each NVLink domain, where its count does not fill them.

    Formula: the largest divisor of the count between 3/4 of a node and a whole one; else whole nodes and a part of one
    Where:   equal parts keep groups inside domains: 256 GPUs take 64 of each 72, and not 72 of three and 40 of another
    Source:  MLPerf Training v5.0 on GB200 NVL72: 64 GPUs of each domain
    """
    used = np.full(np.shape(gpus), per_node, dtype=np.int64)
    open_ = (gpus > per_node) & (gpus % per_node != 0)
    for part in range(-(-3 * per_node // 4), per_node) if open_.any() else ():
        used = np.where(open_ & (gpus % part == 0), part, used)
    return used


def _blocks(table: PlanTable, groups: Sequence[Sequence[str]]) -> list[tuple[Ints, Ints]]:
    """(stride, size) of the groups' parts, a row for each group: axes that lie side by side are one part."""
    stride = np.ones(len(table), dtype=np.int64)
    start = size = np.ones((len(groups), len(table)), dtype=np.int64)
    blocks = []
    for axis in table.placement:
        degree = getattr(table, axis)
        has = np.array([axis in axes for axes in groups])[:, None]
        # an axis of size 1 between two parts does not part them
        apart = ~has & (degree > 1)
        blocks.append((start, np.where(apart, size, 1)))
        start = np.where(has & (size == 1), stride, start)
        size = np.where(has, size * degree, np.where(apart, 1, size))
        stride = stride * degree
    return [*blocks, (start, size)]


def place(table: PlanTable, gpus_per_node: int | Ints, *axes: str) -> GroupPlacement:
    """The group over some mesh axes."""
    return place_all(table, gpus_per_node, [axes])[0]


def place_all(table: PlanTable, gpus_per_node: int | Ints, groups: Sequence[Sequence[str]]) -> list[GroupPlacement]:
    """Groups over some mesh axes each, the worst placed one where groups do not divide nodes.

    Formula: a part of size n and stride s uses min(n, floor((o + s (n - 1)) / g) + 1) nodes of g GPUs from offset o
    Where:   parts start at multiples of s n, plus up to s - 1; the worst offset in a node is
             g - d + min(s, d) - 1 with d = gcd(s n, g), and 0 for a part that is the whole job
    Valid:   exact for one part (a test enumerates); parts that other axes separate are taken as nested
    """
    return _placed(table, gpus_per_node, len(groups), _blocks(table, groups))


def place_folded(
    table: PlanTable, gpus_per_node: int | Ints, axes: Sequence[str], bounds: Sequence[tuple[Ints, Ints]]
) -> list[GroupPlacement]:
    """Groups of experts, each over part of the ranks that some mesh axes have together: every ``low``-th of ``high``
    neighbours, as Megatron folds etp, ep and the replicas of experts, innermost first, over tp, cp and dp."""
    low, high = (np.array(side) for side in zip(*bounds, strict=True))
    return _placed(table, gpus_per_node, len(bounds), _folded(table, axes, low, high))


def _folded(table: PlanTable, axes: Sequence[str], low: Ints, high: Ints) -> list[tuple[Ints, Ints]]:
    """(stride, size) of the groups' parts, one for each axis that they have ranks on."""
    stride, inner = np.ones(len(table), dtype=np.int64), np.ones(len(table), dtype=np.int64)
    start, size = np.ones_like(low), np.ones_like(low)
    blocks = []
    for axis in table.placement:
        degree = getattr(table, axis)
        if axis in axes:
            first, last = np.clip(low, inner, inner * degree), np.clip(high, inner, inner * degree)
            here, at = last // first, stride * (first // inner)
            # ranks that follow on those of the axis before are one part with them
            follows = (here > 1) & (size > 1) & (at == start * size)
            blocks.append((start, np.where(follows | (here == 1), 1, size)))
            start = np.where(follows | (here == 1), start, at)
            size = np.where(here == 1, size, np.where(follows, size * here, here))
            inner = inner * degree
        stride = stride * degree
    return [*blocks, (start, size)]


def _placed(
    table: PlanTable, gpus_per_node: int | Ints, groups: int, blocks: list[tuple[Ints, Ints]]
) -> list[GroupPlacement]:
    """Groups whose ranks lie in parts: rows are groups, columns are plans."""
    shape = (groups, len(table))
    per_node, ranks, reach = np.ones(shape), np.ones(shape), np.zeros(shape, dtype=np.int64)
    for stride, size in blocks:
        block = stride * size
        common = np.gcd(block, gpus_per_node)
        offset = gpus_per_node - common + np.minimum(stride, common) - 1
        offset = np.where((table.gpus <= gpus_per_node) | (block >= table.gpus) & (stride == 1), 0, offset)
        nodes = np.minimum((offset + stride * (size - 1)) // gpus_per_node + 1, size)
        per_node = per_node * size / nodes
        ranks = ranks * size
        reach = reach + stride * (size - 1)
    nodes = np.ceil(ranks / per_node - 1e-9)
    span = np.maximum(np.floor(reach / gpus_per_node) + 1.0, nodes)
    leveled = table.collectives == COLLECTIVES.index("hierarchical")
    return [
        GroupPlacement(ranks=ranks[i], per_node=per_node[i], nodes=nodes[i], span=span[i], leveled=leveled)
        for i in range(groups)
    ]


def nodes_apart(table: PlanTable, gpus_per_node: int | Ints, axis: str) -> Floats:
    """Nodes between neighbours along an axis: below 1 where most of them share one."""
    stride = np.ones(len(table))
    for inner in table.placement[: table.placement.index(axis)]:
        stride = stride * getattr(table, inner)
    return stride / gpus_per_node


# Waiting for the last of many ranks.


def expected_maximum(ranks: NDArray[np.int64] | Floats) -> Floats:
    """Expected maximum of n standard normal draws, in standard deviations.

    Formula: Phi^-1((n - 0.375) / (n + 0.25))   (Blom 1958); 0 for one GPU, 1.43 for 8, 3.43 for 2,048
    """
    values, inverse = np.unique(ranks, return_inverse=True)
    normal = NormalDist()
    return np.array([normal.inv_cdf((n - 0.375) / (n + 0.25)) for n in values.tolist()])[inverse]


def skew_wait_s(skew_s: float, group: GroupPlacement) -> Floats:
    """What a collective between nodes waits for the last rank to arrive.

    Formula: skew * E[max of N]
    Where:   skew is one standard deviation of the ranks' arrival at a collective; slack hides it like its other time
    """
    if not np.any(skew_s):
        return np.zeros_like(group.ranks)
    return np.where(group.nodes > 1, skew_s * expected_maximum(group.ranks), 0.0)


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
    return GroupPlacement(
        **{name: np.where(where, getattr(a, name), getattr(b, name)) for name in names_of(GroupPlacement)}
    )
