"""Where the ranks of a group sit, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from knee.engine.cost.placement import gpus_used, place, place_folded
from knee.specs.plan import AXES
from tables import job, table

INNER_PP = ("tp", "pp", "cp", "dp_shard", "dp_replicate")
OUTER_TP = ("dp_shard", "cp", "dp_replicate", "pp", "tp")

CASES = {
    # plan, gpus per node, axes -> ranks, ranks per node, nodes
    "fsdp alone": ({"dp_shard": 64}, 8, ("dp_shard",), (64, 8, 8)),
    "fsdp inside a node": ({"dp_shard": 4}, 8, ("dp_shard",), (4, 4, 1)),
    "tp 2 leaves 4 ranks of dp a node": ({"tp": 2, "dp_shard": 32}, 8, ("dp_shard",), (32, 4, 8)),
    "tp 8 leaves one": ({"tp": 8, "dp_shard": 16}, 8, ("dp_shard",), (16, 1, 16)),
    "tp 16 spans two nodes": ({"tp": 16, "dp_shard": 4}, 8, ("tp",), (16, 8, 2)),
    "tp 16 on a rack": ({"tp": 16, "dp_shard": 4}, 72, ("tp",), (16, 16, 1)),
    "tp 4 in a node": ({"tp": 4, "dp_shard": 4}, 8, ("tp",), (4, 4, 1)),
    "cp next to tp": ({"tp": 2, "cp": 4, "dp_shard": 8}, 8, ("cp",), (4, 4, 1)),
    "cp across nodes": ({"tp": 4, "cp": 4, "dp_shard": 8}, 8, ("cp",), (4, 2, 2)),
    "shards over dp and cp": ({"tp": 2, "cp": 2, "dp_shard": 8}, 8, ("dp_shard", "cp"), (16, 4, 4)),
    "hsdp: shards fill a node": ({"sharding": "hsdp", "dp_shard": 8, "dp_replicate": 4}, 8, ("dp_shard",), (8, 8, 1)),
    "hsdp: replicas one a node": (
        {"sharding": "hsdp", "dp_shard": 8, "dp_replicate": 4},
        8,
        ("dp_replicate",),
        (4, 1, 4),
    ),
    "hsdp: half a node of shards": (
        {"sharding": "hsdp", "dp_shard": 4, "dp_replicate": 4},
        8,
        ("dp_replicate",),
        (4, 2, 2),
    ),
    "pp outermost": ({"pp": 4, "dp_shard": 8}, 8, ("pp",), (4, 1, 4)),
    "pp innermost": ({"pp": 4, "dp_shard": 8, "placement": INNER_PP}, 8, ("pp",), (4, 4, 1)),
    "pp innermost pushes dp out": ({"pp": 4, "dp_shard": 8, "placement": INNER_PP}, 8, ("dp_shard",), (8, 2, 4)),
    "pp outermost keeps dp in": ({"pp": 4, "dp_shard": 8}, 8, ("dp_shard",), (8, 8, 1)),
    "tp outermost": ({"tp": 2, "dp_shard": 8, "placement": OUTER_TP}, 8, ("tp",), (2, 1, 2)),
    "the world": ({"tp": 2, "pp": 2, "dp_shard": 8}, 8, AXES, (32, 8, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_place(name: str) -> None:
    plan, per_node, axes, expected = CASES[name]
    group = place(table(job(**plan)), per_node, *axes)
    assert (group.ranks[0], group.per_node[0], group.nodes[0]) == expected


def test_plans_of_one_table_are_placed_apart() -> None:
    group = place(table(job(dp_shard=64), job(tp=8, dp_shard=8), job(tp=16, dp_shard=4)), 8, "tp")
    assert group.nodes.tolist() == [1, 1, 2]
    assert group.per_node.tolist() == [1, 8, 8]


@pytest.mark.parametrize(("placement", "same_wire"), [(AXES, False), (INNER_PP, True)])
def test_neighbouring_stages(placement: tuple[str, ...], same_wire: bool) -> None:
    plans = table(job(pp=4, tp=2, dp_shard=8, placement=placement))
    assert (place(plans, 8, "pp").nodes[0] == 1) == same_wire


def test_ranks_never_exceed_nodes_times_ranks_per_node() -> None:
    """Sizes that do not divide a node are cut as evenly as they can be."""
    group = place(table(job(tp=2, dp_shard=3), job(dp_shard=12), job(tp=4, dp_shard=9)), 8, "dp_shard")
    assert (group.ranks <= group.nodes * group.per_node + 1e-9).all()


# counts that do not fill nodes


@pytest.mark.parametrize(
    ("gpus", "per_node", "used"),
    [
        (256, 72, 64),  # MLPerf's four domains
        (2496, 72, 64),  # and its 39
        (144, 72, 72),
        (40, 72, 72),  # inside one domain
        (12, 8, 6),
        (20, 8, 8),  # two nodes and half of a third: fives would leave three of eight idle
        (13, 8, 8),
    ],
)
def test_gpus_of_each_node(gpus: int, per_node: int, used: int) -> None:
    assert gpus_used(np.array([gpus]), per_node).tolist() == [used]


def test_groups_of_a_job_that_does_not_fill_its_domains() -> None:
    """256 GPUs of domains of 72: tensor parallelism stays inside them, data parallelism spans four."""
    plans = table(job(tp=16, dp_shard=16), job(tp=1, dp_shard=256), job(tp=8, pp=4, dp_shard=8))
    per_node = gpus_used(plans.gpus, 72)
    assert place(plans, per_node, "tp").nodes.tolist() == [1, 1, 1]
    assert place(plans, per_node, "dp_shard").nodes.tolist() == [4, 4, 1]
    assert place(plans, per_node, "dp_shard").per_node.tolist() == [4, 64, 8]
    assert place(plans, per_node, "pp").nodes.tolist() == [1, 1, 4]


def test_a_last_node_may_be_partly_used() -> None:
    """20 GPUs of nodes of 8 use three, and no group more nodes than it has ranks."""
    plans = table(job(dp_shard=20), job(tp=4, dp_shard=5))
    per_node = gpus_used(plans.gpus, 8)
    assert place(plans, per_node, "dp_shard").nodes.tolist() == [3, 3]
    assert place(plans, per_node, "tp").nodes.tolist() == [1, 1]


# groups of experts


@pytest.mark.parametrize("placement", [AXES, INNER_PP, OUTER_TP, ("pp", "tp", "dp_shard", "cp", "dp_replicate")])
@pytest.mark.parametrize(("tp", "pp", "cp", "shard"), [(2, 4, 2, 16), (4, 2, 1, 16), (1, 4, 4, 8), (8, 2, 2, 4)])
def test_folded_groups_are_every_so_many_th_rank_of_their_axes(
    placement: tuple[str, ...], tp: int, pp: int, cp: int, shard: int
) -> None:
    """Enumerated: the ranks of a stage are counted along tp, cp and dp in the order of the placement."""
    plans = table(job(tp=tp, pp=pp, cp=cp, dp_shard=shard, placement=placement))
    axes, strides, stride = ("tp", "cp", "dp_shard"), {}, 1
    for axis in placement:
        strides[axis] = stride
        stride *= int(getattr(plans, axis)[0])
    ranks = [0]
    for axis in (axis for axis in placement if axis in axes):
        ranks = [rank + i * strides[axis] for i in range(int(getattr(plans, axis)[0])) for rank in ranks]
    bounds = [(low, high) for low in (1, 2, 4, 8) for high in (1, 2, 4, 16, tp * cp * shard) if low <= high]
    sides = [(np.array([low]), np.array([high])) for low, high in bounds]
    for per_node in (4, 8):
        found = place_folded(plans, per_node, axes, sides)
        for (low, high), group in zip(bounds, found, strict=True):
            own = ranks[:high:low]
            nodes = len({rank // per_node for rank in own})
            assert (group.ranks[0], group.nodes[0]) == (len(own), nodes), (low, high)
            assert group.per_node[0] == len(own) / nodes
