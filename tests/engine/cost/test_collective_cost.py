"""Collectives by hand, and against published bandwidths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.cost.collective_cost import Links, all_reduce_s, gather_s, ring_bandwidth, send_s
from knee.engine.cost.placement import GroupPlacement
from knee.specs.constants import constant
from knee.specs.hardware import Tier
from knee.specs.load import load_cluster, load_profile

H100 = load_cluster("dgx-h100").spec
IDLE = Links.idle(H100)
BASE_S = constant("collectives", "base_s")
LAYER_BYTES = 404_766_720.0
NIC = H100.fabric.nic_bytes_per_s * H100.fabric.nic_frac
LINK = H100.node.link_bytes_per_s * H100.node.link_frac


def group(ranks: int, per_node: int) -> GroupPlacement:
    nodes = -(-ranks // per_node)
    return GroupPlacement(
        ranks=np.array([float(ranks)]),
        per_node=np.array([float(per_node)]),
        nodes=np.array([float(nodes)]),
        span=np.array([float(nodes)]),
    )


def gather(ranks: int, per_node: int, size: float = LAYER_BYTES, links: Links = IDLE) -> float:
    return float(gather_s(links, group(ranks, per_node), np.array([size]))[0])


def reduce(ranks: int, per_node: int, size: float = LAYER_BYTES, links: Links = IDLE) -> float:
    return float(all_reduce_s(links, group(ranks, per_node), np.array([size]))[0])


# the ring


def test_a_ring_inside_a_node() -> None:
    expected = BASE_S + 7 * H100.node.hop_s + LAYER_BYTES * 7 / 8 / LINK
    assert gather(8, 8) == pytest.approx(expected, rel=1e-12)


def test_a_ring_over_four_nodes() -> None:
    """28 hops stay inside nodes, 3 leave them; eight NICs carry the bytes."""
    expected = BASE_S + 28 * H100.node.hop_s + 3 * H100.fabric.hop_s + LAYER_BYTES * 31 / 32 / (8 * NIC)
    assert gather(32, 8) == pytest.approx(expected, rel=1e-12)


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert gather(1, 1) == 0
    assert reduce(1, 1) == 0


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_a_group_brings_as_many_nics_as_ranks(per_node: int) -> None:
    """The node's other ranks serve other groups at the same time."""
    bandwidth = float(ring_bandwidth(IDLE, group(16 * per_node, per_node))[0])
    assert bandwidth == pytest.approx(per_node * NIC)


def test_a_whole_node_is_bound_by_its_slower_side() -> None:
    assert float(ring_bandwidth(IDLE, group(64, 8))[0]) == pytest.approx(min(LINK, 8 * NIC))


def test_a_cube_mesh_has_less_for_a_pair() -> None:
    v100 = Links.idle(load_cluster("dgx-v100").spec)
    pair, whole = (float(ring_bandwidth(v100, group(n, n))[0]) for n in (2, 8))
    assert pair < whole


def test_tensor_parallelism_over_two_nodes_pays_the_network() -> None:
    assert gather(16, 8, 67e6) > 1.15 * gather(8, 8, 67e6)
    assert gather(16, 8, 67e6) > 67e6 * 15 / 16 / (8 * NIC)
    assert reduce(16, 8, 67e6) > reduce(8, 8, 67e6)


def test_latency_grows_with_the_ring() -> None:
    small = [gather(8 * n, 8, 1e6) for n in (2, 16, 128)]
    assert small[2] > 7 * small[1] > 7 * 4 * small[0]


# against what others measured


def fitted_s(ranks: int, size: float) -> float:
    """The fit of published all-gathers on 8-GPU H100 nodes (16 MiB and more, 16 to 1,024 GPUs), 7.4% mean error."""
    return (14.4 + 4.37 * (ranks - 1) + size * (ranks - 1) / ranks / 389e3) * 1e-6


@pytest.mark.parametrize("ranks", [16, 32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize("mib", [64, 256, 1024, 4096])
def test_idle_all_gather_against_the_fit(ranks: int, mib: int) -> None:
    """Within 35% everywhere: links carry 341 GB/s a node here (figure 2a), 389 in the fit."""
    assert gather(ranks, 8, mib * 2.0**20) == pytest.approx(fitted_s(ranks, mib * 2.0**20), rel=0.35)


@pytest.mark.parametrize(("gpus", "ms"), [(64, 1.33), (128, 1.65), (256, 2.25), (512, 3.47), (2048, 10.7)])
def test_idle_all_gather_against_nccls_ring(gpus: int, ms: float) -> None:
    """NCCL 2.20's Ring/Simple for one Llama-7B layer, 12% apart at most, with the latencies of its own table."""
    node, fabric = replace(H100.node, hop_s=3.4e-6), replace(H100.fabric, hop_s=14e-6)
    assert gather(gpus, 8, links=Links.idle(replace(H100, node=node, fabric=fabric))) * 1e3 == pytest.approx(
        ms, rel=0.12
    )


@pytest.mark.parametrize("nodes", [4, 16, 64, 512])
def test_all_reduce_follows_figure_2a(nodes: int) -> None:
    """t = 23 us + 2 log2(n) 45.9 us + 2 S (N-1)/N / 341 GB/s, the fit of the paper's figure from 16 MiB up."""
    ranks, size = 8 * nodes, 2.0**30
    figure = 23e-6 + 2 * np.log2(nodes) * 45.9e-6 + 2 * size * (ranks - 1) / ranks / 341e9
    assert reduce(ranks, 8, size) == pytest.approx(figure, rel=0.03)


# algorithms


NCCL, ANY = replace(IDLE, pat="nccl"), replace(IDLE, pat="any")


def test_nccls_pat_needs_one_rank_a_node() -> None:
    assert gather(128, 1, 1e6, NCCL) < gather(128, 1, 1e6)
    assert gather(128, 8, 1e6, NCCL) == gather(128, 8, 1e6)
    assert gather(2, 1, 1e6, NCCL) == gather(2, 1, 1e6)


def test_nccls_pat_by_hand() -> None:
    """NCCL's tuner: 8 us + log2(n) hop / 3.5 + 2.8 us a rank, at 0.75 of the ring's bandwidth."""
    expected = 8e-6 + 7 * H100.fabric.hop_s / 3.5 + 2.8e-6 * 128 + 1e6 * 127 / 128 / (0.75 * NIC)
    assert gather(128, 1, 1e6, NCCL) == pytest.approx(expected, rel=1e-12)
    assert gather(128, 1, 1e6, ANY) == gather(128, 1, 1e6, NCCL)


def test_a_logarithmic_gather_over_nodes_of_eight_by_hand() -> None:
    """256 nodes: eight steps, 256 pieces a rank, seven hops inside the node, and 0.75 of the ring's bandwidth."""
    expected = 8e-6 + 8 * H100.fabric.hop_s / 3.5 + 2.8e-6 * 256 + 7 * H100.node.hop_s
    expected += 1e6 * 2047 / 2048 / (0.75 * min(LINK, 8 * NIC))
    assert gather(2048, 8, 1e6, ANY) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gpus", [2048, 8192, 32_768, 102_400])
def test_a_logarithmic_gather_of_little_is_far_below_the_ring(gpus: int) -> None:
    """Its linear term is 2.8 us a node, the ring's 37.8 us (seven hops inside, one outside)."""
    assert gather(gpus, 8, 1e6, ANY) < gather(gpus, 8, 1e6) / 8
    # per node what is left is the linear term, and a step for every doubling
    assert gather(gpus, 8, 1.0, ANY) < 8e-6 + gpus / 8 * 2.8e-6 + 17 * H100.fabric.hop_s


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_a_logarithmic_gather_is_never_slower_and_grows_with_size_and_group(per_node: int) -> None:
    sizes, counts = np.geomspace(1e3, 64e9, 30), [per_node * n for n in (1, 2, 3, 4, 7, 64, 1000, 12_800)]
    times = np.array([[gather(ranks, per_node, size, ANY) for size in sizes] for ranks in counts])
    rings = np.array([[gather(ranks, per_node, size) for size in sizes] for ranks in counts])
    assert (times <= rings).all()
    assert (np.diff(times, axis=1) >= 0).all()
    assert (np.diff(times, axis=0) >= 0).all()
    # much more than latency is worth: the ring's bandwidth is better
    assert (times[:4, -1] == rings[:4, -1]).all()


def test_trees_beat_rings_between_many_nodes() -> None:
    ring = 2 * gather(512, 8, 1e6)
    assert reduce(512, 8, 1e6) < ring / 3


def test_nvls_is_one_nodes_business_and_hoppers() -> None:
    a100 = Links.idle(load_cluster("dgx-a100").spec)
    ring = 2 * 7 / 8 * 1e9 / LINK
    assert reduce(8, 8, 1e9) < ring
    node = a100.cluster.node
    expected = BASE_S + 14 * node.hop_s + 2 * 7 / 8 * 1e9 / (node.link_bytes_per_s * node.link_frac)
    assert reduce(8, 8, 1e9, a100) == pytest.approx(expected, rel=1e-12)


def test_training_is_slower_than_idle() -> None:
    training = Links.in_training(H100, load_profile("paper").spec)
    assert gather(2048, 8, links=training) > 1.05 * gather(2048, 8)


# the fabric


def test_an_oversubscribed_tier_divides_what_crosses_it() -> None:
    fabric = replace(
        H100.fabric, topology_aware=False, tiers=(Tier(name="spine", nodes=32, hop_s=0.0, oversubscription=4.0),)
    )
    links = Links.idle(replace(H100, fabric=fabric))
    assert float(ring_bandwidth(links, group(256, 8))[0]) == pytest.approx(8 * NIC)
    assert float(ring_bandwidth(links, group(512, 8))[0]) == pytest.approx(2 * NIC)
    in_order = Links.idle(replace(H100, fabric=replace(fabric, topology_aware=True)))
    assert float(ring_bandwidth(in_order, group(512, 8))[0]) == pytest.approx(8 * NIC)


MIB = 2.0**20
P2P_BASE_S = constant("collectives", "p2p_base_s")


def send(ranks: int, size: float, *, same_node: bool = False, links: Links = IDLE) -> float:
    """Seconds without the base."""
    found = send_s(links, np.array([float(ranks)]), np.array([same_node]), np.array([size]), np.array([4.0]))
    return float(found[0]) - P2P_BASE_S


def test_sends_between_nodes_by_channels() -> None:
    """Two channels of 13 GB/s, one where a group is large; slow NICs are filled."""
    assert send(8, 1e9) == pytest.approx(1e9 / 26e9)
    assert send(64, 1e9) == pytest.approx(1e9 / 26e9)
    assert send(80, 1e9) == pytest.approx(1e9 / 13e9)
    slow = Links.idle(replace(H100, fabric=replace(H100.fabric, nic_bytes_per_s=12.5e9)))
    assert send(8, 1e9, links=slow) == pytest.approx(1e9 / (0.88 * 12.5e9))


@pytest.mark.parametrize(
    ("ranks", "mib", "gb_per_s"),
    [(8, 32, 79.6), (8, 64, 82.0), (8, 128, 162.6), (8, 256, 299.7), (8, 1024, 360.8), (4, 32, 149.3), (4, 64, 157.4)],
)
def test_sends_inside_a_node_against_nccl_tests(ranks: int, mib: int, gb_per_s: float) -> None:
    """Four channels of 8 ranks, eight of 4, more where messages are large: within 10% of H100's sendrecv."""
    seconds = send(ranks, mib * MIB, same_node=True) + P2P_BASE_S
    assert mib * MIB / seconds == pytest.approx(gb_per_s * 1e9, rel=0.1)


@pytest.mark.parametrize(
    ("ranks", "size", "rate"),
    [
        (8, 2.0**20, 4 * 20.3e9),  # a part for each of 4 channels
        (6, 2.0**20, 4 * 20.3e9),  # as if they were 8
        (2, 2.0**20, 16 * 20.3e9),
        (64, 2.0**20, 20.3e9),  # no rank has less than one channel
        (8, 2.0**34, min(H100.node.pair_bytes_per_s * H100.node.link_frac, 32 * 20.3e9)),  # all channels, or the link
    ],
)
def test_a_send_inside_a_node_has_channels_by_the_number_of_ranks(ranks: int, size: float, rate: float) -> None:
    one = np.ones(1)
    found = send_s(IDLE, ranks * one, one > 0, size * one, 0 * one)
    assert found[0] == pytest.approx(20e-6 + size / rate, rel=1e-9)


def test_channels_are_added_so_that_each_carries_one_part() -> None:
    """Of 8 ranks: 4 channels up to 64 MiB; then as many as keep the time of a part of 16 MiB, until all are in use."""
    one, sizes = np.ones(1), 2.0 ** np.array([26, 27, 27.5, 28])
    found = [float(send_s(IDLE, 8 * one, one > 0, size * one, 0 * one)[0]) for size in sizes]
    assert found == pytest.approx([20e-6 + 2.0**24 / 20.3e9] * 4)
