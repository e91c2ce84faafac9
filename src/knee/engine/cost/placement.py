"""Where the ranks of a group sit: how many share a node, how many nodes the group spans, how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Bools, Floats, Ints
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
