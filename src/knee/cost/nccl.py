"""How long NCCL itself expects a collective to take: the cost model of its tuner, and the choice it makes.

time = latency + bytes / algorithm bandwidth, for every (algorithm, protocol); NCCL runs the smallest. Arrays
of (bytes, ranks, nodes) broadcast against each other. Bytes are the whole buffer: for all-gather and
reduce-scatter the unsharded size (per-rank count x ranks).

Latency and bandwidth of one algorithm are in ``nccl_formulas``.

Source of every formula: NVIDIA/nccl src/graph/tuning.cc at tags v2.20.5-1 and v2.30.7-1.
Valid for idle GPUs. The tuner ranks algorithms; below 128 MiB it is optimistic by up to 2.4x.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knee.cost.nccl_formulas import LINE_BYTES, Case, bandwidth_bytes_per_s, latency_s, log2_floor, plateau
from knee.cost.nccl_tables import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    VERSIONS,
    Algorithm,
    Arch,
    Array,
    Collective,
    Constants,
    Cpu,
    Graph,
    Protocol,
    constants,
    graph,
)
from knee.errors import InputError

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "PROTOCOLS",
    "VERSIONS",
    "Algorithm",
    "Arch",
    "Case",
    "Collective",
    "Constants",
    "Cpu",
    "Graph",
    "Protocol",
    "bandwidth_bytes_per_s",
    "best",
    "bus_bandwidth_bytes_per_s",
    "collective_s",
    "constants",
    "enabled",
    "graph",
    "latency_s",
    "plateau",
]


def enabled(c: Case, *, sharp: bool = False) -> NDArray[np.bool_]:
    """Where NCCL would consider this case.

    Formula:  tree, NVLS tree and CollNet chain: all-reduce only. LL and LL128: ring and tree only.
              NVLS between nodes and CollNet: SHARP switches; NVLS gathers between nodes: 2.28 as well.
              NVLS tree: two nodes or more. PAT: gathers with one GPU per node, from 2.23.
    Where:    sharp = the network's switches reduce, and its plugin is loaded.
    Source:   NVIDIA/nccl src/graph/tuning.cc, the enable section.
    Valid:    LL128 is taken to be on: NVLink inside the node, each NIC near its GPU.
    """
    reduces = c.collective == "all_reduce"
    many = c.nodes > 1
    has_graph = np.asarray(c.graph.channels) > 0
    any_protocol = c.algorithm in ("ring", "tree")
    if c.algorithm not in c.constants.base_s or (c.protocol != "simple" and not any_protocol):
        return np.zeros(c.ranks.shape, dtype=np.bool_)
    match c.algorithm:
        case "ring":
            allowed = np.ones_like(many)
        case "tree":
            allowed = np.full_like(many, reduces)
        case "nvls":
            allowed = ~many | (sharp and (reduces or c.constants.rules.nvls_efficiency))
        case "nvls_tree":
            allowed = many & reduces
        case "collnet_chain":
            allowed = many & sharp & reduces
        case "collnet_direct":
            allowed = many & sharp
        case "pat":
            allowed = many & (c.ranks == c.nodes) & (not reduces)
    return np.asarray(allowed & has_graph, dtype=np.bool_)


def _tree_correction(c: Case, message_bytes: Array) -> Array:
    """Measured dip of a tree all-reduce at medium sizes, by powers of two from 64 B."""
    if c.algorithm != "tree":
        return np.ones_like(message_bytes)
    row = c.constants.tree_correction[c.protocol]
    index = log2_floor(np.maximum(message_bytes // LINE_BYTES, 1)).astype(np.int64)
    inside = (message_bytes >= LINE_BYTES) & (index < len(row))
    return np.where(inside, row[np.minimum(index, len(row) - 1)], 1.0)


def collective_s(
    *,
    version: str,
    graph: Graph,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    message_bytes: ArrayLike,
    ranks: ArrayLike,
    nodes: ArrayLike,
    cpu: Cpu = "intel",
    sharp: bool = False,
) -> Array:
    """Seconds that NCCL's tuner expects of one collective; infinite where the case is not enabled.

    Formula:  t = latency x plateau + bytes / (bandwidth x tree correction)
    Where:    bytes = the whole buffer (unsharded for gathers); one rank moves nothing and takes no time.
    Source:   NVIDIA/nccl src/graph/tuning.cc, ncclTopoGetAlgoTime; 86 069.97 us in NVIDIA/nccl#1453.
    Valid:    NVLink nodes, one operation per launch; the network is non-blocking and idle.
    """
    c = Case.of(
        version=version,
        graph=graph,
        collective=collective,
        algorithm=algorithm,
        protocol=protocol,
        ranks=ranks,
        nodes=nodes,
        cpu=cpu,
    )
    size = np.asarray(message_bytes, dtype=np.float64)
    if np.any(size < 0):
        raise InputError("message_bytes cannot be negative")
    size, on = np.broadcast_arrays(size, enabled(c, sharp=sharp))
    if not on.any():
        return np.full(size.shape, np.inf)
    latency = latency_s(c) * plateau(c, size)
    bandwidth = np.where(on, bandwidth_bytes_per_s(c) * _tree_correction(c, size), 1.0)
    seconds = np.where(c.ranks > 1, latency + size / bandwidth, 0.0)
    return np.where(on, seconds, np.inf)


def best(
    *,
    version: str,
    arch: Arch,
    collective: Collective,
    message_bytes: ArrayLike,
    ranks: ArrayLike,
    nodes: ArrayLike,
    cpu: Cpu = "intel",
    sharp: bool = False,
    algorithms: Collection[Algorithm] = ALGORITHMS,
    protocols: Collection[Protocol] = PROTOCOLS,
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """What NCCL would run: seconds, and the indices of its choice in ``ALGORITHMS`` and ``PROTOCOLS``.

    Formula:  min over enabled (algorithm, protocol); the first in NCCL's order wins a tie.
    Where:    ``algorithms`` and ``protocols`` restrict the choice, as NCCL_ALGO and NCCL_PROTO do.
    Source:   NVIDIA/nccl src/enqueue.cc; graphs in ``catalog/nccl/graphs.toml``.
    Valid:    8-GPU nodes with one NIC per GPU. Seconds are infinite where nothing that is allowed is enabled.
    """
    shape = np.broadcast_shapes(np.shape(message_bytes), np.shape(ranks), np.shape(nodes))
    times = np.full((len(ALGORITHMS), len(PROTOCOLS), *shape), np.inf)
    for a, algorithm in enumerate(ALGORITHMS):
        found = graph(arch=arch, algorithm=algorithm, ranks=ranks, nodes=nodes)
        for p, protocol in enumerate(PROTOCOLS):
            if algorithm in algorithms and protocol in protocols:
                times[a, p] = collective_s(
                    version=version,
                    graph=found,
                    collective=collective,
                    algorithm=algorithm,
                    protocol=protocol,
                    message_bytes=message_bytes,
                    ranks=ranks,
                    nodes=nodes,
                    cpu=cpu,
                    sharp=sharp,
                )
    flat = times.reshape(-1, *shape)
    choice = np.asarray(flat.argmin(axis=0), dtype=np.int64)
    return np.asarray(flat.min(axis=0)), choice // len(PROTOCOLS), choice % len(PROTOCOLS)


def bus_bandwidth_bytes_per_s(
    collective: Collective, message_bytes: ArrayLike, ranks: ArrayLike, seconds: ArrayLike
) -> Array:
    """Bus bandwidth as nccl-tests prints it: what a ring's slowest link would have carried.

    Formula:  bytes / seconds x f;  f = 2 (ranks - 1) / ranks for all-reduce, (ranks - 1) / ranks for gathers
    Where:    bytes = the whole buffer.
    Source:   NVIDIA/nccl-tests doc/PERFORMANCE.md.
    Valid:    any algorithm; NVLS may exceed the wire because the switch reduces.
    """
    size, n, t = (np.asarray(x, dtype=np.float64) for x in (message_bytes, ranks, seconds))
    passes = 2 if collective == "all_reduce" else 1
    return np.asarray(size / t * passes * (n - 1) / n)
