"""NCCL's tuner as data: the constants of each version and the graphs its topology search finds.

Read from ``catalog/nccl`` on first use. ``knee.cost.nccl`` holds the formulas.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knee.errors import InputError
from knee.units import parse

Array = NDArray[np.float64]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]
Algorithm = Literal["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
Protocol = Literal["ll", "ll128", "simple"]
Arch = Literal["volta", "ampere", "hopper", "blackwell"]
Cpu = Literal["intel", "amd", "other"]
Link = Literal["nvlink", "pci", "net"]

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter")
ALGORITHMS: tuple[Algorithm, ...] = (
    "tree",
    "ring",
    "collnet_direct",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)
"""In NCCL's own order, which settles ties."""
PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")
VERSIONS = ("2.20", "2.30")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers inside the tuner's formulas, and the switches where versions differ in form."""

    simple_net_overheads: float
    """Network posts that one Simple step pays for."""
    ring_allreduce_saved_steps: float
    """Inter-node steps of a ring all-reduce: 2 x nodes, less these."""
    lone_gpu_uses_tree_latency: bool
    """With one GPU per node the network latency comes from the tree's row."""
    ring_ll_frac: float
    ring_ll_one_node_gather_frac: float
    ring_ll128_frac: float
    ring_ll128_lone_gpu_frac: float
    tree_frac: float
    tree_ll_frac: float
    tree_ll128_one_node_frac: float
    tree_ll128_frac: float
    tree_ratio_frac: float
    """Algorithm over bus bandwidth of tree and CollNet all-reduce."""
    nvls_efficiency: bool
    """NVLS rated by efficiency and heads, in bus bandwidth (2.28 and later); else by the slower link."""
    nvls_ratio_frac: float = 1.0
    """Algorithm over bus bandwidth of NVLS where it is rated by the slower link."""
    nvls_tree_inter_frac: float = 1.0
    """Share of the NIC rate that an NVLS tree over more than two nodes gets, before 2.28."""
    collnet_arity_s: float
    collnet_cap_frac: float
    collnet_gather_inter_scale: float
    collnet_gather_one_frac: float
    collnet_gather_eight_frac: float
    pat_frac: float = 1.0
    pat_level_frac: float = 1.0
    pat_rank_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """One NCCL version's tuner. Rows of three are (LL, LL128, Simple) or (1 node, 2 nodes, more)."""

    version: str
    source: str
    base_s: dict[Algorithm, Array]
    """Latency before the first hop, by protocol. Its keys are the algorithms that the version has."""
    hop_s: dict[Link, dict[Algorithm, Array]]
    """Latency of one hop, by protocol."""
    net_overhead_s: dict[Cpu, float]
    ll_row: dict[Cpu, Arch]
    """Row of ``ll_max`` that a host's processor stands for between nodes."""
    ll_max: dict[Arch, Array]
    """Bytes per second, by number of nodes; so are the per-channel caps below."""
    ring_ll128_max: dict[Arch, Array]
    tree_ll128_max: dict[Arch, Array]
    tree_max: dict[Arch, Array]
    nvls_tree_max: dict[Arch, Array]
    nvls_efficiency_frac: dict[Arch, float]
    plateau: dict[Arch, float]
    """Latency factor of a long ring all-reduce between nodes."""
    tree_correction: dict[Protocol, Array]
    """Factor on a tree's bandwidth by floor(log2(bytes / 64))."""
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What the topology search found for one algorithm. Numbers, or arrays that follow ranks and nodes."""

    arch: Arch
    channels: float | Array
    """Search channels; 0 where the algorithm has no graph."""
    intra_bytes_per_s: float | Array
    """Rate of one channel inside the node."""
    inter_bytes_per_s: float | Array
    """Rate of one channel between nodes."""
    pattern_frac: float | Array = 1.0
    """Penalty of the tree's pattern."""
    link: Link = "nvlink"
    nic_s: float = 0.0
    """Latency that the network plugin declares; 0 for the built-in InfiniBand plugin."""
    executed_per_search: float = 2.0
    """Channels that run for one search channel."""


def _read(name: str) -> dict[str, Any]:
    file = files("knee") / "catalog" / "nccl" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _row(values: list[str], unit: str) -> Array:
    return np.array([parse(value, unit) for value in values])


def _rows(table: dict[str, list[str]], unit: str) -> dict[Any, Array]:
    return {name: _row(values, unit) for name, values in table.items()}


@cache
def constants(version: str) -> Constants:
    """The tuner's constants of one NCCL version."""
    if version not in VERSIONS:
        raise InputError(f"no constants for NCCL {version!r}", hint=f"use {' or '.join(VERSIONS)}")
    data = _read(version)
    written: dict[str, Any] = data["rules"]
    rules: dict[str, Any] = {name: parse(x, "s") if isinstance(x, str) else x for name, x in written.items()}
    columns = {name: _rows(table, "bytes_per_s") for name, table in data["column"].items()}
    return Constants(
        version=data["version"],
        source=data["source"]["text"],
        base_s=_rows(data["base_latency"], "s"),
        hop_s={link: _rows(table, "s") for link, table in data["hop_latency"].items()},
        net_overhead_s={cpu: parse(row["net_overhead"], "s") for cpu, row in data["cpu"].items()},
        ll_row={cpu: row["ll_row"] for cpu, row in data["cpu"].items()},
        ll_max=columns["ll_max"],
        ring_ll128_max=columns["ring_ll128_max"],
        tree_ll128_max=columns["tree_ll128_max"],
        tree_max=columns["tree_max"],
        nvls_tree_max=columns.get("nvls_tree_max", {}),
        nvls_efficiency_frac=data.get("nvls_efficiency_frac", {}),
        plateau=data["plateau"],
        tree_correction={name: np.array(row, np.float64) for name, row in data["tree_correction"].items()},
        rules=Rules(**rules),
    )


@cache
def _graphs() -> dict[str, Any]:
    return _read("graphs")


def _node(arch: str) -> dict[str, Any]:
    tables = {name: table for name, table in _graphs().items() if isinstance(table, dict)}
    nodes = {name: table for name, table in tables.items() if "node_gpus" in table}
    if arch not in nodes:
        raise InputError(f"no NCCL graphs for arch {arch!r}", hint=f"use one of {', '.join(nodes)}")
    found: dict[str, Any] = nodes[arch]
    return found


def graph(*, arch: Arch, algorithm: Algorithm, ranks: ArrayLike, nodes: ArrayLike) -> Graph:
    """The graph that NCCL's search finds for an algorithm on 8-GPU nodes of one GPU generation.

    Formula:  one node: as listed. More nodes: channels = listed x (ranks / nodes) / 8.
    Where:    a channel between nodes needs a NIC, and each GPU brings its own; inside a node an NVSwitch
              gives every subset of GPUs the same rings. PAT runs on the tree's graph; CollNet has none here.
    Source:   ``catalog/nccl/graphs.toml``.
    Valid:    at most 8 GPUs per node, one NIC each. V100 subsets (no NVSwitch) are optimistic.
    """
    node = _node(arch)
    nodes = np.asarray(nodes, dtype=np.float64)
    local = np.asarray(ranks, dtype=np.float64) / nodes
    if np.any(local > node["node_gpus"]):
        raise InputError(f"{local.max():g} ranks per node, but a node is {node['node']}")
    if algorithm in ("nvls", "nvls_tree"):
        return _nvls_graph(arch, node, np.floor(local), nodes)
    if algorithm in ("collnet_direct", "collnet_chain"):
        return Graph(arch=arch, channels=0.0, intra_bytes_per_s=0.0, inter_bytes_per_s=0.0)
    found = node["ring" if algorithm == "ring" else "tree"]

    def pick(key: str) -> Array:
        one, many = (parse(found[place].get(key, 1.0), "bytes_per_s") for place in ("one_node", "nodes"))
        return np.where(nodes == 1, one, many)

    share = np.where(nodes == 1, 1.0, local / node["node_gpus"])
    return Graph(
        arch=arch,
        channels=pick("channels") * share,
        intra_bytes_per_s=pick("intra"),
        inter_bytes_per_s=pick("inter"),
        pattern_frac=pick("pattern_frac"),
        executed_per_search=_graphs()["executed_per_search"],
    )


def _nvls_graph(arch: Arch, node: dict[str, Any], local: Array, nodes: Array) -> Graph:
    """One channel per GPU, at the fastest listed speed at which a head and its peers fit on its NVLink."""
    if "nvls" not in node:
        return Graph(arch=arch, channels=0.0, intra_bytes_per_s=0.0, inter_bytes_per_s=0.0)
    speeds = _row(node["nvls"]["speeds"], "bytes_per_s")
    link, nic = (parse(node["nvls"][key], "bytes_per_s") for key in ("link", "nic"))
    fits = speeds * (local[..., None] + 1) <= link  # the head also sends to itself through the switch
    return Graph(
        arch=arch,
        channels=np.where(local >= _graphs()["nvls_min_gpus"], local, 0.0),
        intra_bytes_per_s=np.where(fits, speeds, 0.0).max(axis=-1),
        inter_bytes_per_s=np.where(nodes == 1, speeds.max(), nic),
    )
