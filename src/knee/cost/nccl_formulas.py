"""Latency and bandwidth that NCCL's tuner expects of one algorithm and protocol on idle GPUs.

Arrays of (ranks, nodes) broadcast against each other. ``knee.cost.nccl`` puts them together and makes the choice.

Source of every formula here: NVIDIA/nccl src/graph/tuning.cc at tags v2.20.5-1 and v2.30.7-1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from knee.cost.nccl_tables import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    VERSIONS,
    Algorithm,
    Array,
    Collective,
    Constants,
    Cpu,
    Graph,
    Protocol,
    constants,
)
from knee.errors import InputError

LINE_BYTES = 64
"""Smallest piece that the tuner's size rules count in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One (collective, algorithm, protocol) of one NCCL version on arrays of communicators."""

    constants: Constants
    graph: Graph
    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    ranks: Array
    nodes: Array
    cpu: Cpu

    @classmethod
    def of(
        cls,
        *,
        version: str,
        graph: Graph,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        ranks: ArrayLike,
        nodes: ArrayLike,
        cpu: Cpu = "intel",
    ) -> Case:
        """Check the words and the communicators, and bring the arrays to one shape."""
        known = constants(version)
        cpus = tuple(known.ll_row)
        words = {collective: COLLECTIVES, algorithm: ALGORITHMS, protocol: PROTOCOLS, cpu: cpus}
        for word, allowed in words.items():
            if word not in allowed:
                raise InputError(f"{word!r} is unknown to NCCL's tuner", hint=f"use {' or '.join(allowed)}")
        if graph.arch not in known.plateau:
            raise InputError(f"NCCL {version} has no constants for {graph.arch}", hint=f"use {VERSIONS[-1]}")
        n, k = np.broadcast_arrays(np.asarray(ranks, dtype=np.float64), np.asarray(nodes, dtype=np.float64))
        if np.any(k < 1) or np.any(n < k):
            raise InputError("a communicator needs at least one node, and one rank on each node")
        return cls(
            constants=known,
            graph=graph,
            collective=collective,
            algorithm=algorithm,
            protocol=protocol,
            ranks=n,
            nodes=k,
            cpu=cpu,
        )

    @property
    def p(self) -> int:
        """Column of the protocol in the tables."""
        return PROTOCOLS.index(self.protocol)

    @property
    def local(self) -> Array:
        """Ranks per node; a fraction where nodes are uneven."""
        return self.ranks / self.nodes

    @property
    def peers(self) -> Array:
        """Other ranks on the same node, in whole numbers as NCCL counts hops."""
        return np.floor(self.local) - 1

    @property
    def steps(self) -> Array:
        """Steps of a ring: every shard passes every other rank, twice in an all-reduce."""
        return (2 if self.collective == "all_reduce" else 1) * (self.ranks - 1)

    @property
    def intra_hop_s(self) -> float:
        return float(self.constants.hop_s[self.graph.link][self.algorithm][self.p])

    @property
    def inter_hop_s(self) -> Array:
        """One hop through the network; Simple pays the plugin's latency a second time, for the flush."""
        net = self.constants.hop_s["net"]
        own, tree = net[self.algorithm][self.p], net["tree"][self.p]
        alone = (self.local == 1) & self.constants.rules.lone_gpu_uses_tree_latency
        flushes = 2 if self.protocol == "simple" else 1
        return np.asarray(np.where(alone, tree, own) + self.graph.nic_s * flushes)

    def by_nodes(self, row: Array) -> Array:
        """The value of a (1 node, 2 nodes, more) row."""
        return np.asarray(row[np.minimum(self.nodes, 3).astype(np.int64) - 1])


def log2_floor(x: Array) -> Array:
    """Whole powers of two in x, exact for every float."""
    return np.asarray(np.frexp(x)[1] - 1, dtype=np.float64)


# latency


def latency_s(c: Case) -> Array:
    """Time before the last byte could arrive if bandwidth were infinite.

    Formula:  ring  base + (steps - k) max(intra, overhead) + k inter
              tree  base + 2 (peers intra + floor(log2 nodes) inter)
              NVLS  intra (+ inter between nodes);  NVLS tree  intra + 2 floor(log2 nodes) inter
              CollNet chain  2 peers intra + inter
              CollNet direct  2 (min(1, peers) intra + arity peers) + inter
              PAT   base + floor(log2 nodes) inter / 3.5 + 2.8 us ranks
    Where:    k = inter-node steps of the ring: nodes - 1, all-reduce 2 nodes (2.20) or 2 (nodes - 1) (2.30);
              peers = ranks / nodes - 1; overhead = the host's cost to post a send, three times for Simple.
    Source:   NVIDIA/nccl src/graph/tuning.cc, ncclTopoTuneModel.
    Valid:    one operation per launch (no aggregation); the ring's plateau is added by ``plateau``.
    """
    base = float(c.constants.base_s[c.algorithm][c.p])
    intra, inter, rules = c.intra_hop_s, c.inter_hop_s, c.constants.rules
    levels = log2_floor(c.nodes)
    match c.algorithm:
        case "ring":
            return base + _ring_hops_s(c)
        case "tree":
            return base + 2 * (c.peers * intra + levels * inter)
        case "nvls":
            return base + intra + np.where(c.nodes > 1, inter, 0.0)
        case "nvls_tree":
            return base + intra + 2 * levels * inter
        case "collnet_chain":
            return base + 2 * c.peers * intra + inter
        case "collnet_direct":
            arity = c.peers * rules.collnet_arity_s  # a head serves its local peers one by one
            return base + 2 * (np.minimum(1, c.peers) * intra + arity) + inter
        case "pat":
            return base + levels * inter * rules.pat_level_frac + c.ranks * rules.pat_rank_s


def _ring_hops_s(c: Case) -> Array:
    rules = c.constants.rules
    posts = rules.simple_net_overheads if c.protocol == "simple" else 1.0
    # between nodes every step, also one inside a node, waits for the host that posts the sends
    overhead = np.where(c.nodes > 1, posts * c.constants.net_overhead_s[c.cpu], 0.0)
    reduces = c.collective == "all_reduce"
    between = 2 * c.nodes - rules.ring_allreduce_saved_steps if reduces else c.nodes - 1
    between = np.where(c.nodes > 1, between, 0.0)
    return (c.steps - between) * np.maximum(c.intra_hop_s, overhead) + between * c.inter_hop_s


def plateau(c: Case, message_bytes: Array) -> Array:
    """Factor on the latency of a Simple ring all-reduce between nodes once each channel has 64 B per rank."""
    if (c.algorithm, c.protocol, c.collective) != ("ring", "simple", "all_reduce"):
        return np.ones_like(message_bytes)
    executed = c.graph.channels * c.graph.executed_per_search
    long = message_bytes >= LINE_BYTES * executed * c.ranks
    return np.where(long & (c.nodes > 1), c.constants.plateau[c.graph.arch], 1.0)


# bandwidth


def bandwidth_bytes_per_s(c: Case) -> Array:
    """Algorithm bandwidth: buffer bytes per second once the pipeline is full.

    Formula:  bus bandwidth of the graph (channels x rate), derated by protocol, x ratio
    Where:    rate = intra up to two nodes, else inter; ratio = ranks / steps (ring), 1/2 (tree, CollNet),
              5/6 (NVLS, 2.20), 1 (gathers that are no ring; NVLS in 2.20 keeps 5/6).
    Source:   NVIDIA/nccl src/graph/tuning.cc, ncclTopoTuneModel.
    Valid:    zero where the graph has no channels; size corrections of the tree are in ``collective_s``.
    """
    match c.algorithm:
        case "ring":
            return _ring_bus(c) * c.ranks / np.maximum(c.steps, 1)
        case "tree":
            return _tree_bus(c) * c.constants.rules.tree_ratio_frac
        case "nvls" | "nvls_tree":
            return _nvls_since_2_28(c) if c.constants.rules.nvls_efficiency else _nvls_before_2_28(c)
        case "collnet_direct" | "collnet_chain":
            return _collnet(c)
        case "pat":
            return _bus(c) * c.constants.rules.pat_frac


def _bus(c: Case) -> Array:
    """Channels x rate. On two nodes half of the ring's hops stay inside, and NCCL takes the intra rate."""
    rate = np.where(c.nodes <= 2, c.graph.intra_bytes_per_s, c.graph.inter_bytes_per_s)
    return c.graph.channels * rate


def _ll_max(c: Case) -> Array:
    """LL's ceiling: the GPU's on one node, the host processor's between nodes."""
    table = c.constants.ll_max
    return np.where(c.nodes == 1, table[c.graph.arch][0], c.by_nodes(table[c.constants.ll_row[c.cpu]]))


def _ring_bus(c: Case) -> Array:
    bus, rules = _bus(c), c.constants.rules
    match c.protocol:
        case "ll":  # half of every line is a flag, and each step syncs
            gather_here = (c.nodes == 1) & (c.collective != "all_reduce")
            frac = np.where(gather_here, rules.ring_ll_one_node_gather_frac, rules.ring_ll_frac)
            return np.minimum(_ll_max(c), bus * frac)
        case "ll128":  # 120 of 128 bytes are data; a channel's warps cap it
            frac = np.where(c.local < 2, rules.ring_ll128_lone_gpu_frac, rules.ring_ll128_frac)
            cap = c.by_nodes(c.constants.ring_ll128_max[c.graph.arch])
            return np.minimum(bus * frac, c.graph.channels * cap)
        case "simple":
            return bus


def _tree_bus(c: Case) -> Array:
    rules, table = c.constants.rules, c.constants
    bus = np.minimum(_bus(c) * rules.tree_frac, c.graph.channels * c.by_nodes(table.tree_max[c.graph.arch]))
    if c.protocol == "ll":
        bus = np.minimum(bus * rules.tree_ll_frac, _ll_max(c))
    elif c.protocol == "ll128":
        frac = np.where(c.nodes == 1, rules.tree_ll128_one_node_frac, rules.tree_ll128_frac)
        bus = np.minimum(bus * frac, c.graph.channels * c.by_nodes(table.tree_ll128_max[c.graph.arch]))
    return bus * c.graph.pattern_frac


def _nvls_before_2_28(c: Case) -> Array:
    """The slower of NVLink and NIC; a tree over more than two nodes sends up and down on one NIC."""
    rules = c.constants.rules
    shared = (c.nodes > 2) & (c.algorithm == "nvls_tree")
    inter = c.graph.inter_bytes_per_s * np.where(shared, rules.nvls_tree_inter_frac, 1.0)
    return c.graph.channels * np.minimum(c.graph.intra_bytes_per_s, inter) * rules.nvls_ratio_frac


def _nvls_since_2_28(c: Case) -> Array:
    """Bus bandwidth per head: an all-reduce pipelines its two halves; two nodes use the NIC both ways."""
    table, reduces = c.constants, c.collective == "all_reduce"
    heads = np.maximum(c.graph.channels, 1)
    efficiency = table.nvls_efficiency_frac.get(c.graph.arch, 0.0)
    intra = c.graph.intra_bytes_per_s * efficiency * (heads - 1) / heads
    intra = intra * (2 if reduces else (c.local - 1) / c.local)
    tree = c.algorithm == "nvls_tree"
    inter = c.graph.inter_bytes_per_s * np.where((c.nodes <= 2) & tree, 2.0, 1.0)
    rate = np.minimum(intra, inter)
    if tree and c.graph.arch in table.nvls_tree_max:
        rate = np.minimum(rate, c.by_nodes(table.nvls_tree_max[c.graph.arch]))
    return c.graph.channels * rate * (c.ranks / np.maximum(c.steps, 1) if reduces else 1.0)


def _collnet(c: Case) -> Array:
    """The switch reduces. Direct gathers feed every GPU's NIC; direct all-reduce wants a NIC per GPU."""
    rules, channels = c.constants.rules, np.maximum(c.graph.channels, 1)
    intra, inter = c.graph.intra_bytes_per_s, c.graph.inter_bytes_per_s
    bus = c.graph.channels * intra
    if c.algorithm == "collnet_chain":
        return np.broadcast_to(bus * rules.tree_ratio_frac, c.ranks.shape)
    if c.collective != "all_reduce":
        # NCCL interpolates between its measurements at 1 and at 8 GPUs per node
        ends = (rules.collnet_gather_one_frac, rules.collnet_gather_eight_frac)
        frac = ends[0] + (c.local - 1) / 7 * (ends[1] - ends[0])
        return c.local * np.minimum(intra, rules.collnet_gather_inter_scale * inter) * frac
    gpus_per_nic = c.local / channels
    cap = rules.collnet_cap_frac if c.graph.arch in ("hopper", "blackwell") else 1.0
    return bus / (gpus_per_nic - (gpus_per_nic - 1) / 2) * cap * rules.tree_ratio_frac
