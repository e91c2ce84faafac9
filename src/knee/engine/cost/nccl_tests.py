"""Collective -> seconds on idle GPUs, as nccl-tests measures them.

The rings and trees of ``cost.collective_cost`` on the same links, and four effects that stand out on idle machines and
that the in-training latencies were fitted without: a ring fills a NIC better than a tree, a gather copies its shard,
NVLS depends on the ranks behind the switch, and two nodes that exchange sums use both directions of their NICs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.cost.collective_cost import Links, gather_s, ring_bandwidth, ring_turn_s, send_s
from knee.engine.cost.placement import GroupPlacement
from knee.specs.constants import constant
from knee.specs.hardware import Cluster

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "send_receive"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "send_receive")
ReduceAlgorithm = Literal["ring", "tree", "nvls"]
REDUCE_ALGORITHMS: tuple[ReduceAlgorithm, ...] = get_args(ReduceAlgorithm)
SWITCH_ADDS = {"sm90": "sm90", "sm100": "sm100", "sm103": "sm100"}
"""GPUs whose switch adds -> those for which ``catalog/constants.toml`` has what NCCL expects of them."""


def idle_s(cluster: Cluster, group: GroupPlacement, operation: Operation, message_bytes: Floats) -> Floats:
    """Seconds of one collective by the algorithm that is fastest."""
    if operation == "all_reduce":
        times = {name: reduce_by(cluster, group, message_bytes, name) for name in REDUCE_ALGORITHMS}
        # NCCL's own table has a tree through the switches ahead of a ring over two nodes, whatever the network is like
        times["ring"] = np.where(_by_switch(cluster, group), np.inf, times["ring"])
        return np.asarray(np.min(list(times.values()), axis=0))
    if operation == "send_receive":
        # every rank passes its buffer to the next one; between nodes some have to cross
        return send_s(Links.idle(cluster), group.ranks, group.nodes == 1, message_bytes, np.ones_like(group.nodes))
    links = ring_links(cluster)
    return gather_s(links, group, message_bytes) + _own_copy_s(links, group, message_bytes)


def ring_links(cluster: Cluster) -> Links:
    """Links as a ring finds them: all of a NIC, where the fabric's share of it is that of a tree.

    Formula: NIC share of a ring = NIC share of a tree / tree_bandwidth_frac
    Source:  nic_frac of InfiniBand is a fit of figure 2a, an all-reduce by trees; NVIDIA/nccl src/graph/tuning.cc
             expects a tree to reach 0.92 of the ring's bus bandwidth
    """
    fabric = cluster.fabric
    share = min(fabric.nic_frac / constant("idle", "tree_bandwidth_frac"), 1.0)
    return Links.idle(replace(cluster, fabric=replace(fabric, nic_frac=share)))


def _own_copy_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """What a gather inside a node spends on the shard that it has already, or keeps.

    Formula: c S / N / B
    Where:   c = a copy in the GPU's own memory, in steps of the ring; beside a network it is hidden
    """
    copy = constant("idle", "own_copy_frac") * message_bytes / group.ranks / ring_bandwidth(links, group)
    return np.where(group.nodes == 1, copy, 0.0)


def reduce_by(cluster: Cluster, group: GroupPlacement, message_bytes: Floats, algorithm: ReduceAlgorithm) -> Floats:
    """All-reduce by one algorithm; infinite where there is none.

    Formula: ring  base + 2 turns + 2 S (N-1)/N / B
             tree  base + 2 (per_node - 1) hop + 2 log2(nodes) level + wire; no hops inside where the switch reduces
             nvls  base + S / rate, one node only
    """
    many, switch = group.nodes > 1, _switch_adds(cluster)
    base = constant("collectives", "base_s")
    if algorithm == "nvls":
        if not switch:
            return np.full(np.shape(message_bytes), np.inf)
        alone = constant("idle", "nvls_base_s") + message_bytes / nvls_rate(cluster, group.ranks)
        return np.where(many | (group.ranks < constant("idle", "nvls_ranks")), np.inf, alone)
    if algorithm == "ring":
        links = ring_links(cluster)
        return base + 2.0 * ring_turn_s(links, group) + _bus_s(links, group, message_bytes)
    levels = np.ceil(np.log2(np.maximum(group.nodes, 1.0)))
    inside = 0.0 if switch else 2.0 * (group.per_node - 1.0) * cluster.node.hop_s
    # over two nodes the switch sets the pace, and its pipeline fills first; deeper ones have it in their levels
    fill = np.where(_by_switch(cluster, group), constant("idle", "nvls_base_s"), base)
    tree = fill + inside + 2.0 * levels * cluster.fabric.tree_level_s + _tree_wire_s(cluster, group, message_bytes)
    return np.where(many, tree, np.inf)


def _bus_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    return 2.0 * message_bytes * (group.ranks - 1) / group.ranks / ring_bandwidth(links, group)


def _tree_wire_s(cluster: Cluster, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """Bytes of a tree over the slowest link.

    Formula: more than two nodes: 2 S (N-1)/N / B, as a ring: a NIC carries the sum up and the result down
             two nodes: max(S / NICs, inside); each sends its half-sum one way, and the NICs work both ways at once
    Where:   inside = S over what NVLS reaches, or 2 S (N-1)/N over the links of the node
    Source:  NVIDIA/nccl v2.30.7 src/graph/tuning.cc: the network counts twice for NVLS trees over two nodes;
             NVIDIA/nccl-tests#22: bus bandwidth above the wire over two nodes
    """
    node, fabric = cluster.node, ring_links(cluster).cluster.fabric
    across = message_bytes / (group.per_node * fabric.nic_bytes_per_s * fabric.nic_frac)
    bus = 2.0 * message_bytes * (group.ranks - 1) / group.ranks
    inside = bus / (node.link_bytes_per_s * node.link_frac)
    if _switch_adds(cluster):
        one_node = 2.0 * (group.per_node - 1) / group.per_node * nvls_rate(cluster, group.per_node)
        by_switch = bus / np.maximum(one_node * constant("idle", "nvls_two_nodes_frac"), 1.0)  # one GPU has no rate
        inside = np.where(group.per_node >= constant("idle", "nvls_ranks"), by_switch, inside)
    exchange = np.maximum(across, np.where(group.per_node > 1, inside, 0.0))
    return np.where(group.nodes == 2, exchange, _bus_s(Links.idle(cluster), group, message_bytes))


def _by_switch(cluster: Cluster, group: GroupPlacement) -> Bools:
    """Whether two nodes exchange sums that their switches made."""
    enough = group.per_node >= constant("idle", "nvls_ranks")
    return np.asarray((group.nodes == 2) & enough & _switch_adds(cluster), dtype=np.bool_)


def _switch_adds(cluster: Cluster) -> bool:
    return cluster.node.nvls and cluster.gpu.arch in SWITCH_ADDS


def nvls_rate(cluster: Cluster, ranks: Floats) -> Floats:
    """Bytes of an all-reduce per second through the switch that adds and multicasts.

    Formula: efficiency link / (1 + 1/N)
    Where:   a GPU sends its buffer to be added, and the 1/N of the sum that it is the head of to be multicast
    Source:  NVIDIA/nccl v2.30.7 src/graph/tuning.cc: efficiency .85 (Hopper), .74 (Blackwell)
    """
    node = cluster.node
    efficiency = constant("idle", f"nvls_{SWITCH_ADDS[cluster.gpu.arch]}_frac")
    return np.asarray(efficiency * node.link_bytes_per_s * node.link_frac / (1.0 + 1.0 / np.maximum(ranks, 1.0)))
