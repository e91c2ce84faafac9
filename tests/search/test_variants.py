"""Variants of models, clusters and profiles in one call are what each is alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee import load_cluster, load_model, load_profile
from knee.engine.simulator import simulate_table, simulate_variants
from knee.search.bound import least_step
from knee.search.follow_ups import PARTS
from knee.search.space import Space, whole_table
from knee.specs.plan import Plan
from knee.specs.plan_table import columns_of, side_by_side, variant_rows

MODEL, H100, EAGER = load_model("llama2-7b").spec, load_cluster("dgx-h100").spec, load_profile("eager").spec
CHANGED = [(change(H100, factor), EAGER) for _, change in PARTS.values() for factor in (1.25, 0.75)]
DRAWN = [
    (H100, replace(EAGER, launch_s=20e-6, gemm_scale=0.9, hop_scale=2.0, p2p_overlap_frac=0.5, skew_s=1e-4)),
    (H100, replace(EAGER, tp_overlap_frac=0.4, bandwidth_scale_frac=0.6, straggler_frac=0.01, context_bytes=4e9)),
]


def plans(**limits: object) -> tuple[Space, np.ndarray]:
    space = Space(model=MODEL, gpus=32, global_batch=64, seq_len=2048, **limits)  # type: ignore[arg-type]
    table = whole_table(space)
    return space, np.linspace(0, len(table) - 1, 40).astype(np.int64)


@pytest.mark.parametrize("variants", [CHANGED, DRAWN, [(H100, EAGER)]], ids=["clusters", "profiles", "one"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_variants_together_are_what_each_is_alone(variants: list, precision: str) -> None:
    space, rows = plans(fixed=Plan(precision=precision))  # type: ignore[arg-type]
    table = whole_table(space).rows(rows)
    together = simulate_variants(MODEL, variants, table)
    for i, (cluster, profile) in enumerate(variants):
        alone = simulate_table(MODEL, cluster, profile, table)
        own = slice(i * len(table), (i + 1) * len(table))
        for name in ("step_s", "exposed_comm_s", "memory_bytes", "power_w_per_gpu", "fits"):
            assert getattr(together, name)[own] == pytest.approx(getattr(alone, name), rel=1e-12, abs=0.0), (i, name)


def test_bounds_take_variants_too() -> None:
    space, rows = plans()
    table, clusters = whole_table(space).rows(rows), [cluster for cluster, _ in CHANGED]
    which = np.arange(len(rows)) % len(clusters)
    together = least_step(MODEL, side_by_side(clusters, which), EAGER, table).step_s
    for i, cluster in enumerate(clusters):
        alone = least_step(MODEL, cluster, EAGER, table).step_s
        assert np.array_equal(together[which == i], alone[which == i])


@pytest.mark.parametrize("profile", ["eager", "nanotron"])
def test_models_take_part_too(profile: str) -> None:
    """The second profile deals layers to stages by cost, so that the head of the model counts."""
    space, rows = plans(max_tp=8)
    models = [load_model(name).spec for name in ("llama2-7b", "llama2-13b", "llama3-8b")]
    table, which, stack = whole_table(space).rows(rows), np.arange(len(rows)) % 3, load_profile(profile).spec
    model = side_by_side(models, which)
    together, bounds = simulate_table(model, H100, stack, table), least_step(model, H100, stack, table).step_s
    for i, one in enumerate(models):
        own = which == i
        alone = simulate_table(one, H100, stack, table.rows(np.flatnonzero(own)))
        for name in ("step_s", "exposed_comm_s", "memory_bytes", "mfu_frac", "power_w_per_gpu"):
            assert getattr(together, name)[own] == pytest.approx(getattr(alone, name), rel=1e-12, abs=0.0), (i, name)
        assert np.array_equal(bounds[own], least_step(one, H100, stack, table).step_s[own])


def test_a_spec_without_columns_is_its_own_for_all_rows() -> None:
    rows = np.array([0, 0])
    assert side_by_side([H100, H100], rows) is H100
    assert variant_rows(H100, rows) is H100
    assert columns_of(H100, EAGER) == []
