"""Searching finds what simulating everything finds; what it says about the front, draws and hardware holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import knee
from knee.engine.one_job import simulate
from knee.search.follow_ups import baseline, no_plan, nothing_fits, robust, sensitivity, why
from knee.search.plan_search import RANKED, SearchResult, pareto, search
from knee.search.space import Space, memory_table, whole_table
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.notes import Note
from knee.specs.plan import RECOMPUTES
from refusals import caught, kind, numbers
from search.brute_force import differences, everything, random_job

MODEL, CLUSTER, PROFILE = load_model("llama2-7b").spec, load_cluster("dgx-h100").spec, load_profile("eager").spec


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(Space(model=MODEL, gpus=32, global_batch=64, seq_len=4096), CLUSTER, PROFILE, front=True)


@pytest.mark.parametrize("seed", range(12))
def test_the_ranking_and_the_front_are_those_of_simulating_everything(seed: int) -> None:
    assert differences(seed) == []


@pytest.mark.parametrize("seed", range(3))
def test_the_fastest_plan_with_other_memory_is_that_of_simulating_everything(seed: int) -> None:
    space, cluster, profile, objective, keep = random_job(seed)
    found = search(space, cluster, profile, objective=objective, keep=keep, front=True)  # type: ignore[arg-type]
    for factor in (0.6, 1.25):
        hbm_bytes = factor * cluster.gpu.hbm_bytes
        every = everything(space, replace(cluster, gpu=replace(cluster.gpu, hbm_bytes=hbm_bytes)), profile)
        assert found.fastest_with_memory(hbm_bytes) == pytest.approx(every.tokens_per_s.max(initial=0.0), rel=1e-9)


def test_few_plans_are_simulated(found: SearchResult) -> None:
    assert found.plans == len(whole_table(found.space))
    assert RANKED == found.ranked <= len(found) < 0.05 * found.plans
    assert (np.diff(found.scores) <= 0).all()
    assert found.results.fits.all()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["tokens_per_j", "usd_per_mtoken"])
def test_other_objectives(found: SearchResult, objective: str) -> None:
    other = search(found.space, CLUSTER, PROFILE, objective=objective)  # type: ignore[arg-type]
    column = getattr(found.results, objective)
    best = column.max() if objective == "tokens_per_j" else column.min()
    assert getattr(other.results, objective)[0] == pytest.approx(best)


def test_a_price_that_is_not_known() -> None:
    free = replace(CLUSTER, usd_per_gpu_h=None)
    space = Space(model=MODEL, gpus=8, global_batch=8, seq_len=4096)
    error = caught(lambda: search(space, free, PROFILE, objective="usd_per_mtoken"))
    assert kind(error) == ("no-rate", "cluster.usd_per_gpu_h")


@pytest.mark.slow
def test_layers_are_recomputed_in_part_where_that_is_enough() -> None:
    big = load_model("llama2-70b").spec
    space = Space(model=big, gpus=64, global_batch=64, seq_len=4096, max_tp=8)
    found = search(space, CLUSTER, load_profile("fused").spec)
    partly = found.table.recompute_frac < 1.0
    assert partly.any()
    assert (found.table.recompute[partly] == RECOMPUTES.index("blocks")).all()
    # one step less would not fit
    rows = found.table.rows(np.flatnonzero(partly)[:50])
    less = replace(rows, recompute_frac=rows.recompute_frac - 0.25)
    none = less.recompute_frac == 0
    less = replace(
        less,
        recompute=np.where(none, RECOMPUTES.index("none"), less.recompute),
        recompute_frac=np.where(none, 1.0, less.recompute_frac),
    )
    assert (memory_table(found.space.model, found.profile, less).total_bytes > CLUSTER.gpu.hbm_bytes).all()


def test_nothing_beats_the_front(found: SearchResult) -> None:
    front = pareto(found.results, CLUSTER.gpu.hbm_bytes)
    r = found.results
    assert front[0] == np.argmax(r.tokens_per_s)
    for row in front.tolist():
        better = (r.tokens_per_s > r.tokens_per_s[row] * 1.002) & (r.tokens_per_j > r.tokens_per_j[row] * 1.002)
        assert not (better & (r.memory_bytes < r.memory_bytes[row] - 0.02 * CLUSTER.gpu.hbm_bytes)).any()


def test_why_the_first_is_ahead(found: SearchResult) -> None:
    base = baseline(found)
    assert not isinstance(base, str)
    best = found.job(0)
    sentence, itself = why(best, base), why(base.job, base)
    assert (sentence == itself) == (best.plan == base.job.plan)
    saved = 1 - simulate(best).step_s / base.result.step_s
    assert sentence == itself or sentence.startswith(f"{saved:.1%} ")


def test_plain_fsdp_is_there_where_the_bound_leaves_it_out() -> None:
    far = search(Space(model=MODEL, gpus=2048, global_batch=4096, seq_len=4096, max_tp=4, max_pp=1), CLUSTER, PROFILE)
    base = baseline(far)
    assert not isinstance(base, str)
    assert base.result.tokens_per_s < far.results.tokens_per_s[0]
    few = search(Space(model=MODEL, gpus=16, global_batch=8, seq_len=4096), CLUSTER, PROFILE)
    none = baseline(few)
    assert isinstance(none, Note)
    assert (none.code, numbers(none)) == ("batch-does-not-split", [8, 16])


@pytest.mark.slow
def test_conditions_hold_for_partly_recomputed_plans() -> None:
    big, profile = load_model("llama2-70b").spec, load_profile("fused").spec
    space = Space(model=big, gpus=64, global_batch=64, seq_len=4096, max_tp=8)
    none = search(space, CLUSTER, profile, only="recompute == 'none'")
    assert (none.table.recompute == RECOMPUTES.index("none")).all()
    partly = search(space, CLUSTER, profile, only="recompute == 'blocks' and recompute_frac < 1")
    assert len(partly)
    assert (partly.table.recompute_frac < 1).all()


def test_draws(found: SearchResult) -> None:
    drawn = robust(found, draws=12)
    assert drawn.good_frac[drawn.recommended] > drawn.good_frac.max() - 0.05
    assert ((drawn.good_frac >= 0) & (drawn.good_frac <= 1)).all()
    assert drawn.recommended not in drawn.indistinguishable_rows
    again = robust(found, draws=12)
    assert (again.good_frac == drawn.good_frac).all()


def test_better_hardware_never_slows_the_best_plan(found: SearchResult) -> None:
    bars = {bar.name: bar for bar in sensitivity(found)}
    assert set(bars) == {"compute", "hbm", "nvlink", "nic", "latency", "memory"}
    assert bars["compute"].better_frac > 0.05
    assert bars["compute"].worse_frac < -0.05
    for bar in bars.values():
        assert bar.better_frac >= -1e-3, bar
        assert bar.better_frac >= bar.worse_frac - 0.01, bar


def test_what_would_help_is_certain(found: SearchResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few plans are simulated together, the result is that of all: the one with the least bound may not be the
    fastest."""
    bars = sensitivity(found)
    monkeypatch.setattr("knee.search.follow_ups.SIMULATED", 1)
    assert sensitivity(found) == bars


@pytest.mark.parametrize(
    ("recompute", "modules"),
    [(["modules"], []), (["full"], ["mlp"]), ([], ["mla_up_proj"]), (["modules"], ["mlp", "mlp"])],
)
def test_parts_to_recompute_are_named_and_there(recompute: list[str], modules: list[str]) -> None:
    asked = {"recompute": recompute, "recompute_modules": modules}
    error = caught(lambda: knee.plan("llama2-7b", cluster="dgx-h100", gpus=8, global_batch=16, **asked))
    assert kind(error) == ("contradiction", "plan.recompute_modules")


def test_what_is_closest() -> None:
    words, hint = no_plan(Space(model=MODEL, gpus=257, global_batch=512, seq_len=4096))
    assert numbers(words) == [257, 512]
    assert numbers(hint) == [256, 264, 514]
    big = load_model("llama3-405b").spec
    found = search(Space(model=big, gpus=8, global_batch=8, seq_len=8192), CLUSTER, PROFILE)
    assert len(found) == 0
    words, hint = nothing_fits(found)
    needs = found.least_memory()[1] / 2**30
    assert numbers(words)[:3] == [found.plans, pytest.approx(CLUSTER.gpu.hbm_bytes / 2**30, rel=0.01), round(needs)]
    assert numbers(hint) == [128, round(needs)]
