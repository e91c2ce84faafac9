"""Flat or hierarchical collectives: the search tries both where a slow tier is crossed, and finds the best of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import knee
from knee.engine.simulator import simulate_table
from knee.search.bound import least_unsharded_step
from knee.search.follow_ups import robust
from knee.search.plan_search import search
from knee.search.space import (
    FLAT,
    HIERARCHICAL,
    Space,
    count_plans,
    searched_collectives,
    sharded_table,
    unsharded_table,
    whole_table,
)
from knee.specs.hardware import Cluster, Tier
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.plan import COLLECTIVES
from knee.specs.plan_table import COLUMNS, PlanTable
from search.brute_force import differences_of

MODEL, H100, EAGER = load_model("llama2-7b").spec, load_cluster("dgx-h100").spec, load_profile("eager").spec


def sites(nodes: int, *, hop_s: float = 2e-4, oversubscription: float = 30.0) -> Cluster:
    tiers = (Tier(name="site", nodes=nodes, hop_s=hop_s, oversubscription=oversubscription),)
    return replace(H100, fabric=replace(H100.fabric, tiers=tiers))


def rows(table: PlanTable) -> list[tuple[float, ...]]:
    columns = [np.nan_to_num(getattr(table, name), nan=-1.0).tolist() for name in COLUMNS]
    return sorted(zip(*columns, strict=True))


def test_both_are_tried_only_where_a_slow_tier_is_crossed() -> None:
    assert searched_collectives(H100, 4096) == ()  # its tiers are non-blocking, and nearer than a hop
    assert searched_collectives(sites(4), 32) == ()
    assert searched_collectives(sites(4), 40) == COLLECTIVES
    assert searched_collectives(sites(4, hop_s=0.0), 40) == COLLECTIVES
    assert searched_collectives(sites(4, oversubscription=1.0), 40) == COLLECTIVES
    assert searched_collectives(sites(4, hop_s=0.0, oversubscription=1.0), 40) == ()


@pytest.mark.parametrize(("nodes", "objective"), [(1, "tokens_per_s"), (2, "tokens_per_j")])
def test_the_search_finds_what_simulating_everything_finds(nodes: int, objective: str) -> None:
    space = Space(
        model=MODEL, gpus=32, global_batch=32, seq_len=4096, max_tp=4, max_pp=2, max_cp=1, collectives=COLLECTIVES
    )
    assert differences_of(space, sites(nodes), EAGER, objective, 10) == []
    found = search(space, sites(nodes), EAGER, objective=objective, keep=20)  # type: ignore[arg-type]
    assert {FLAT, HIERARCHICAL} <= set(found.table.collectives.tolist())
    assert found.plans == len(whole_table(space))


def test_the_tables_have_each_plan_with_both_and_the_bound_holds_for_both() -> None:
    space = Space(model=MODEL, gpus=16, global_batch=16, seq_len=2048, collectives=COLLECTIVES)
    unsharded, whole = unsharded_table(space), whole_table(space)
    assert rows(sharded_table(space, unsharded)) == rows(whole)
    assert count_plans(space) == len(whole) == 2 * len(whole_table(replace(space, collectives=())))
    some = whole.rows(np.arange(0, len(whole), 7))
    found = simulate_table(MODEL, sites(1), EAGER, some)
    same = {"dp_shard": some.dp, "dp_replicate": np.ones_like(some.dp)}
    fastest = replace(some, sharding=np.full(len(some), 1), collectives=np.full(len(some), HIERARCHICAL), **same)
    assert (least_unsharded_step(MODEL, sites(1), EAGER, fastest).step_s <= found.step_s).all()


def test_a_plan_that_nccl_can_run_is_recommended_unless_it_is_clearly_slower() -> None:
    limits = {"gpus": 64, "global_batch": 64, "seq_len": 4096, "max_pp": 1, "max_cp": 1, "shardings": ("fsdp",)}
    space = Space(model=MODEL, collectives=COLLECTIVES, **limits)  # type: ignore[arg-type]
    slow, near = (search(space, sites(4, oversubscription=n), EAGER) for n in (200.0, 1.0))
    assert slow.table.collectives[robust(slow).recommended] == HIERARCHICAL
    assert near.table.collectives[robust(near).recommended] == FLAT


def test_plan_makes_the_choice_and_says_what_nccl_has() -> None:
    cluster = sites(4, oversubscription=200.0)
    asked = {"cluster": cluster, "global_batch": 64, "seq_len": 4096}
    limits = {"max_pp": 1, "max_cp": 1, "sharding": ["fsdp"]}
    found = knee.plan("llama2-7b", gpus=64, **asked, **limits)
    flat = knee.plan("llama2-7b", gpus=64, collectives="flat", **asked, **limits)
    assert found.best.plan.collectives == "hierarchical"
    assert found.best.tokens_per_s > flat.best.tokens_per_s
    assert found.flat_collectives is not None
    assert found.to_dict()["flat_collectives"]["tokens_per_s"] == flat.plans[0].tokens_per_s
    assert flat.flat_collectives is None
    only = knee.plan("llama2-7b", gpus=64, only="collectives == 'flat'", **asked, **limits)
    assert only.best.plan == flat.best.plan
    curve = knee.scale("llama2-7b", gpus=[64], best=True, sharding="fsdp", pp=1, cp=1, **asked)
    (row,) = curve.rows()
    assert row["tokens_per_s"] == pytest.approx(flat.plans[0].tokens_per_s)  # curves have what NCCL can run
