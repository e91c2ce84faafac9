"""What a budget says beside its best run is what the same search answers when it is asked directly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_budget_search import BOUNDS, EAGER, FEW, H100, LLAMA, made_up, small, within

from knee.commands.budget.frontier import bands_of, frontier_of, lost_by, marginals
from knee.commands.budget.search import BudgetLimits, flop_choice, ladder, rounded
from knee.commands.budget.throughput import Rates


def test_a_larger_limit_keeps_every_count_of_the_ladder() -> None:
    for most in (192, 200, 256, 1000, 12_345):
        assert set(ladder(8, most)) < set(ladder(8, 2 * most))
    assert {192, 12_288} <= set(ladder(8, 16_384))
    assert rounded(8, [201]) == {200, 192, 128}
    assert rounded(8, [7]) == {4}


def test_the_count_that_spends_all_dollars_in_all_days_is_tried() -> None:
    price = H100.usd_per_gpu_h
    assert price
    for gpus in (200, 1000, 12_288):
        limits = BudgetLimits(gpus=16_384, days=30.0, usd=gpus * 30 * 24 * price)
        assert gpus in made_up().counts(limits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "limits", "more"),
    [
        ("dgx-h100", BudgetLimits(gpus=192, days=30.0, usd=407_808.0), {"gpus": 256}),
        ("dgx-h100", BudgetLimits(gpus=24, days=5.0, usd=8_500.0), {"gpus": 32}),
        ("dgx-a100", BudgetLimits(gpus=96, days=10.0, usd=40_000.0), {"gpus": 128}),
        ("dgx-a100", BudgetLimits(gpus=64, days=10.0, mwh=5.0), {"mwh": 6.0}),
    ],
)
def test_raising_one_limit_never_hurts(cluster: str, limits: BudgetLimits, more: dict[str, float]) -> None:
    before = small(cluster).optimum(limits)
    after = small(cluster).optimum(replace(limits, **more))
    assert before is not None
    assert after is not None
    assert after.loss <= before.loss * (1 + 1e-12)


# ---- what FLOP counting loses ----------------------------------------------------------------------------------------


def test_flop_counting_has_its_best_count() -> None:
    problem, limits = made_up(latency=1.0), BudgetLimits(gpus=4096, usd=2e5)
    choice = flop_choice(problem, limits, 0.4)
    assert choice.run is not None
    for gpus in problem.counts(limits):
        other = problem.best_at(limits, choice.run.model, gpus)
        assert other is None or other.loss >= choice.run.loss
    assert choice.gpus == choice.run.gpus < limits.gpus


def test_nothing_is_lost_by_the_best_run_itself_nor_by_one_that_spends_less() -> None:
    problem, limits = made_up(latency=1.0), BudgetLimits(gpus=64, days=10.0, tokens_max=1e11)
    best = problem.optimum(limits)
    assert best is not None
    none = lost_by(problem, limits, best, best)
    assert (none.loss, none.flop_frac, none.budget_frac) == (0.0, 0.0, 0.0)
    other = problem.best_at(limits, LLAMA.shape(3e9), 64)
    assert other is not None
    # it ends by the data, before the days do
    assert other.days < 0.9 * limits.days  # type: ignore[operator]
    lost = lost_by(problem, limits, best, other)
    if lost.budget_frac > 0:
        less = replace(limits, days=other.days * (1.0 - lost.budget_frac) * (1 + 1e-6))
        run = problem.reachable(less, without=other.model)
        assert run is not None
        assert run.loss <= other.loss


# ---- a ratio of tokens to parameters ---------------------------------------------------------------------------------


def test_a_ratio_ends_the_run() -> None:
    problem, limits = made_up(tokens_per_param=20.0, model=LLAMA.shape(8e9)), BudgetLimits(gpus=512, days=30.0)
    best = problem.optimum(limits)
    assert best is not None
    assert best.binding == "tokens_per_param"
    assert all(one.loss == 0.0 for one in marginals(problem, limits, best, 10**6))
    bands = bands_of(problem, limits, best, -0.2, 0.1)
    assert bands.engine == (best.loss, best.loss)
    assert bands_of(problem, replace(limits, days=2.0 * best.days), best, -0.2, 0.1).low_affords
    tight = replace(limits, days=best.days * 1.01)
    assert not bands_of(problem, tight, best, -0.2, 0.1).low_affords


def test_a_ratio_that_is_not_afforded_is_told_from_no_plan() -> None:
    limits = BudgetLimits(gpus=64, days=1.0)
    choice = flop_choice(made_up(tokens_per_param=1000.0, model=LLAMA.shape(8e9)), limits, 0.4)
    assert choice.run is None
    huge = flop_choice(made_up(model=LLAMA.shape(4e12)), BudgetLimits(gpus=64, days=100.0), 0.4)
    assert huge.run is None
    assert "1000" in choice.why_not  # tokens a parameter
    assert choice.why_not != huge.why_not


def test_data_and_a_ratio_give_the_size() -> None:
    choice = flop_choice(made_up(tokens_per_param=20.0), BudgetLimits(gpus=512, days=30.0, tokens_max=1e10), 0.4)
    assert choice.params == pytest.approx(1e10 / 20)
    assert choice.tokens == 1e10


# ---- beside the best run ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_table_of_counts_and_the_marginals_are_direct_answers() -> None:
    limits = BudgetLimits(gpus=64, days=10.0)
    problem = small("dgx-h100")
    found = problem.by_count(limits, shown=3)
    for gpus in (16, 64):
        direct = small("dgx-h100")
        direct.counts_only = (gpus,)
        asked = direct.optimum(limits)
        assert asked is not None
        assert found[gpus].loss == pytest.approx(asked.loss, rel=1e-12)
    best = min(found.values(), key=lambda run: run.loss)
    values = {one.what: one for one in marginals(problem, limits, best, 10**6)}
    for what, more, per in (("day", replace(limits, days=11.0), 1), ("GPU", replace(limits, gpus=128), 64)):
        asked = small("dgx-h100").optimum(more)
        assert asked is not None
        assert values[what].loss == pytest.approx((asked.loss - best.loss) / per, rel=1e-9)


def test_bands_hold_every_limit() -> None:
    problem, limits = made_up(), BudgetLimits(gpus=256, days=30.0)
    best = problem.optimum(limits)
    assert best is not None
    # as much data as the run has at its own speed: faster it ends by the data, slower by the days
    limits = replace(limits, tokens_max=best.tokens)
    engine = bands_of(problem, limits, best, -0.2, 0.1).engine
    assert engine is not None
    assert engine[0] == pytest.approx(best.loss, rel=1e-12)
    assert engine[1] == pytest.approx(float(problem.law.loss(best.counted, 0.8 * best.tokens)))


def test_energy_takes_the_thriftier_plan() -> None:
    rates = Rates(cluster=H100, profile=EAGER, seq_len=4096, bounds=BOUNDS["dgx-h100"])
    problem, model = replace(small("dgx-h100"), rates=rates), FEW[6]
    rate = rates.of(model, [(64, 512)])[64, 512]
    assert rate is not None
    better = replace(rate, tokens_per_s=0.9 * rate.tokens_per_s, tokens_per_j=1.2 * rate.tokens_per_j)
    both = replace(rate, thrifty=better)
    fast = problem.run_of(BudgetLimits(gpus=64, days=100.0), model, both)
    saving = problem.run_of(BudgetLimits(gpus=64, mwh=20.0), model, both)
    assert fast is not None
    assert saving is not None
    assert fast.rate == both
    assert saving.rate == better
    within(saving, BudgetLimits(gpus=64, mwh=20.0))


def test_no_point_of_a_frontier_is_beaten_by_a_direct_answer() -> None:
    problem, limits = made_up(latency=1.0), BudgetLimits(gpus=256, days=10.0)
    best = problem.optimum(limits)
    assert best is not None
    found = frontier_of(problem, limits, best, "days", 1.3e-7)
    for value, run in zip(found.values, found.runs, strict=True):
        asked = made_up(latency=1.0).optimum(replace(limits, days=value))
        assert asked is not None
        assert run is not None
        assert run.loss == pytest.approx(asked.loss, rel=1e-6)
