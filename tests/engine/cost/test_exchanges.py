"""Exchanges over slow links: hierarchical collectives, streamed and quantised outer syncs, and the loss they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.base.errors import SpecError
from knee.engine.cost.collective_cost import Links, all_reduce_s, gather_s, leveled_gather_s
from knee.engine.cost.outer_sync import loss_ratio
from knee.engine.cost.placement import GroupPlacement
from knee.engine.one_job import simulate
from knee.search.space import Space, whole_table
from knee.specs.hardware import Tier
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan import Plan
from knee.specs.plan_table import table_of

MODEL, H100, EAGER = load_model("llama2-7b").spec, load_cluster("dgx-h100").spec, load_profile("eager").spec
SITES = replace(
    H100, fabric=replace(H100.fabric, tiers=(Tier(name="site", nodes=64, hop_s=5e-3, oversubscription=50),))
)


def step(cluster: object = H100, **plan: object) -> float:
    options = {"sharding": "hsdp", "dp_replicate": 2} | plan
    job, _ = make_job(MODEL, cluster, EAGER, gpus=1024, global_batch=2048, plan_options=options)  # type: ignore[arg-type]
    return simulate(job).step_s


def group(nodes: int, per_node: int = 8, *, leveled: bool = True) -> GroupPlacement:
    columns = {"ranks": nodes * per_node, "per_node": per_node, "nodes": nodes, "span": nodes}
    return GroupPlacement(**{k: np.array([float(v)]) for k, v in columns.items()}, leveled=np.array([leveled]))


def test_levels_are_never_slower_than_flat_and_save_latency() -> None:
    links = Links.idle(SITES)
    for nodes in (2, 64, 65, 512):
        for size in (1e6, 1e9):
            for takes in (gather_s, all_reduce_s):
                flat = float(takes(links, group(nodes, leveled=False), np.array([size]))[0])
                assert float(takes(links, group(nodes), np.array([size]))[0]) <= flat
    small = [float(gather_s(Links.idle(H100), group(256, leveled=on), np.array([1e6]))[0]) for on in (False, True)]
    assert small[0] / small[1] > 4  # PCCL: up to 5.7 times on 2,048 GPUs


def test_one_level_is_a_ring() -> None:
    links = Links.idle(H100)
    one = group(8, per_node=1)
    assert leveled_gather_s(links, one, np.array([1e9])) == pytest.approx(
        gather_s(links, one, np.array([1e9])), rel=0.01
    )


def test_streaming_and_fewer_bits_never_slow_an_outer_sync_down() -> None:
    blocking = step(SITES, sync_every=20)
    streamed, narrow = step(SITES, sync_every=20, sync_fragments=4), step(SITES, sync_every=20, sync_dtype="fp4")
    assert streamed < blocking
    assert narrow < blocking
    assert step(SITES, sync_every=20, sync_fragments=4, sync_dtype="fp4") <= min(streamed, narrow)
    assert step(sync_every=20, sync_fragments=1, sync_dtype="fp32") == step(sync_every=20)


def test_a_table_has_the_plan_that_it_was_made_of() -> None:
    options = {"sharding": "hsdp", "dp_replicate": 2, "collectives": "hierarchical"}
    options |= {"sync_every": 20, "sync_fragments": 4, "sync_dtype": "fp8"}  # type: ignore[dict-item]
    job, _ = make_job(MODEL, H100, EAGER, gpus=16, global_batch=32, plan_options=options)
    assert table_of([job]).plan(0) == job.plan
    fixed = Plan(sync_fragments=4, sync_dtype="fp8", collectives="hierarchical")
    table = whole_table(Space(model=MODEL, gpus=16, global_batch=32, seq_len=4096, sync_every=20, fixed=fixed))
    for row in range(0, len(table), 499):
        apart = table.dp_replicate[row] > 1
        plan = table.plan(row)
        assert (plan.sync_every, plan.sync_fragments, plan.sync_dtype) == ((20, 4, "fp8") if apart else (1, 1, None))
        assert plan.collectives == "hierarchical"


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"sync_fragments": 4}, "plan.sync_fragments"),
        ({"sync_dtype": "fp8"}, "plan.sync_dtype"),
        ({"sync_every": 4, "sync_fragments": 5}, "plan.sync_fragments"),
        ({"sync_every": 4, "sync_fragments": 0}, "plan.sync_fragments"),
    ],
)
def test_exchanges_that_cannot_be(plan: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as error:
        step(**plan)
    assert error.value.field == field


def test_the_loss_of_replicas() -> None:
    assert loss_ratio(1.3e9, 2) == pytest.approx(1.001, abs=0.002)
    assert [loss_ratio(35e6, m) for m in (2, 4, 8, 16)] == sorted(loss_ratio(35e6, m) for m in (2, 4, 8, 16))
    assert loss_ratio(405e9, 8) == loss_ratio(2.4e9, 8) > 1
