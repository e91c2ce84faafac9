"""Replicas that exchange every so many steps: by hand, against DiLoCo's own count, and what is refused."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from knee.base.errors import SpecError
from knee.engine.cost.collective_cost import Links, all_reduce_s
from knee.engine.cost.compute_costs import product_column
from knee.engine.cost.kernel_cost import cost_of
from knee.engine.cost.placement import GroupPlacement
from knee.engine.measurement import Measurement
from knee.engine.one_job import events_of, simulate
from knee.engine.simulator import evaluate
from knee.engine.workload import operations as op
from knee.engine.workload.parameters import parameter_count
from knee.search.space import Space, whole_table
from knee.specs import Job, Plan
from knee.specs.load import load_profile
from knee.specs.plan_table import table_of
from knee.trust.trust import trust_of
from tables import EAGER, H100, LLAMA_7B, job

HSDP = {"sharding": "hsdp", "dp_shard": 64, "dp_replicate": 8}
WAYS: list[dict[str, object]] = [
    HSDP,
    {"sharding": "ddp", "dp_replicate": 16, "tp": 8},
    {"sharding": "zero1", "dp_shard": 8, "dp_replicate": 4, "tp": 2},
    {"sharding": "fsdp_no_reshard", "dp_shard": 16, "dp_replicate": 4},
    {"sharding": "hsdp", "dp_shard": 8, "dp_replicate": 4, "pp": 4},
]


def answer(**plan: object) -> Measurement:
    return simulate(job(**plan))


def sent_between_replicas(m: Measurement) -> float:
    """Bytes that a GPU hands to the other replicas in a step, on average."""
    return sum(load.calls * load.message_bytes for load in m.comm_loads if load.group == "dp_replicate")


def of_results(one: Job, name: str) -> float:
    return float(getattr(evaluate(one.model, one.cluster, one.profile, table_of([one])).results, name)[0])


# What an exchange is.


@pytest.mark.parametrize("way", WAYS[:4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_communication_is_cut_as_often_as_it_is_left_out(way: dict[str, object], dtype: str) -> None:
    """DiLoCo (arXiv 2311.08105) with H = 500 "communicates 500 times less"; in HSDP between the replicas."""
    every, rarely = (answer(**way, reduce_dtype=dtype, sync_every=h) for h in (1, 500))
    assert sent_between_replicas(every) == pytest.approx(500 * sent_between_replicas(rarely), rel=1e-9)


def test_the_mean_of_four_steps_is_three_alone_and_one_that_ends_in_the_exchange() -> None:
    alone, four = job(**HSDP, sync_every=2**20), job(**HSDP, sync_every=4)
    w = evaluate(four.model, four.cluster, four.profile, table_of([four]))
    group = GroupPlacement(
        **{
            name: np.array([value])
            for name, value in {"ranks": 8.0, "per_node": 1.0, "nodes": 8.0, "span": 57.0}.items()
        }
    )
    message = 4.0 * np.array([parameter_count(LLAMA_7B) / 64])
    exchange = float(all_reduce_s(Links.in_training(H100, EAGER), group, message)[0])
    assert float(w.outer_sync.all_reduce_s[0]) == pytest.approx(exchange, rel=1e-3)
    whole = of_results(alone, "step_s") * 4 + exchange + float(w.outer_sync.optimizer.time_s[0])
    assert of_results(four, "step_s") * 4 == pytest.approx(whole, rel=1e-5)
    assert of_results(four, "exposed_comm_s") - of_results(alone, "exposed_comm_s") == pytest.approx(
        exchange / 4, rel=1e-3
    )


def test_the_outer_optimizer_keeps_two_fp32_states_of_its_shard() -> None:
    for way in WAYS[:4]:
        every, rarely = answer(**way), answer(**way, sync_every=10)
        assert every.memory is not None
        assert rarely.memory is not None
        # as much as AdamW's two moments in fp32, and sharded as they are
        assert rarely.memory.optimizer_bytes == pytest.approx(2 * every.memory.optimizer_bytes, rel=1e-12)
        others = {k: v for k, v in asdict(every.memory).items() if k not in ("optimizer_bytes", "context_bytes")}
        assert others.items() <= asdict(rarely.memory).items()
    half = answer(**HSDP, state_dtype="bf16", sync_every=10).memory
    assert half is not None
    assert half.optimizer_bytes == pytest.approx((2 * 2 + 2 * 4) * parameter_count(LLAMA_7B) / 64)


def test_the_outer_optimizers_time_is_its_traffic() -> None:
    one = job(sharding="ddp", dp_replicate=16, tp=8, sync_every=10)
    w = evaluate(one.model, one.cluster, one.profile, table_of([one]))
    passes = 16 * 4.0 * w.traffic.layer.elements[0] * 32 + 16 * 4.0 * (
        w.traffic.embedding.elements[0] + w.traffic.head.elements[0]
    )
    assert w.outer_sync.optimizer.moved_bytes[0] == pytest.approx(passes)
    rate = H100.gpu.hbm_bytes_per_s * H100.gpu.hbm_frac / EAGER.stream_scale
    assert w.outer_sync.optimizer.time_s[0] == pytest.approx(passes / rate, rel=1e-2)


@pytest.mark.parametrize("way", WAYS)
def test_meeting_less_often_is_never_slower(way: dict[str, object]) -> None:
    steps = [answer(**way, sync_every=h).step_s for h in (2, 10, 100, 500, 100_000)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < answer(**way).step_s


def test_steps_alone_are_those_of_one_replica() -> None:
    """But for stragglers, which are waited for at the exchange, nothing knows of the other replicas."""
    many = answer(**HSDP, sync_every=2**20)
    one = answer(sharding="fsdp", dp_shard=64)
    assert many.step_s - many.straggler_s == pytest.approx(one.step_s - one.straggler_s, rel=1e-6)
    assert many.straggler_s > one.straggler_s
    norm = next(load for load in many.comm_loads if load.group == "replica")
    assert norm.group_size == 64


def test_context_parallel_ranks_of_ddp_still_add_their_gradients() -> None:
    """They hold parts of one sequence: what they leave out would be wrong, not rare."""
    loads = {
        load.group: load
        for load in answer(sharding="ddp", dp_replicate=8, cp=2, tp=4, sync_every=100).comm_loads
        if load.collective == "all_reduce" and load.message_bytes > 1e6
    }
    assert (loads["cp"].group_size, loads["dp_replicate"].group_size) == (2, 8)
    assert loads["dp_replicate"].calls == pytest.approx(0.01)


@pytest.mark.parametrize("way", WAYS)
def test_the_trace_is_of_the_mean_step(way: dict[str, object]) -> None:
    for events in events_of(job(**way, sync_every=10)):
        assert "outer" in events.names
        assert {"dp_replicate", "replica"} <= {group.name for group in events.groups}


# What is said about it.


def test_what_a_token_is_worth_is_not_modelled_and_that_is_said() -> None:
    assert any("replicas change the loss by" in sentence for sentence in answer(**HSDP, sync_every=500).assumptions)
    assert not any("effect on the loss is not modelled" in sentence for sentence in answer(**HSDP).assumptions)


def test_no_published_run_did_it() -> None:
    trust = trust_of(job(**HSDP, sync_every=500))
    assert trust.label == "extrapolated"
    assert any("every 500 steps" in reason for reason in trust.reasons)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"dp_shard": 8, "sync_every": 10}, "no replicas"),
        ({"sharding": "fsdp", "dp_shard": 8, "sync_every": 10}, "no replicas"),
        ({"sync_every": 0}, "sync_every is 0; it must be at least 1"),
    ],
)
def test_refused(plan: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Plan(**plan)  # type: ignore[arg-type]


def test_a_search_keeps_it_where_there_are_replicas() -> None:
    space = Space(model=LLAMA_7B, gpus=16, global_batch=32, seq_len=4096, sync_every=500)
    table = whole_table(space)
    assert set(table.sync_every[table.dp_replicate > 1]) == {500}
    assert set(table.sync_every[table.dp_replicate == 1]) == {1}
    assert all(table.plan(row).sync_every == table.sync_every[row] for row in range(0, len(table), 997))


@pytest.mark.parametrize(
    ("sharding", "profile", "shards", "is_copied"),
    [
        ("zero1", "eager", 8, True),
        ("ddp", "eager", 1, False),  # every forward casts
        ("fsdp", "fused", 8, False),  # every gather casts
        ("zero1", "fused", 8, True),
        ("ddp", "fused", 1, True),
    ],
)
def test_parameters_that_are_kept_in_32_bit_are_copied_to_16(
    sharding: str, profile: str, shards: int, is_copied: bool
) -> None:
    """Those that are kept in 16 bit never are."""
    stack = load_profile(profile).spec
    owned, none = np.array([parameter_count(LLAMA_7B) / shards]), np.zeros(1)
    for state_dtype, copied in (("fp32", owned if is_copied else none), ("bf16", none)):
        this = job(profile=stack, sharding=sharding, dp_shard=shards, dp_replicate=8 // shards, state_dtype=state_dtype)
        plans = table_of([this])
        alone = op.optimizer(owned, plans, copied, none, none, stack.kernels)
        expected = cost_of(H100.gpu, stack, product_column(plans), alone).moved_bytes
        found = evaluate(LLAMA_7B, H100, stack, plans).optimizer.moved_bytes
        assert found == pytest.approx(expected, rel=1e-9), state_dtype
