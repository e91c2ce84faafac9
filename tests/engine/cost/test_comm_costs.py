"""Messages of a step: which collective each one is, over which group, and how much compute it slows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from knee.engine.cost.collective_cost import Links, all_reduce_s, gather_s
from knee.engine.cost.comm_costs import contention
from knee.engine.cost.placement import GroupPlacement
from knee.engine.simulator import EvaluatedStep, evaluate
from knee.specs.load import load_model
from tables import EAGER, H100, LLAMA_7B, job, table

LAYER, EMBEDDING, HEAD = 202_383_360, 32_000 * 4096, 32_000 * 4096 + 4096
PLAIN = replace(EAGER, skew_s=0.0, ddp_bucket_bytes=100e6)
LINKS = Links.in_training(H100, PLAIN)


def step(profile: Any = PLAIN, model: Any = LLAMA_7B, **plan: Any) -> EvaluatedStep:
    return evaluate(model, H100, profile, table(job(model=model, profile=profile, **plan)))


def sums(group: GroupPlacement, size: float) -> float:
    return float(all_reduce_s(LINKS, group, np.array([float(size)]))[0])


def gathers(group: GroupPlacement, size: float) -> float:
    return float(gather_s(LINKS, group, np.array([float(size)]))[0])


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(100e6, 8), (200e6, 4), (1e9, 1), (809_533_440.0, 1)])
def test_ddp_reduces_a_layer_by_buckets(bucket_bytes: float, buckets: int) -> None:
    """809 MB of fp32 gradients, in the buckets that they fill."""
    w = step(replace(PLAIN, ddp_bucket_bytes=bucket_bytes), sharding="ddp", dp_replicate=16)
    expected = buckets * sums(w.groups.replicate, 4 * LAYER / buckets)
    assert w.comm.replicate_layer[0] == pytest.approx(expected, rel=1e-12)
    assert (w.comm.reduce_layer[0], w.comm.gather_layer[0]) == (0, 0)


def test_shards_are_gathered_and_reduced_and_then_summed_over_replicas_in_one_piece() -> None:
    w = step(sharding="hsdp", dp_shard=8, dp_replicate=4)
    for part, size in (("layer", LAYER), ("embedding", EMBEDDING), ("head", HEAD), ("root", EMBEDDING + HEAD)):
        found = [float(getattr(w.comm, f"{name}_{part}")[0]) for name in ("gather", "reduce", "replicate")]
        shard, replicas = w.groups.shard, w.groups.replicate
        expected = [gathers(shard, 2 * size), gathers(shard, 4 * size), sums(replicas, 4 * size / 8)]
        assert found == pytest.approx(expected, rel=1e-6), part  # the norm's shards are padded


def test_ranks_wait_for_the_slowest_once_a_message() -> None:
    late = replace(PLAIN, skew_s=1e-3)
    one, other = (step(p, sharding="hsdp", dp_shard=8, dp_replicate=4, tp=2) for p in (PLAIN, late))
    for name in ("gather_layer", "reduce_layer", "replicate_layer", "tp_gather", "tp_all_reduce"):
        assert getattr(other.comm, name)[0] >= getattr(one.comm, name)[0], name
    assert other.comm.gather_layer[0] > one.comm.gather_layer[0]
    assert (other.comm.tp_sum[0], other.comm.norm[0]) == (one.comm.tp_sum[0], one.comm.norm[0])


@pytest.mark.parametrize("loss_parallel", [True, False])
def test_tensor_parallel_messages(loss_parallel: bool) -> None:
    w, tokens = step(replace(PLAIN, loss_parallel=loss_parallel), tp=4, dp_shard=2, sharding="zero1"), 4096
    tp = w.groups.tp
    assert w.comm.tp_gather[0] == pytest.approx(gathers(tp, tokens * 4096 * 2), rel=1e-12)
    assert w.comm.tp_all_reduce[0] == pytest.approx(sums(tp, tokens * 4096 * 2), rel=1e-12)
    assert w.comm.tp_sum[0] == pytest.approx(sums(tp, tokens * 4), rel=1e-12)
    assert w.comm.tp_scale[0] == pytest.approx(sums(tp, 4), rel=1e-12)
    loss = sums(tp, tokens * 4) if loss_parallel else gathers(tp, tokens * 32_000 * 2)
    assert w.comm.tp_loss[0] == pytest.approx(loss, rel=1e-12)
    assert w.comm.norm[0] == pytest.approx(sums(w.groups.world, 4), rel=1e-12)
    assert (w.comm.cp_send[0], w.comm.pp_send[0], w.comm.dispatch[0]) == (0, 0, 0)


def kappa(w: EvaluatedStep) -> float:
    return float(contention(w.cluster, w.profile, w.table, w.modes, w.traffic, w.groups, w.comm)[0])


@pytest.mark.parametrize(
    ("plan", "bytes_each", "message"),
    [
        ({"sharding": "ddp", "dp_replicate": 16}, 2 * 4, "replicate_layer"),
        ({"sharding": "ddp", "dp_replicate": 16, "reduce_dtype": "bf16"}, 2 * 2, "replicate_layer"),
        ({"sharding": "fsdp", "dp_shard": 16}, 2, "gather_layer"),
    ],
)
def test_compute_is_slowed_by_the_rate_at_which_a_rank_sends(
    plan: dict[str, Any], bytes_each: float, message: str
) -> None:
    """Of 16 ranks each sends 15 parts of 16 of a gather, and twice that of an all-reduce."""
    w = step(**plan)
    rate = bytes_each * LAYER * 15 / 16 / float(getattr(w.comm, message)[0])
    share = rate / (0.102 * H100.gpu.hbm_bytes_per_s)
    assert share < 1
    assert kappa(w) == pytest.approx(EAGER.compute_slowdown_frac * share, rel=1e-9)


def test_compute_is_slowed_most_where_tensor_parallel_messages_hide() -> None:
    hides = replace(PLAIN, tp_overlap_frac=0.5)
    assert kappa(step(hides, tp=8, sharding="zero1", dp_shard=2)) == EAGER.compute_slowdown_frac
    assert kappa(step(hides, tp=16, sharding="zero1", dp_shard=2)) < EAGER.compute_slowdown_frac  # it leaves the node
    assert kappa(step(hides, tp=8, sharding="zero1")) == EAGER.compute_slowdown_frac
    assert kappa(step(sharding="ddp")) == 0  # one GPU sends nothing


@pytest.mark.parametrize(("dispatcher", "sms"), [("alltoall", None), ("deepep", 20)])
def test_kernels_that_dispatch_tokens_take_sms_from_compute(dispatcher: str, sms: int | None) -> None:
    model = load_model("mixtral-8x7b").spec
    plan = {"ep": 8, "dp_shard": 8, "sharding": "zero1", "dispatcher": dispatcher}
    beside, apart = (kappa(step(model=model, ep_overlap=overlap, **plan)) for overlap in (True, False))
    least = EAGER.compute_slowdown_frac if sms is None else sms / (H100.gpu.sms - sms)
    assert beside == pytest.approx(max(least, apart))
