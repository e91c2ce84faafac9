"""The space is every valid plan, once: held against all combinations, tried one by one."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import knee
from knee.base.errors import SpecError
from knee.engine.simulator import simulate_table
from knee.search.bound import least_step, least_unsharded_step
from knee.search.follow_ups import gpus_that_fit
from knee.search.plan_search import matching
from knee.search.space import (
    Space,
    _sensible,
    count_plans,
    divisors,
    memory_table,
    schedules,
    sharded_table,
    unsharded_table,
    whole_table,
)
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.model import Experts, Model
from knee.specs.plan import CP_METHODS, RECOMPUTES, SHARDINGS, Plan
from knee.specs.schedules import SCHEDULES
from refusals import caught, kind

TINY = Model(name="tiny", layers=4, hidden=64, ffn=128, heads=4, kv_heads=2, vocab=512)
MODEL = load_model("llama2-7b").spec
OPEN = ("placement", "tp_overlap_frac", "imbalance", "capacity_factor")
SPARSE = replace(TINY, layers=2, kv_heads=4, experts=Experts(count=4, top_k=2, ffn=32))
ODD = Model(name="odd", layers=6, hidden=96, ffn=128, heads=6, kv_heads=3, vocab=512)
CLUSTER, PROFILE = load_cluster("dgx-h100").spec, load_profile("eager").spec


def canonical(plan: Plan) -> Plan:
    """The same plan with options that change nothing at their defaults."""
    changes: dict[str, object] = {}
    if plan.pp == 1:
        changes |= {"schedule": "1f1b", "virtual_stages": 1}
    if plan.tp == 1:
        changes["sequence_parallel"] = True
    if plan.cp == 1:
        changes["cp_method"] = "allgather"
    return replace(plan, **changes)


def tried(model: Model, gpus: int, batch: int, seq_len: int) -> set[Plan]:
    """Every combination that ``Job`` takes."""
    found = set()
    degrees = [d for d in product(divisors(gpus), repeat=5) if np.prod(d) == gpus]
    virtual = range(1, model.layers + 3)
    eps = (1,) if model.experts is None else divisors(model.experts.count)
    for (tp, pp, cp, shard, replicate), mode, schedule, v, size, sp, again, method, ep, split in product(
        degrees,
        SHARDINGS,
        SCHEDULES,
        virtual,
        divisors(batch),
        (True, False),
        ("none", "full"),
        CP_METHODS,
        eps,
        (False, True)[: len(eps)],
    ):
        if v > 1 and (schedule != "interleaved" or not _sensible(model.layers, pp, v)):
            continue
        try:
            plan = Plan(
                tp=tp,
                pp=pp,
                cp=cp,
                ep=ep,
                etp=tp if split else 1,
                dp_shard=shard,
                dp_replicate=replicate,
                sharding=mode,
                schedule=schedule,
                virtual_stages=v,
                micro_batch=size,
                sequence_parallel=sp,
                recompute=again,
                cp_method=method,
            )
            Job(
                model=model, cluster=CLUSTER, profile=PROFILE, plan=plan, gpus=gpus, global_batch=batch, seq_len=seq_len
            )
        except SpecError:
            continue
        found.add(canonical(plan))
    return found


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "seq_len"),
    [
        (TINY, 4, 4, 64),
        (TINY, 8, 4, 64),
        (ODD, 6, 6, 48),
        (TINY, 1, 2, 64),
        (TINY, 5, 4, 64),
        (ODD, 4, 3, 20),
        (SPARSE, 4, 2, 64),
    ],
)
def test_the_space_is_every_valid_plan_once(model: Model, gpus: int, batch: int, seq_len: int) -> None:
    asked = {"shardings": SHARDINGS, "schedules": SCHEDULES}
    table = whole_table(Space(model=model, gpus=gpus, global_batch=batch, seq_len=seq_len, **asked))
    plans = [table.plan(i) for i in range(len(table))]
    assert len(set(plans)) == len(plans)
    assert set(plans) == tried(model, gpus, batch, seq_len)


def test_limits() -> None:
    space = Space(model=TINY, gpus=8, global_batch=8, seq_len=64)
    whole = whole_table(space)
    for limits, holds in (
        ({"max_tp": 2}, lambda t: t.tp <= 2),
        ({"max_pp": 1}, lambda t: t.pp == 1),
        ({"shardings": ("fsdp",)}, lambda t: t.sharding == SHARDINGS.index("fsdp")),
        ({"recomputes": ("full",)}, lambda t: t.recompute == RECOMPUTES.index("full")),
        ({"micro_batches": (2,)}, lambda t: t.micro_batch == 2),
    ):
        some = whole_table(replace(space, **limits))
        assert 0 < len(some) < len(whole)
        assert holds(some).all()
        assert len(some) == holds(whole).sum()


def test_attention_is_recomputed_where_that_saves() -> None:
    space = Space(model=TINY, gpus=2, global_batch=4, seq_len=64, attention_again=True)
    assert RECOMPUTES.index("attention") in whole_table(space).recompute


@pytest.mark.parametrize(
    ("model", "cluster", "profile", "gpus", "batch"),
    [
        ("llama2-7b", "dgx-h100", "eager", 16, 32),
        ("llama2-70b", "dgx-a100", "fused", 64, 64),
        ("llama3-8b", "dgx-h100", "compiled", 32, 16),
        ("llama2-7b", "dgx-h100", "paper", 128, 256),
    ],
)
def test_no_step_is_shorter_than_its_bound(model: str, cluster: str, profile: str, gpus: int, batch: int) -> None:
    specs = load_model(model).spec, load_cluster(cluster).spec, load_profile(profile).spec
    table = whole_table(Space(model=specs[0], gpus=gpus, global_batch=batch, seq_len=4096))
    some = table.rows(np.sort(np.random.default_rng(0).choice(len(table), min(4000, len(table)), replace=False)))
    least, found = least_step(*specs, some), simulate_table(*specs, some)
    assert (least.step_s <= found.step_s).all()
    assert (least.energy_j <= found.power_w_per_gpu * found.step_s).all()
    assert np.median(found.step_s / least.step_s) < 1.1
    zero1 = replace(
        some,
        sharding=np.full(len(some), SHARDINGS.index("zero1")),
        dp_shard=some.dp,
        dp_replicate=np.ones_like(some.dp),
    )
    unsharded = least_unsharded_step(*specs, zero1)
    assert (unsharded.step_s <= found.step_s).all()
    assert (unsharded.energy_j <= found.power_w_per_gpu * found.step_s).all()


@pytest.mark.parametrize("limits", [{}, {"shardings": ("fsdp", "ddp")}, {"shardings": ("zero2",), "max_pp": 2}])
def test_the_shardings_of_unsharded_plans_are_the_space(limits: dict[str, Any]) -> None:
    space = Space(model=MODEL, gpus=16, global_batch=32, seq_len=4096, sync_every=4, **limits)
    unsharded = unsharded_table(space)
    rows = [
        sorted(zip(*(getattr(t, f.name).tolist() for f in fields(t) if f.name not in OPEN), strict=True))
        for t in (whole_table(space), sharded_table(space, unsharded))
    ]
    assert rows[0] == rows[1]
    assert count_plans(space) == len(rows[0])


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("pp == 1 and tp <= 8", lambda t: (t.pp == 1) & (t.tp <= 8)),
        ("not (tp > 1 or cp > 1)", lambda t: (t.tp == 1) & (t.cp == 1)),
        ("sharding == 'fsdp'", lambda t: t.sharding == SHARDINGS.index("fsdp")),
        ("1 < tp <= 4", lambda t: (t.tp > 1) & (t.tp <= 4)),
        ("tp * pp == 4 and microbatches >= 2", lambda t: (t.tp * t.pp == 4) & (t.microbatches >= 2)),
        ("sequence_parallel", lambda t: t.sequence_parallel),
    ],
)
def test_conditions(condition: str, count: object) -> None:
    table = whole_table(Space(model=TINY, gpus=8, global_batch=8, seq_len=64))
    assert (matching(table, condition) == count(table)).all()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("tp ==", "not-a-condition"),
        ("tq == 1", "unknown-field"),
        ("tp + 1", "not-a-condition"),
        ("sharding > 'fsdp'", "not-a-condition"),
        ("sharding == 'zero3'", "unknown-choice"),
        ("tp == 'two'", "not-a-condition"),
        ("open('x')", "not-a-condition"),
        ("-sequence_parallel < 1", "not-a-condition"),
        ("tp % 0 == 0", "not-a-condition"),
        ("tp and pp == 1", "not-a-condition"),
        ("[tp]", "not-a-condition"),
        ("sharding + 1 == 2", "not-a-condition"),
    ],
)
def test_conditions_that_are_none(condition: str, code: str) -> None:
    table = whole_table(Space(model=TINY, gpus=2, global_batch=2, seq_len=64))
    assert kind(caught(lambda: matching(table, condition))) == (code, "only")


def test_conditions_know_the_degrees_of_experts() -> None:
    found = knee.scale("qwen3-30b-a3b", cluster="dgx-h100", gpus=[32], local_batch=16, best=True, ep=8)
    assert [row["plan.ep"] for row in found.rows()] == [8]


@pytest.mark.parametrize(
    ("layers", "pp", "chunks"),
    [
        (32, 4, [2, 4, 8]),  # each rank has 8 layers
        (12, 4, [3]),
        (126, 16, [2, 4, 8]),  # Llama-3 405B: the two ends are a layer short
        (61, 16, [2]),  # no cut is even, nor one that leaves the ends a layer short
        (30, 16, [2]),
        (4, 8, []),
    ],
)
def test_virtual_stages_that_are_tried(layers: int, pp: int, chunks: list[int]) -> None:
    space = Space(model=replace(TINY, layers=layers), gpus=pp, global_batch=pp, seq_len=64)
    assert [v for name, v in schedules(space, pp) if name == "interleaved"] == chunks
    assert all(v == 1 for name, v in schedules(space, pp) if name != "interleaved")


@pytest.mark.parametrize(("recompute", "share"), [("none", 1.0), ("blocks", 0.5), ("full", 1.0)])
def test_blocks_are_half_of_the_layers(recompute: str, share: float) -> None:
    space = Space(model=TINY, gpus=2, global_batch=4, seq_len=64, recomputes=(recompute,))
    found = whole_table(space)
    assert (found.recompute == RECOMPUTES.index(recompute)).all()
    assert (found.recompute_frac == share).all()


def test_memory_that_is_just_enough_is_enough() -> None:
    """The leanest plan of FSDP with full recomputation; with a byte less it takes twice the GPUs. The first number
    that is tried is twice the number of GPUs that there are."""
    space = Space(model=MODEL, gpus=8, global_batch=64, seq_len=4096)
    lean = replace(space, shardings=("fsdp",), micro_batches=(1,), recomputes=("full",), schedules=("1f1b",))
    needs = [memory_table(MODEL, PROFILE, whole_table(replace(lean, gpus=n))).total_bytes.min() for n in (16, 32)]
    assert needs[1] < needs[0] - 1

    def enough(hbm_bytes: float) -> int | None:
        return gpus_that_fit(space, replace(CLUSTER, gpu=replace(CLUSTER.gpu, hbm_bytes=hbm_bytes)), PROFILE)

    assert [enough(needs[0]), enough(needs[0] - 1), enough(needs[1])] == [16, 32, 32]
    assert enough(1.0) is None
