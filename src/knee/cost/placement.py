"""Where the ranks of a group sit: how many share a node, how many nodes the group spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knee.specs.table import PlanTable

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacement:
    """One kind of process group of every plan."""

    ranks: Floats
    per_node: Floats
    """Ranks of one group on one node."""
    nodes: Floats
    """Nodes one group spans."""


def place(table: PlanTable, gpus_per_node: int, *axes: str) -> GroupPlacement:
    """The group over some mesh axes, the worst placed one where groups do not divide nodes.

    Formula: an axis of size n and stride s spans floor((o + s (n - 1)) / g) + 1 nodes of g GPUs from offset o
    Where:   groups start at multiples of s n; the worst offset in a node is g - gcd(s n, g)
    """
    stride = np.ones(len(table), dtype=np.int64)
    per_node, ranks = np.ones(len(table)), np.ones(len(table))
    for axis in table.placement:
        size = getattr(table, axis)
        if axis in axes:
            block = stride * size
            offset = np.where(table.gpus > gpus_per_node, gpus_per_node - np.gcd(block, gpus_per_node), 0)
            nodes = np.minimum((offset + stride * (size - 1)) // gpus_per_node + 1, size)
            per_node = per_node * size / nodes
            ranks = ranks * size
        stride = stride * size
    return GroupPlacement(ranks=ranks, per_node=per_node, nodes=np.ceil(ranks / per_node - 1e-9))


def nodes_apart(table: PlanTable, gpus_per_node: int, axis: str) -> Floats:
    """Nodes between neighbours along an axis: below 1 where most of them share one."""
    stride = np.ones(len(table))
    for inner in table.placement[: table.placement.index(axis)]:
        stride = stride * getattr(table, inner)
    return stride / gpus_per_node


def neighbours_share_node(table: PlanTable, gpus_per_node: int, axis: str) -> NDArray[np.bool_]:
    """Whether neighbours along an axis (pipeline stages, say) sit on one node."""
    stride = np.ones(len(table))
    for inner in table.placement[: table.placement.index(axis)]:
        stride = stride * getattr(table, inner)
    size = getattr(table, axis)
    return np.asarray(stride * size <= gpus_per_node, dtype=np.bool_)
