"""Collectives on idle GPUs by hand: what they have beyond the rings and trees of a training step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.cost.collective_cost import (
    OPERATIONS,
    Links,
    Operation,
    ReduceAlgorithm,
    all_reduce_s,
    gather_s,
    idle_s,
    nvls_rate,
    reduce_by,
    ring_links,
)
from knee.engine.cost.placement import GroupPlacement
from knee.specs.catalog import entry_names
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster

H100, A100, B200 = (load_cluster(name).spec for name in ("dgx-h100", "dgx-a100", "dgx-b200"))
BASE_S = constant("collectives", "base_s")
GIB = 2.0**30


def group(ranks: int, nodes: int) -> GroupPlacement:
    n, k = np.array([float(ranks)]), np.array([float(nodes)])
    return GroupPlacement(ranks=n, per_node=n / k, nodes=k, span=k)


def seconds(operation: Operation, ranks: int, nodes: int, size: float = GIB, cluster: Cluster = H100) -> float:
    return float(idle_s(cluster, group(ranks, nodes), operation, np.array([size]))[0])


def by(algorithm: ReduceAlgorithm, ranks: int, nodes: int, size: float = GIB, cluster: Cluster = H100) -> float:
    return float(reduce_by(cluster, group(ranks, nodes), np.array([size]), algorithm)[0])


def test_a_ring_fills_a_nic_better_than_a_tree() -> None:
    assert ring_links(H100).cluster.fabric.nic_frac == pytest.approx(H100.fabric.nic_frac / 0.92)
    full = replace(H100, fabric=replace(H100.fabric, nic_frac=1.0))
    assert ring_links(full).cluster.fabric.nic_frac == 1.0


def test_a_gather_inside_a_node_copies_its_own_shard() -> None:
    link = H100.node.link_bytes_per_s * H100.node.link_frac
    expected = BASE_S + 7 * H100.node.hop_s + GIB * (7 + constant("idle", "own_copy_frac")) / 8 / link
    assert seconds("all_gather", 8, 1) == pytest.approx(expected, rel=1e-12)
    assert seconds("reduce_scatter", 8, 1) == seconds("all_gather", 8, 1)


def test_between_nodes_the_copy_is_hidden() -> None:
    expected = gather_s(ring_links(H100), group(32, 4), np.array([GIB]))[0]
    assert seconds("all_gather", 32, 4) == expected


def test_nvls_depends_on_the_ranks_behind_the_switch() -> None:
    """A GPU sends its buffer once, and its share of the sum once more."""
    link = H100.node.link_bytes_per_s * H100.node.link_frac
    assert nvls_rate(H100, np.array([8.0, 4.0])) == pytest.approx([0.85 * link * 8 / 9, 0.85 * link * 4 / 5])
    assert by("nvls", 8, 1) == pytest.approx(constant("idle", "nvls_base_s") + GIB / (0.85 * link * 8 / 9))
    assert by("nvls", 2, 1) == np.inf
    assert by("nvls", 16, 2) == np.inf
    assert by("nvls", 8, 1, cluster=A100) == np.inf


def test_two_nodes_use_both_directions_of_their_nics() -> None:
    """A tree over two nodes is bound by S over the NICs, not by twice that."""
    nic = 8 * B200.fabric.nic_bytes_per_s * B200.fabric.nic_frac / 0.92
    start = constant("idle", "nvls_base_s") + 2 * B200.fabric.tree_level_s
    assert by("tree", 16, 2, cluster=B200) == pytest.approx(start + GIB / nic)
    assert by("tree", 16, 2) < by("ring", 16, 2)
    assert by("tree", 32, 4) > 1.2 * by("tree", 16, 2)


def test_two_nodes_with_fast_nics_go_at_the_pace_of_their_switches() -> None:
    """Twice 15/16 of the bytes at 97% of the bus bandwidth of one node."""
    fast = replace(H100, fabric=replace(H100.fabric, nic_bytes_per_s=1e15))
    link = H100.node.link_bytes_per_s * H100.node.link_frac
    start = constant("idle", "nvls_base_s") + 2 * H100.fabric.tree_level_s
    bus = 0.97 * 2 * 7 / 8 * 0.85 * link * 8 / 9
    assert by("tree", 16, 2, cluster=fast) == pytest.approx(start + 2 * GIB * 15 / 16 / bus, rel=1e-12)


def test_one_gpu_a_node_has_no_links_inside() -> None:
    nic = H100.fabric.nic_bytes_per_s * H100.fabric.nic_frac / 0.92
    assert by("tree", 2, 2) == pytest.approx(BASE_S + 2 * H100.fabric.tree_level_s + GIB / nic)


def test_deep_trees_are_those_of_training() -> None:
    """Beyond two nodes a tree is the one that figure 2a was fitted with."""
    there = all_reduce_s(Links.idle(H100), group(2048, 256), np.array([GIB]))[0]
    assert by("tree", 2048, 256) == pytest.approx(there)


@pytest.mark.parametrize("name", entry_names("cluster"))
def test_every_cluster_has_every_operation(name: str) -> None:
    cluster = load_cluster(name).spec
    for operation in OPERATIONS:
        for ranks, nodes in ((2, 1), (2, 2), (cluster.node.gpus * 4, 4)):
            if ranks <= nodes * cluster.node.gpus:
                assert 0 < seconds(operation, ranks, nodes, cluster=cluster) < 100


@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_bytes_never_take_less(operation: Operation) -> None:
    sizes = 2.0 ** np.arange(4, 36)
    for ranks, nodes in ((4, 1), (8, 1), (16, 2), (256, 32)):
        g = GroupPlacement(
            **{
                f: np.full(len(sizes), getattr(group(ranks, nodes), f)[0])
                for f in ("ranks", "per_node", "nodes", "span")
            }
        )
        assert (np.diff(idle_s(H100, g, operation, sizes)) >= 0).all()
