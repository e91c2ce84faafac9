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
    """The group over some mesh axes.

    Formula: per_node = product over the axes of clamp(gpus_per_node / stride, 1, size); nodes = ceil(ranks / per_node)
    Where:   an axis' stride is the product of the axes placed inside it
    Valid:   exact when strides and sizes divide the node; otherwise a group is cut as evenly as it can be
    """
    stride = np.ones(len(table))
    per_node, ranks = np.ones(len(table)), np.ones(len(table))
    for axis in table.placement:
        size = getattr(table, axis).astype(np.float64)
        if axis in axes:
            per_node = per_node * np.clip(np.floor(gpus_per_node / stride), 1.0, size)
            ranks = ranks * size
        stride = stride * size
    return GroupPlacement(ranks=ranks, per_node=per_node, nodes=np.ceil(ranks / per_node))


def neighbours_share_node(table: PlanTable, gpus_per_node: int, axis: str) -> NDArray[np.bool_]:
    """Whether neighbours along an axis (pipeline stages, say) sit on one node."""
    stride = np.ones(len(table))
    for inner in table.placement[: table.placement.index(axis)]:
        stride = stride * getattr(table, inner)
    size = getattr(table, axis)
    return np.asarray(stride * size <= gpus_per_node, dtype=np.bool_)
