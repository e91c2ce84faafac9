"""Collectives in levels: exchange between sites, buildings, pods and nodes, then inside each. It is a what-if."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from knee.arrays import Floats
from knee.cost.placement import GroupPlacement
from knee.specs.constants import constant

if TYPE_CHECKING:
    from knee.cost.collective_cost import Links


def leveled_gather_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """All-gather or reduce-scatter level by level, the outermost first (a reduce-scatter: last).

    Formula: sum over levels of base + (r - 1) hop + S_k (r - 1) / r / B
    Where:   level k joins r groups; S_k = S over the ranks that one group of the level has, because each rank of it
             exchanges its own part with the same rank of the other groups. B of a tier is a NIC's rate over the tier's
             oversubscription; inside a node it is the link's
    Source:  PCCL (arXiv 2504.18658): up to 5.7 times as fast as NCCL's ring on 2,048 A100
    Valid:   a what-if: no release of NCCL has it. Levels follow one another
    """
    base, total = constant("collectives", "base_s"), np.zeros_like(group.ranks)
    inside = np.ones_like(group.ranks)
    for ranks, hop_s, rate in _levels(links, group):
        share = message_bytes / inside * (ranks - 1.0) / np.maximum(ranks, 1.0)
        level = base + links.hop_scale * (ranks - 1.0) * hop_s + share / rate
        total = total + np.where(ranks > 1.0, level, 0.0)
        inside = inside * np.maximum(ranks, 1.0)
    return total


def leveled_all_reduce_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """A reduce-scatter inside first, then outwards, and a gather back: twice the time of one."""
    return 2.0 * leveled_gather_s(links, group, message_bytes)


def _levels(links: Links, group: GroupPlacement) -> Iterator[tuple[Floats, float, Floats]]:
    """(groups that a level joins, latency of a hop, bytes per second of a rank), from the innermost level."""
    node, fabric = links.cluster.node, links.cluster.fabric
    link = np.minimum(node.link_bytes_per_s, node.pair_bytes_per_s * np.maximum(group.per_node - 1.0, 1.0))
    yield group.per_node, node.hop_s, link * node.link_frac
    nic = fabric.nic_bytes_per_s * fabric.nic_frac * links.bandwidth_scale
    left, hop_s, rate, below = group.nodes, fabric.hop_s, nic, np.ones_like(group.nodes)
    for tier in sorted(fabric.tiers, key=lambda one: one.nodes):
        # nodes of the group below one group of switches of the tier
        within = np.where(group.span > tier.nodes, np.maximum(tier.nodes * group.nodes / group.span, 1.0), group.nodes)
        yield np.maximum(within / below, 1.0), hop_s, rate * np.ones_like(left)
        below = np.maximum(within, below)
        # only what crosses a tier pays for it
        hop_s, rate = hop_s + tier.hop_s, np.minimum(rate, nic / tier.oversubscription)
    yield np.maximum(left / below, 1.0), hop_s, rate * np.ones_like(left)
