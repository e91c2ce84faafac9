"""No simulated step is shorter, or takes less energy, than the bounds of the search say: models, clusters, profiles and
plans drawn at random, and those that a bound was once wrong for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from knee.base.arrays import extreme_values
from knee.base.errors import KneeError
from knee.engine.simulator import simulate_table
from knee.search.bound import LeastStep, least_shape_step, least_step, least_unsharded_step
from knee.search.plan_search import hides_most
from knee.search.space import Space, count_plans, kernel_shapes, whole_table
from knee.specs.catalog import entry_names
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.plan import COLLECTIVES, DISPATCHERS, FP8_RECIPES, MOMENT_DTYPES, RECOMPUTES, ROUTINGS, SHARDINGS, Plan
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.schedules import SCHEDULES

PLANS = 160
SHAPE = ("tp", "cp", "micro_batch", "ep", "etp", "recompute", "sequence_parallel", "cp_method")


def drawn_space(seed: int) -> tuple[Space, Cluster, Profile]:
    """A space that some job can be in."""
    draw = random.Random(seed)
    while True:
        model = load_model(draw.choice(entry_names("model"))).spec
        cluster = load_cluster(draw.choice(entry_names("cluster"))).spec
        profile = load_profile(draw.choice(entry_names("profile"))).spec
        sparse, seq_len = model.experts is not None, draw.choice((512, 2048, 4096))
        gpus = min(draw.choice((2, 4, 8, 16, 24, 32, 64, 128)), cluster.max_gpus)
        fixed: dict[str, Any] = {
            "precision": draw.choice(("bf16", "bf16", "fp16", "fp8", "fp4")),
            "fp8_recipe": draw.choice(FP8_RECIPES),
            "state_dtype": draw.choice(("fp32", "bf16")),
            "tp_overlap_frac": draw.choice((None, None, 0.0, 0.9)),
            "collectives": draw.choice(COLLECTIVES),
            "moment_dtype": draw.choice((None, None, *MOMENT_DTYPES)),
        }
        if sparse:
            fixed |= {"ep_overlap": draw.random() < 0.4, "dispatcher": draw.choice(DISPATCHERS)}
            fixed["routing"] = draw.choice(ROUTINGS)
        limits: dict[str, Any] = {
            "schedules": draw.choice(((), SCHEDULES)),
            "shardings": draw.choice(((), SHARDINGS)),
            "recomputes": draw.choice(((), RECOMPUTES)),
            "sync_every": draw.choice((1, 1, 8)),
        }
        batch = gpus * draw.choice((1, 2, 4, 6))
        try:
            sizes = {"gpus": gpus, "global_batch": batch, "seq_len": seq_len}
            space = Space(model=model, fixed=Plan(**fixed), **sizes, **limits)
            one = Plan(precision=fixed["precision"])
            Job(model=model, cluster=cluster, profile=profile, plan=one, gpus=1, global_batch=1, seq_len=seq_len)
        except KneeError:
            continue
        if count_plans(space) > 100_000:
            space = replace(space, max_tp=8, max_pp=8, max_cp=2, micro_batches=(1, 2))
        if 0 < count_plans(space) <= 100_000:
            return space, cluster, profile


def shape_bounds(space: Space, cluster: Cluster, profile: Profile, table: PlanTable) -> LeastStep:
    """Of the kernel shape of each plan."""
    shapes = hides_most(space, kernel_shapes(space))
    rows = [list(zip(*(getattr(t, name).tolist() for name in SHAPE), strict=True)) for t in (shapes, table)]
    place = {row: i for i, row in enumerate(rows[0])}
    index = np.array([place[row] for row in rows[1]])
    return least_shape_step(space.model, cluster, profile, shapes.rows(index))


def excesses(space: Space, cluster: Cluster, profile: Profile, seed: int) -> dict[str, float]:
    """Bounds over what is simulated, the largest of some plans."""
    table = whole_table(space)
    rows = np.random.default_rng(seed).choice(len(table), min(PLANS, len(table)), replace=False)
    some, specs = table.rows(np.sort(rows)), (space.model, cluster, profile)
    with extreme_values():
        found = simulate_table(*specs, some)
        bounds = {
            "shape": shape_bounds(space, cluster, profile, some),
            "unsharded": least_unsharded_step(*specs, some),
            "sharded": least_step(*specs, some),
        }
    energy_j = found.power_w_per_gpu * found.step_s
    over = {name: (least.step_s / found.step_s, least.energy_j / energy_j) for name, least in bounds.items()}
    return {f"{name} {what}": float(x.max()) for name, both in over.items() for what, x in zip("sJ", both, strict=True)}


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold(seed: int) -> None:
    over = excesses(*drawn_space(seed), seed)
    assert {name: x for name, x in over.items() if not x <= 1.0} == {}


@pytest.mark.parametrize(
    ("model", "cluster", "profile", "gpus", "batch", "plan", "limits"),
    [
        # casts of whole weights are launched, and so raise the clock, beside messages that take longer
        ("llama3-8b", "dgx-h200", "knee-compiled", 32, 64, {}, {"max_pp": 1, "recomputes": ("none",)}),
        # FSDP's copies hide beside messages
        ("gemma3-4b", "l40s-8", "fms-fsdp-compiled", 8, 16, {"tp_overlap_frac": 0.9, "precision": "fp8"}, {}),
        ("kimi-k2", "gh200-4-slingshot", "llm-foundry", 8, 16, {"ep_overlap": True}, {"max_pp": 1}),
        # casts of gathered weights hide messages, which draw less then
        ("qwen3-0.6b", "rtx-pro-6000-8", "jax", 8, 16, {"precision": "fp4"}, {"max_cp": 1}),
    ],
)
def test_bounds_hold_where_they_did_not(
    model: str, cluster: str, profile: str, gpus: int, batch: int, plan: dict[str, Any], limits: dict[str, Any]
) -> None:
    own = load_model(model).spec, load_cluster(cluster).spec, load_profile(profile).spec
    space = Space(model=own[0], gpus=gpus, global_batch=batch, seq_len=2048, fixed=Plan(**plan), **limits)
    over = excesses(space, *own[1:], 0)
    assert {name: x for name, x in over.items() if not x <= 1.0} == {}
