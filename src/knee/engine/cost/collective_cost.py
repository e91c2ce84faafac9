"""Collective -> seconds: NCCL's algorithms with idle or in-training latency and bandwidth.

The algorithms of NCCL (ring, tree, NVLS, PAT, send/receive) carry the cluster's and the stack's parameters,
because inside a training step a hop takes longer than NCCL's own table says and not every byte per second arrives.
The last part has them on idle GPUs, as nccl-tests measures them, with four effects that stand out there and that the
in-training latencies were fitted without: a ring fills a NIC better than a tree, a gather copies its shard, NVLS
depends on the ranks behind the switch, and two nodes that exchange sums use both directions of their NICs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.cost.placement import GroupPlacement
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.profile import Pat, Profile


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """A cluster's links as a stack finds them."""

    cluster: Cluster
    hop_scale: float
    bandwidth_scale: float
    pat: Pat

    @classmethod
    def in_training(cls, cluster: Cluster, profile: Profile) -> Links:
        """The links as collectives see them beside a running training step."""
        return cls(
            cluster=cluster, hop_scale=profile.hop_scale, bandwidth_scale=profile.bandwidth_scale_frac, pat=profile.pat
        )

    @classmethod
    def idle(cls, cluster: Cluster) -> Links:
        """The links of idle GPUs, as nccl-tests measures them."""
        return cls(cluster=cluster, hop_scale=1.0, bandwidth_scale=1.0, pat="off")


def ring_bandwidth(links: Links, group: GroupPlacement) -> Floats:
    """Bytes per second around a ring, per direction.

    Formula: one node: min(link, pair * (ranks - 1)); several: min(that, per_node * nic), divided by the
             oversubscription of a tier that the ring crosses at random
    Where:   per_node ranks of the group bring per_node NICs; the other ranks of the node serve other groups
    """
    node, fabric = links.cluster.node, links.cluster.fabric
    # the wires between GPUs of one node that the group can use: on a switch any pair has the whole link
    inside = np.minimum(node.link_bytes_per_s, node.pair_bytes_per_s * np.maximum(group.per_node - 1.0, 1.0))
    inside = inside * node.link_frac
    nic = fabric.nic_bytes_per_s * fabric.nic_frac * links.bandwidth_scale
    outside = group.per_node * nic / _oversubscription(links, group)
    # with one rank per node a ring has no hop inside the node
    several = np.where(group.per_node > 1, np.minimum(inside, outside), outside)
    return np.where(group.nodes > 1, several, inside)


def _oversubscription(links: Links, group: GroupPlacement) -> Floats:
    """What a tier takes from a ring.

    In network order one flow per rail leaves a switch group for each ring that has nodes there, so that the uplinks of
    those nodes serve it; at random every flow may cross.
    """
    factor = np.ones_like(group.nodes)
    for tier in links.cluster.fabric.tiers:
        inside = np.maximum(tier.nodes * group.nodes / group.span, 1.0)  # nodes of one ring below one switch group
        share = inside if links.cluster.fabric.topology_aware else np.ones_like(inside)
        slower = np.maximum(tier.oversubscription / share, 1.0)
        factor = np.where(group.span > tier.nodes, np.maximum(factor, slower), factor)
    return factor


def _tier_latency(links: Links, group: GroupPlacement) -> Floats:
    """Latency that tiers add over one turn of a ring: once per switch group in network order, else at most hops."""
    fabric = links.cluster.fabric
    extra = np.zeros_like(group.nodes)
    for tier in fabric.tiers:
        crossings = group.span / tier.nodes if fabric.topology_aware else group.nodes * (1.0 - tier.nodes / group.span)
        extra = extra + np.where(group.span > tier.nodes, np.minimum(crossings, group.nodes) * tier.hop_s, 0.0)
    return extra


def ring_turn_s(links: Links, group: GroupPlacement) -> Floats:
    """Latency of one turn of the ring: ranks - 1 hops, of which nodes - 1 leave the node."""
    inter = group.nodes - 1.0
    intra = group.ranks - 1.0 - inter
    hops = intra * links.cluster.node.hop_s + inter * links.cluster.fabric.hop_s
    return links.hop_scale * (hops + _tier_latency(links, group))


def gather_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """All-gather or reduce-scatter of a message (the whole, gathered size).

    Formula: base + turn + S (N-1)/N / B     (ring; PAT where the profile has it and it is faster)
    Source:  NCCL up to 2.30 has only Ring for these between nodes of several GPUs, so latency grows with N
    """
    ring = constant("collectives", "base_s") + ring_turn_s(links, group)
    ring = ring + message_bytes * (group.ranks - 1) / group.ranks / ring_bandwidth(links, group)
    if links.pat != "off":
        # groups that may be gathered logarithmically: NCCL's with one rank a node, or all that leave a node
        serves = group.nodes > 1 if links.pat == "any" else (group.per_node == 1) & (group.nodes > 2)
        ring = np.where(serves, np.minimum(ring, pat_s(links, group, message_bytes)), ring)
    if group.leveled.any():
        leveled = leveled_gather_s(links, group, message_bytes)
        ring = np.where(group.leveled & (group.nodes > 1), np.minimum(ring, leveled), ring)
    return np.where(group.ranks > 1, ring, 0.0)


def pat_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """PAT: logarithmic steps between nodes, with a small linear term; then a gather inside the node.

    Formula: 8 us + log2(n) * hop / 3.5 + 2.8 us * n + (p - 1) * node hop + S (N-1)/N / (0.75 B)
    Where:   n nodes, p ranks on each, N = n p. Each of a node's p ranks runs PAT with its peers on the other n - 1
             nodes, so that all NICs are busy and a rank handles n pieces, not N; what arrives goes around the node
             while the next pieces are on their way, so that latencies add and B is the ring's, the slower wire's
    Source:  p = 1 (N = n): NVIDIA/nccl v2.23 and later, src/graph/tuning.cc. p > 1: no release of NCCL; the same
             constants, composed as PCCL composes its gathers (arXiv 2504.18658), which does not overlap the two parts
    Valid:   p = 1 as NCCL's tuner has it for idle GPUs, times hop_scale; p > 1 a what-if, held against no measurement.
             A tier is crossed by as many bytes as the ring's (far steps carry few); its own latency is left out
    """
    steps = np.floor(np.log2(np.maximum(group.nodes, 1.0))) * links.cluster.fabric.hop_s
    steps = steps / constant("collectives", "pat_steps_per_hop")
    latency = constant("collectives", "pat_base_s") + steps + constant("collectives", "pat_rank_s") * group.nodes
    latency = latency + (group.per_node - 1.0) * links.cluster.node.hop_s
    bandwidth = ring_bandwidth(links, group) * constant("collectives", "pat_bandwidth_frac")
    return links.hop_scale * latency + message_bytes * (group.ranks - 1) / group.ranks / bandwidth


def all_reduce_s(links: Links, group: GroupPlacement, message_bytes: Floats) -> Floats:
    """All-reduce by the fastest of ring, tree (NVLSTree where the node has it) and NVLS.

    Formula: ring  base + 2 turns + 2 S (N-1)/N / B
             tree  base + 2 (per_node - 1) hop + 2 log2(nodes) level + 2 far + 2 S (N-1)/N / B
             nvls  23 us + S / (0.719 link)  one node only
    Where:   far = what the latency of a tier that is crossed exceeds a level by, as between sites
    Source:  NCCL's algorithms; level from a fit of the paper's Figure 2a (16 MiB to 16 GiB, 4 to 512 nodes, 3.1% error)
    """
    base = constant("collectives", "base_s")
    wire = 2.0 * message_bytes * (group.ranks - 1) / group.ranks / ring_bandwidth(links, group)
    ring = base + 2.0 * ring_turn_s(links, group) + wire
    levels = np.ceil(np.log2(np.maximum(group.nodes, 1.0)))
    inside = 0.0 if links.cluster.node.nvls else 2.0 * (group.per_node - 1.0) * links.cluster.node.hop_s
    far = _beyond_level_s(links, group)
    tree = base + links.hop_scale * (inside + 2.0 * (levels * links.cluster.fabric.tree_level_s + far)) + wire
    best = np.where(group.nodes > 1, np.minimum(ring, tree), ring)
    if links.cluster.node.nvls:
        # in the NVLink switch the rate does not depend on the number of ranks
        node = links.cluster.node
        rate = node.link_bytes_per_s * node.link_frac * constant("collectives", "nvls_ratio_frac")
        nvls = links.hop_scale * constant("collectives", "nvls_base_s") + message_bytes / rate
        best = np.where(group.nodes == 1, np.minimum(best, nvls), best)
    if group.leveled.any():
        # a reduce-scatter inside first, then outwards, and a gather back
        leveled = 2.0 * leveled_gather_s(links, group, message_bytes)
        best = np.where(group.leveled & (group.nodes > 1), np.minimum(best, leveled), best)
    return np.where(group.ranks > 1, best, 0.0)


def _beyond_level_s(links: Links, group: GroupPlacement) -> Floats:
    """Latency of tiers that a tree crosses, once each way, beyond that of a level: a level was measured on a fabric
    with tiers of a few microseconds."""
    fabric, extra = links.cluster.fabric, np.zeros_like(group.nodes)
    for tier in fabric.tiers:
        beyond = np.maximum(tier.hop_s - fabric.tree_level_s, 0.0)
        extra = extra + np.where(group.span > tier.nodes, beyond, 0.0)
    return extra


def send_s(links: Links, ranks: Floats, same_node: Bools, message_bytes: Floats, apart: Floats) -> Floats:
    """One send/receive between neighbours of a group, so many nodes apart, all GPUs of a node sending at once.

    Formula: base + S / min(pair, c channel) inside a node
             base + tiers + S / min(nic p2p_frac / oversubscription, c channel) between nodes
    Where:   c = the channels that NCCL gives to a pair of ranks; one channel is a block of a GPU, and over the network
             one FIFO of a proxy thread, so that a single pair fills neither NVLink nor a fast NIC
    Source:  NVIDIA/nccl src/graph/paths.cc (up to 2.28) and src/enqueue.cc; nccl-tests sendrecv on H100 nodes
    """
    fabric = links.cluster.fabric
    inside = _inside_s(links, ranks, message_bytes)
    over, extra = np.ones_like(apart), np.zeros_like(apart)
    for tier in fabric.tiers:
        crosses = apart >= tier.nodes
        over = np.where(crosses, np.maximum(over, tier.oversubscription), over)
        extra = extra + np.where(crosses, tier.hop_s, 0.0)
    # a pair has two channels between nodes, or one where a group has more ranks than they serve
    most = fabric.p2p_bytes_per_s or np.inf
    channels = np.where(2.0 * ranks > 4.0 * constant("collectives", "p2p_channels"), most / 2.0, most)
    rate = np.minimum(fabric.nic_bytes_per_s * fabric.p2p_frac / over, channels)
    outside = links.hop_scale * extra + message_bytes / (rate * links.bandwidth_scale)
    return constant("collectives", "p2p_base_s") + np.where(same_node, inside, outside)


def _inside_s(links: Links, ranks: Floats, message_bytes: Floats) -> Floats:
    """A send inside a node: its channels are shared by the ranks, and doubled while each would carry much.

    Formula: max(S / pair, S / (most channel), min(S / (least channel), part / channel)), least = most / N
    Where:   channels grow in proportion between the least and the most, so that the time stays that of one part
    """
    node, channel = links.cluster.node, constant("collectives", "p2p_node_bytes_per_s")
    most = constant("collectives", "p2p_channels")
    least = np.maximum(most / 2.0 ** np.ceil(np.log2(np.maximum(ranks, 1.0))), 1.0)
    part_s = constant("collectives", "p2p_part_bytes") / channel
    wire = message_bytes / np.minimum(node.pair_bytes_per_s * node.link_frac, most * channel)
    return np.asarray(np.maximum(wire, np.minimum(message_bytes / (least * channel), part_s)))


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
