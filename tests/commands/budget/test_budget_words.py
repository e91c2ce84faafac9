"""What `knee budget` says, of results that are made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from knee.base.errors import InputError
from knee.base.units import amount, counted, short
from knee.commands.budget.api import pue_source
from knee.commands.budget.frontier import Bands, Frontier, Lost
from knee.commands.budget.model_family import family_of
from knee.commands.budget.result import (
    Budget,
    as_data,
    assumptions,
    batch_words,
    frontier_words,
    limits_words,
    sentences,
    sure_rows,
)
from knee.commands.budget.scaling_laws import batch_law, law_of
from knee.commands.budget.search import BudgetLimits, BudgetRun, FlopChoice, Problem
from knee.commands.budget.text import side_rows
from knee.commands.budget.throughput import Rate, Rates
from knee.commands.job_request import amount_of
from knee.engine.energy import grid
from knee.engine.workload.parameters import parameter_count
from knee.specs.load import load_cluster, load_profile
from knee.specs.plan import Plan
from knee.trust.trust import Trust

TRUST = Trust(label="near", runs=3, kind_runs=3, basis_runs=30, sources=3, covered_frac=0.9, low_frac=-0.2,
              high_frac=0.1, median_error_frac=0.1, memory_runs=0, memory_low_frac=None, memory_high_frac=None, like="",
              memory_like="", reasons=())  # fmt: skip
BOTH = Bands(law=(2.2, 2.4), engine=(2.28, 2.33), both=(2.19, 2.41), low_affords=True)


def answer_of(
    *, law: str = "besiroglu-2024", batch: str = "kaplan-2020", cluster: str = "dgx-h100", gpus: int = 1,
    days: float = 1.0, params: float = 3.7e8, counted_params: float = 3.4e8, bands: Bands = BOTH,
) -> Budget:  # fmt: skip
    loaded = load_cluster(cluster)
    problem = Problem(
        rates=Rates(cluster=loaded.spec, profile=load_profile("eager").spec, seq_len=4096),
        law=law_of(law),
        batch_law=batch_law(batch),
        family=family_of("llama"),
        pue=1.56,
    )
    model = min(problem.ladder(), key=lambda one: abs(parameter_count(one) - params))
    rate = Rate(
        gpus=gpus,
        global_batch=768,
        tokens_per_s=1e5 * gpus,
        tokens_per_j=200.0,
        mfu_frac=0.4,
        exposed_frac=0.0,
        plan=Plan(),
    )
    time_s = days * 86_400.0
    tokens, price = rate.tokens_per_s * time_s, loaded.spec.usd_per_gpu_h
    run = BudgetRun(
        model=model,
        params=parameter_count(model),
        counted=problem.law.counted(model),
        rate=rate,
        tokens=tokens,
        loss=2.3,
        binding="days",
        time_s=time_s,
        energy_j=tokens / 200.0 * 1.56,
        batch_tokens=768 * 4096.0,
        cost_usd=None if price is None else time_s / 3600 * price * gpus,
        critical_batch_tokens=4e6,
    )
    flop = FlopChoice(
        mfu_frac=0.4,
        flop=1e20,
        params=counted_params,
        tokens=1e10,
        loss=2.25,
        gpus=gpus,
        time_s=time_s,
        energy_j=1e9,
        cost_usd=run.cost_usd,
        run=replace(run, loss=2.31),
        why_not="",
    )
    return Budget(
        mfu_given=False,
        limits=BudgetLimits(gpus=gpus, days=days),
        problem=problem,
        grid=grid("world"),
        best=run,
        by_count={gpus: run},
        sizes=(run,),
        between=float(run.params),
        even=(300_000_000, 450_000_000),
        flop=flop,
        lost=Lost(loss=0.01, flop_frac=0.1, budget_frac=0.0004),
        marginals=(),
        trust=TRUST,
        bands=bands,
        frontiers=(),
        cells={},
        iso=(),
        notes=[],
        price=loaded.sources.get("usd_per_gpu_h"),
        pue=pue_source(None),
    )


@pytest.mark.parametrize(
    ("bands", "says"),
    [
        (BOTH, "(expected range 2.19 to 2.41)"),
        (replace(BOTH, law=None, both=None),
         "(expected range 2.28 to 2.33 from the simulator alone; no errors were published for the scaling law)"),
        (replace(BOTH, engine=None, both=None),
         "(expected range 2.20 to 2.40 from the scaling law alone; the simulator's error is unknown here)"),
        (Bands(law=None, engine=None, both=None, low_affords=None), "(uncertainty unknown)"),
    ],
)  # fmt: skip
def test_a_band_says_of_what_it_is(bands: Bands, says: str) -> None:
    assert says in sentences(answer_of(bands=bands))[0]


def test_levels_of_bands_that_are_joined_are_said() -> None:
    assert "the law's 80% range and the simulator's 90% range" in sure_rows(answer_of())[2][1]
    data = as_data(answer_of())["best"]["bands"]
    assert (data["law_covers_frac"], data["engine_covers_frac"]) == (0.8, 0.9)
    assert sure_rows(answer_of(bands=replace(BOTH, law=None, both=None)))[2][1] == (
        "unknown: no errors were published for the scaling law"
    )


def test_mfu_of_all_columns_is_of_6nd() -> None:
    answer = answer_of()
    row = next(row for row in side_rows(answer) if row[0] == "MFU (6ND convention)")
    best = 6.0 * answer.best.params * 1e5 / answer.problem.rates.cluster.gpu.peak_flop_per_s("bf16")
    assert row[1:] == [f"{best:.1%}", "40.0%", f"{best:.1%}"]
    assert as_data(answer)["best"]["mfu_6nd_frac"] == pytest.approx(best)
    model = answer.best.model
    attention = 6.0 * model.layers * model.hidden * 4096
    share = attention / (6.0 * answer.best.params + attention)
    assert any("6 x N x D" in line and f"{share:.1%}" in line for line in assumptions(answer))


def test_sizes_of_all_columns_have_all_parameters() -> None:
    answer = answer_of(law="kaplan-2020", counted_params=3.4e8)
    near = answer.counted_near
    embeddings = parameter_count(near) - answer.problem.law.counted(near)
    assert embeddings > 0
    assert answer.counted_params == 3.4e8 + embeddings
    assert side_rows(answer)[1][2] == short(3.4e8 + embeddings)
    assert f"choose {short(3.4e8 + embeddings)} parameters" in sentences(answer)[1]
    assert answer_of().counted_params == 3.4e8


def test_what_a_critical_batch_costs_is_said() -> None:
    answer = answer_of()
    assert f"up to {1 + 768 * 4096 / 4e6:.2f} times the tokens that small batches need" in batch_words(answer)
    assert any(
        "twice the tokens" in line and "--batch-max sets a smaller batch" in line for line in assumptions(answer)
    )
    other = answer_of(batch="merrill-2025")
    assert "Kaplan" not in batch_words(other)
    assert not any("twice the tokens" in line for line in assumptions(other))


def test_prices_pue_and_grid_have_sources() -> None:
    said = "\n".join(assumptions(answer_of()))
    for words in ("2.95 USD/h (published): median", "PUE is 1.56 (published): Uptime", "480 g CO2e/kWh (published)"):
        assert words in said
    site = as_data(answer_of())["site"]
    assert site["usd_per_gpu_h"] == 2.95
    assert site["usd_source"].startswith("median")
    assert site["grid"]["g_co2e_per_kwh"] == pytest.approx(480)
    assert pue_source(1.2).kind == "user"


def test_small_runs_are_not_zero() -> None:
    rows = {row[0]: row[1] for row in side_rows(answer_of(days=0.001))}
    assert all(float(rows[name]) > 0 for name in ("days", "GPU-hours", "USD", "MWh", "kg CO2e"))
    assert "0.04%" in sentences(answer_of(days=0.001))[1]
    assert [amount(x) for x in (1152.4, 55.21, 3.0, 0.00314)] == ["1,152", "55.2", "3", "0.00314"]


def test_one_is_no_plural() -> None:
    assert counted(1, "GPU") == "1 GPU"
    assert counted(2048, "GPU") == "2,048 GPUs"
    assert limits_words(BudgetLimits(gpus=1, days=1.0)) == "up to 1 GPU, 1 day"
    assert "with 1 GPU. " in sentences(answer_of())[0]
    assert "After 1 day," in sentences(answer_of())[0]


def test_sizes_that_lose_the_same_are_said() -> None:
    assert "Models with 300M to 450M parameters have at most 0.001 more loss." in sentences(answer_of())
    alone = replace(answer_of(), even=(1, 1))
    assert not any("more loss" in line for line in sentences(alone))


def test_steps_of_the_ladder_are_as_they_are() -> None:
    sizes = [parameter_count(model) for model in family_of("llama").ladder()]
    steps = [b / a - 1 for a, b in pairwise(sizes)]
    assert any(
        f"each {min(steps):.0%} to {max(steps):.0%} larger than the one before" in line
        for line in assumptions(answer_of())
    )


def test_a_size_below_the_ladder_is_said() -> None:
    said = sentences(answer_of(counted_params=4e6))[1]
    assert "This is smaller than the smallest model that was tried" in said
    assert "of the estimated FLOP" not in said
    assert "of the estimated FLOP" in sentences(answer_of())[1]


def test_extrapolations_stand_by_themselves() -> None:
    answer = answer_of()
    assert not answer.extrapolated
    assert any(line.startswith("The law of the critical batch size is extrapolated: ") for line in sentences(answer))


def test_a_frontier_says_which_other_limit_is_used_up() -> None:
    run = answer_of().best
    assert run.cost_usd is not None
    cheap = replace(run, cost_usd=run.cost_usd / 2)
    frontier = Frontier(
        axis="days", values=(0.5, 1.0, 2.0), runs=(cheap, run, run), worth=(None, 1.0, 0.0), knee=1.0, open=False
    )
    said = frontier_words(BudgetLimits(gpus=1, days=1.0, usd=run.cost_usd), frontier)
    assert said[1].startswith("from 1 days on, a run also uses up the dollars: the knee is caused by that limit")
    assert "factor of two" in said[0]
    data = frontier_words(BudgetLimits(gpus=1, days=1.0, tokens_max=run.tokens), replace(frontier, open=True))
    assert data[1] == "from 0.5 days on, a run also uses up the data: more days only allow larger models"
    assert len(frontier_words(BudgetLimits(gpus=1, days=1.0), frontier)) == 1


def test_dollars_are_written_as_tokens_are() -> None:
    assert [amount_of("--usd", text) for text in ("2M", "1,000,000", "2e6", "0.5", None)] == [2e6, 1e6, 2e6, 0.5, None]
    with pytest.raises(InputError, match="--usd '1,5' is not a number"):
        amount_of("--usd", "1,5")
