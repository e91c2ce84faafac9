"""Collectives over random clusters and groups: a slower link makes none faster, and more bytes take no less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.base.arrays import Floats
from knee.engine.cost.collective_cost import OPERATIONS, Links, all_reduce_s, gather_s, idle_s, send_s
from knee.engine.cost.placement import GroupPlacement
from knee.specs.catalog import entry_names
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster

SIZES = np.geomspace(1e3, 64e9, 40)
NODE_RATES = ("link_bytes_per_s", "pair_bytes_per_s", "link_frac")
FABRIC_RATES = ("nic_bytes_per_s", "nic_frac", "p2p_frac", "p2p_bytes_per_s")
LATENCIES = ("node.hop_s", "fabric.hop_s", "fabric.tree_level_s")
SLOWER = (*(f"node.{n}" for n in NODE_RATES), *(f"fabric.{n}" for n in FABRIC_RATES), *LATENCIES, "fabric.tiers")
NOISE = 1e-12


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """A catalogue cluster whose links are anywhere from an eighth to eight times as fast."""
    where = load_cluster(draw(st.sampled_from([name for name in entry_names("cluster") if name != "cpu"]))).spec
    by = st.sampled_from([0.125, 0.5, 1.0, 2.0, 8.0])
    for field in SLOWER[:-1]:
        if not field.endswith("_frac"):
            where = slower(where, field, draw(by))
    return where


@st.composite
def groups(draw: st.DrawFn, gpus: int = 8) -> GroupPlacement:
    """A group on up to 512 nodes that need not lie side by side."""
    nodes = draw(st.sampled_from([1, 2, 3, 4, 7, 16, 64, 512]))
    per_node = draw(st.integers(1 if nodes > 1 else 2, gpus))
    columns = {"ranks": nodes * per_node, "per_node": per_node, "nodes": nodes}
    span = nodes * draw(st.sampled_from([1, 1, 2, 8]))
    return GroupPlacement(**{k: np.full(len(SIZES), float(v)) for k, v in {**columns, "span": span}.items()})


def slower(cluster: Cluster, field: str, by: float) -> Cluster:
    """The cluster with one rate divided by ``by``, or one latency multiplied."""
    room, name = field.split(".")
    if name == "tiers":
        tiers = tuple(replace(t, hop_s=by * t.hop_s, oversubscription=by) for t in cluster.fabric.tiers)
        return replace(cluster, fabric=replace(cluster.fabric, tiers=tiers))
    part = getattr(cluster, room)
    value = getattr(part, name)
    return replace(
        cluster,
        **{room: replace(part, **{name: value * by if name.endswith("_s") and "per" not in name else value / by})},
    )


def times(cluster: Cluster, group: GroupPlacement) -> dict[str, Floats]:
    """Every collective, as nccl-tests measures it and beside training."""
    found = {f"idle {name}": idle_s(cluster, group, name, SIZES) for name in OPERATIONS}
    training = Links(cluster=cluster, hop_scale=1.6, bandwidth_scale=0.8, pat="off")
    for pat in ("off", "nccl", "any"):
        found[f"gather, pat {pat}"] = gather_s(replace(training, pat=pat), group, SIZES)
    found["all-reduce"] = all_reduce_s(training, group, SIZES)
    found["send"] = send_s(training, group.ranks, group.nodes == 1, SIZES, group.span / group.nodes)
    return found


@pytest.mark.parametrize("field", SLOWER)
@given(cluster=clusters(), group=groups(), by=st.sampled_from([1.1, 2.0, 10.0]))
@settings(max_examples=40)
def test_a_slower_link_makes_no_collective_faster(
    field: str, cluster: Cluster, group: GroupPlacement, by: float
) -> None:
    before, after = times(cluster, group), times(slower(cluster, field, by), group)
    for name, seconds in before.items():
        assert (after[name] >= seconds * (1 - NOISE)).all(), name


@given(cluster=clusters(), group=groups())
@settings(max_examples=80)
def test_more_bytes_take_no_less(cluster: Cluster, group: GroupPlacement) -> None:
    for name, seconds in times(cluster, group).items():
        assert (np.diff(seconds) >= -NOISE * seconds[1:]).all(), name
