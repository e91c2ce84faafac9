"""Budgets: the closed form where communication is free, and limits that hold, bind and never hurt."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.commands.budget.frontier import PAYS_FRAC, bands_of, frontier_of, lost_by, marginals
from knee.commands.budget.model_family import family_of
from knee.commands.budget.scaling_laws import batch_law, law_names, law_of
from knee.commands.budget.search import BudgetLimits, BudgetRun, Problem, flop_choice
from knee.commands.budget.throughput import Asked, Key, Rate, Rates
from knee.engine.workload.parameters import parameter_count
from knee.specs.hardware import Cluster, GemmRate
from knee.specs.load import load_cluster, load_profile
from knee.specs.model import Model
from knee.specs.plan import Plan
from knee.specs.profile import Profile

pytestmark = pytest.mark.slow

H100, EAGER = load_cluster("dgx-h100").spec, load_profile("eager").spec
LLAMA = family_of("llama")
FAST = 1e30


# ---- 1. free communication -------------------------------------------------------------------------------------------


def free_cluster() -> Cluster:
    """Links and fabric of infinite rate without latency; products at the peak, everything else in no time."""
    rates = {
        name: replace(
            rate, forward_frac=1.0, backward_frac=1.0, half_seq_len=0.0, backward_half_seq_len=0.0, half_rows=0.0
        )
        for name, rate in H100.gpu.attention.items()
    }
    ideal = GemmRate(peak_frac=1.0, tile_m=1, tile_n=1, half_k=1e-12, half_intensity=0.0)
    gpu = replace(H100.gpu, attention=rates, sms=1, kernel_s=0.0, gemm={"bf16": ideal}, hbm_bytes=1e18,
                  hbm_bytes_per_s=FAST, hbm_frac=1.0)  # fmt: skip
    node = replace(H100.node, link_bytes_per_s=FAST, pair_bytes_per_s=FAST, hop_s=0.0, launch_scale=0.0)
    fabric = replace(H100.fabric, nic_bytes_per_s=FAST, hop_s=0.0, tree_level_s=0.0, tiers=())
    return replace(H100, gpu=gpu, node=node, fabric=fabric)


def free_profile() -> Profile:
    nothing = dict.fromkeys(("launch_s", "step_overhead_s", "straggler_frac", "compute_slowdown_frac", "skew_s"), 0.0)
    return replace(EAGER, gemm_scale=1.0, **nothing)


def free_problem(law: str) -> Problem:
    # 6 N D counts every parameter as a product: a vocabulary of 256 has next to none that is only looked up, and
    # sequences of 64 tokens next to no attention
    members = tuple(replace(member, vocab=256) for member in LLAMA.members)
    family = replace(LLAMA, members=members, vocab=256)
    rates = Rates(cluster=free_cluster(), profile=free_profile(), seq_len=64)
    ladder = [family.shape(2.0 ** (k / 4)) for k in range(4 * 26, 4 * 40)]
    return Problem(
        rates=rates, law=law_of(law), batch_law=batch_law(), family=family, pue=1.0, rungs=ladder, counts_only=(64,)
    )


@pytest.mark.parametrize("law", law_names())
def test_free_communication_is_the_closed_form(law: str) -> None:
    problem, limits = free_problem(law), BudgetLimits(gpus=64, days=20.0)
    best = problem.optimum(limits)
    assert best is not None
    flop = 64 * H100.gpu.peak_flop_per_s("bf16") * 20.0 * 86_400
    params, tokens = problem.law.split(flop)
    # shapes are 19% apart; between them the least loss lies where the closed form says
    between = problem.between(limits, best)
    counted = between * best.counted / best.params
    assert counted == pytest.approx(params, rel=0.002)
    assert best.tokens * best.counted / counted == pytest.approx(tokens, rel=0.01)
    assert best.loss == pytest.approx(float(problem.law.loss(params, tokens)), rel=1e-3)
    assert best.counted == pytest.approx(params, rel=0.12)
    # and counting FLOP at all of the peak loses nothing
    choice = flop_choice(problem, limits, 1.0)
    assert choice.params == pytest.approx(params)
    assert choice.run is not None
    assert lost_by(problem, limits, best, choice.run).flop_frac < 0.01


# ---- 2. limits -------------------------------------------------------------------------------------------------------


@dataclass
class MadeUp:
    """Rates by a formula: slower by communication, the more GPUs and the less batch there is."""

    latency: float
    seq_len: int = 4096
    cluster: Cluster = H100
    fixed: Plan = field(default_factory=Plan)
    known: dict[tuple[Model, Key], Rate | None] = field(default_factory=dict)
    plans: int = 0

    def most_tokens_per_s_per_gpu(self, model: Model, **_: Any) -> float:
        return 4e14 / (6.0 * parameter_count(model))

    def look_ahead(self, asked: Iterable[Asked]) -> None:
        """Nothing takes longer for many."""

    def is_narrowed(self, *_: Any) -> bool:
        return True

    def of(self, model: Model, keys: list[Key], least_tokens_per_s: float = 0.0) -> dict[Key, Rate | None]:
        for gpus, batch in keys:
            fits = 18.0 * parameter_count(model) / gpus < 8e10
            work_s = batch * self.seq_len / (gpus * self.most_tokens_per_s_per_gpu(model))
            step_s = work_s + self.latency * (1 + math.log2(gpus))
            speed, watts = batch * self.seq_len / step_s, 300.0 + 400.0 * work_s / step_s
            rate = Rate(
                gpus=gpus,
                global_batch=batch,
                tokens_per_s=speed,
                tokens_per_j=speed / gpus / watts,
                mfu_frac=0.4,
                exposed_frac=1 - work_s / step_s,
                plan=self.fixed,
            )
            if not fits or speed >= least_tokens_per_s:
                self.known[model, (gpus, batch)] = rate if fits else None
        return {key: self.known.get((model, key)) for key in keys}


def made_up(latency: float = 0.2, **options) -> Problem:
    return Problem(
        rates=MadeUp(latency=latency),
        law=law_of("besiroglu-2024"),  # type: ignore[arg-type]
        batch_law=batch_law(),
        family=LLAMA,
        pue=1.5,
        **options,
    )


def within(run: BudgetRun, limits: BudgetLimits) -> None:
    slack = 1 + 1e-9
    assert run.gpus <= limits.gpus
    assert limits.days is None or run.days <= limits.days * slack
    assert limits.usd is None or (run.cost_usd or 0.0) <= limits.usd * slack
    assert limits.mwh is None or run.mwh <= limits.mwh * slack
    assert limits.tokens_max is None or run.tokens <= limits.tokens_max * slack
    assert run.batch_tokens <= run.critical_batch_tokens * slack


LIMITS = st.builds(
    BudgetLimits,
    gpus=st.sampled_from([8, 64, 96, 512, 1000, 4096]),
    days=st.none() | st.floats(1.0, 200.0),
    usd=st.none() | st.floats(1e4, 1e8),
    mwh=st.none() | st.floats(10.0, 1e5),
    tokens_max=st.none() | st.floats(1e10, 1e13),
).filter(lambda limits: any((limits.days, limits.usd, limits.mwh)))


@settings(max_examples=15)
@given(limits=LIMITS, latency=st.floats(0.0, 3.0))
def test_no_limit_is_beaten(limits: BudgetLimits, latency: float) -> None:
    best = made_up(latency).optimum(limits)
    if best is not None:
        within(best, limits)
        spent = {"days": best.days, "usd": best.cost_usd, "mwh": best.mwh, "tokens_max": best.tokens}[best.binding]
        assert spent == pytest.approx(getattr(limits, best.binding))


@settings(max_examples=12)
@given(
    limits=LIMITS,
    latency=st.floats(0.0, 3.0),
    which=st.sampled_from(["gpus", "days", "usd", "mwh", "tokens_max"]),
    factor=st.floats(1.0, 4.0),
)
def test_more_never_hurts(limits: BudgetLimits, latency: float, which: str, factor: float) -> None:
    now = getattr(limits, which)
    if now is None:
        return
    more = replace(limits, **{which: 2 * now if which == "gpus" else now * factor})
    problem = made_up(latency)
    before, after = problem.optimum(limits), problem.optimum(more)
    if before is not None:
        assert after is not None
        assert after.loss <= before.loss * (1 + 1e-12)


@pytest.mark.parametrize("tight", ["days", "usd", "mwh", "tokens_max"])
def test_each_limit_binds_when_it_is_the_tightest(tight: str) -> None:
    loose = {"days": 1e4, "usd": 1e11, "mwh": 1e8, "tokens_max": 1e16}
    value = {"days": 10.0, "usd": 1e6, "mwh": 200.0, "tokens_max": 1e11}[tight]
    limits = BudgetLimits(gpus=256, **(loose | {tight: value}))
    best = made_up().optimum(limits)
    assert best is not None
    assert best.binding == tight
    within(best, limits)


def test_dollars_alone_take_fewer_gpus_than_days_alone() -> None:
    problem = made_up(latency=1.0)
    cheap = problem.optimum(BudgetLimits(gpus=4096, usd=1e6))
    fast = problem.optimum(BudgetLimits(gpus=4096, days=10.0))
    assert cheap is not None
    assert fast is not None
    assert cheap.gpus < fast.gpus


def test_a_fixed_size_and_a_fixed_ratio() -> None:
    shape = LLAMA.shape(8e9)
    limits = BudgetLimits(gpus=512, days=30.0)
    fixed = made_up(model=shape).optimum(limits)
    assert fixed is not None
    assert fixed.model == shape
    assert fixed.tokens_per_param > 50
    ratio = made_up(tokens_per_param=20.0).optimum(limits)
    free = made_up().optimum(limits)
    assert ratio is not None
    assert free is not None
    assert ratio.tokens_per_param == pytest.approx(20.0)
    assert free.loss <= ratio.loss
    within(ratio, limits)


def test_a_given_batch_takes_the_critical_ones_place() -> None:
    small = made_up(batch_max_tokens=1e6).optimum(BudgetLimits(gpus=512, days=30.0))
    free = made_up().optimum(BudgetLimits(gpus=512, days=30.0))
    assert small is not None
    assert free is not None
    assert small.batch_tokens <= 1e6 < free.batch_tokens
    assert small.loss > free.loss


# ---- what more buys --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_frontiers_fall_and_their_knee_is_the_last_doubling_that_pays() -> None:
    problem, limits = made_up(latency=1.0), BudgetLimits(gpus=1024, days=30.0)
    best = problem.optimum(limits)
    assert best is not None
    for axis in ("days", "usd", "mwh", "co2e_kg"):
        found = frontier_of(problem, limits, best, axis, 1.3e-7)
        losses = [run.loss for run in found.runs if run is not None]
        assert losses == sorted(losses, reverse=True)
        paying = [v for v, w in zip(found.values, found.worth, strict=True) if w is not None and w >= PAYS_FRAC]
        assert found.knee == paying[-1]
    # dollars beyond what the days can spend buy nothing; more days always do
    assert frontier_of(problem, limits, best, "days", 1.0).open
    assert not frontier_of(problem, limits, best, "usd", 1.0).open


def test_marginals_bands_and_what_is_lost() -> None:
    problem, limits = made_up(latency=1.0), BudgetLimits(gpus=1024, days=30.0)
    best = problem.optimum(limits)
    assert best is not None
    values = {one.what: one for one in marginals(problem, limits, best, 10**6)}
    assert set(values) == {"day", "thousand USD", "MWh", "GPU"}
    assert all(one.loss < 0 for one in values.values())
    assert values["day"].binds
    assert not values["MWh"].binds
    bands = bands_of(problem, limits, best, -0.2, 0.1)
    assert bands.law is not None
    assert bands.engine is not None
    assert bands.both is not None
    assert bands.both[0] <= min(bands.law[0], bands.engine[0]) < best.loss < max(bands.law[1], bands.engine[1])
    other = problem.best_at(limits, LLAMA.shape(1e9), 1024)
    assert other is not None
    lost = lost_by(problem, limits, best, other)
    assert lost.loss > 0
    assert 0 < lost.budget_frac < 1
    assert 0 < lost.flop_frac < 1


# ---- the real engine -------------------------------------------------------------------------------------------------


CLUSTERS = ("dgx-a100", "dgx-h100", "dgx-h100-roce", "gb200-nvl72", "mi300x-8")
BOUNDS: dict[str, dict[Model, float]] = {name: {} for name in CLUSTERS}
FEW = LLAMA.ladder(1e8, 1e11, every=4)


def small(cluster: str) -> Problem:
    """A few sizes, so that many questions can be asked; nothing is known before but bounds."""
    rates = Rates(cluster=load_cluster(cluster).spec, profile=EAGER, seq_len=4096, bounds=BOUNDS[cluster])
    return Problem(rates=rates, law=law_of("besiroglu-2024"), batch_law=batch_law(), family=LLAMA, pue=1.56, rungs=FEW)


@pytest.mark.slow
@settings(max_examples=3)
@given(cluster=st.sampled_from(CLUSTERS), gpus=st.sampled_from([8, 24, 64, 200, 512]), days=st.floats(0.2, 60.0),
       mwh=st.none() | st.floats(1.0, 500.0), data=st.none() | st.floats(1e10, 1e12), factor=st.floats(1.0, 3.0),
       which=st.sampled_from(["gpus", "days", "mwh", "tokens_max"]))  # fmt: skip
def test_on_no_cluster_does_more_hurt(
    cluster: str, gpus: int, days: float, mwh: float | None, data: float | None, factor: float, which: str
) -> None:
    limits = BudgetLimits(gpus=gpus, days=days, mwh=mwh, tokens_max=data)
    now = getattr(limits, which)
    before = small(cluster).optimum(limits)
    if before is None or now is None:
        return
    within(before, limits)
    more = replace(limits, **{which: 2 * now if which == "gpus" else now * factor})
    after = small(cluster).optimum(more)
    assert after is not None
    within(after, more)
    assert after.loss <= before.loss * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("fewer", "more"), [(200, 201), (64, 67), (7, 8)])
def test_one_gpu_that_fits_no_plan_is_left_idle(fewer: int, more: int) -> None:
    before, after = (small("dgx-h100").optimum(BudgetLimits(gpus=gpus, days=20.0)) for gpus in (fewer, more))
    assert before is not None
    assert after is not None
    assert after.loss <= before.loss
    assert after.gpus in (fewer, 8)


@pytest.mark.slow
def test_real_budgets_hold_and_grow() -> None:
    problem, last = small("dgx-h100"), math.inf
    for limits in (BudgetLimits(gpus=32, days=5.0), BudgetLimits(gpus=32, days=10.0), BudgetLimits(gpus=64, days=10.0),
                   BudgetLimits(gpus=64, days=10.0, usd=1e9)):  # fmt: skip
        best = problem.optimum(limits)
        assert best is not None
        within(best, limits)
        assert best.loss <= last * (1 + 1e-9)
        last = best.loss


@pytest.mark.slow
def test_the_lean_set_comes_near_the_whole_space() -> None:
    from knee.search.plan_search import search
    from knee.search.space import Space

    for params, gpus, batch in ((2e9, 64, 256), (30e9, 128, 512)):
        model = LLAMA.shape(params)
        lean = Rates(cluster=H100, profile=EAGER, seq_len=4096).of(model, [(gpus, batch)])[gpus, batch]
        space = Space(model=model, gpus=gpus, global_batch=batch, seq_len=4096)
        whole = search(space, H100, EAGER, keep=1)
        assert lean is not None
        assert lean.tokens_per_s > 0.97 * whole.results.tokens_per_s[0]


def test_no_rate_beats_its_bound() -> None:
    rates = Rates(cluster=H100, profile=EAGER, seq_len=4096)
    for params in (3e8, 7e9, 70e9):
        model = LLAMA.shape(params)
        for (gpus, _), rate in rates.of(model, [(64, 512), (512, 2048)]).items():
            assert rate is None or rate.tokens_per_s / gpus <= rates.most_tokens_per_s_per_gpu(model)


@pytest.mark.slow
def test_a_slower_fabric_loses_more() -> None:
    limits = BudgetLimits(gpus=256, days=20.0)
    slow = replace(H100, fabric=replace(H100.fabric, nic_bytes_per_s=H100.fabric.nic_bytes_per_s / 8))
    problem = small("dgx-h100")
    slower = replace(problem, rates=Rates(cluster=slow, profile=EAGER, seq_len=4096))
    fast, worse = problem.optimum(limits), slower.optimum(limits)
    assert fast is not None
    assert worse is not None
    assert worse.loss > fast.loss
