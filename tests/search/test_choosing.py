"""What a search says beside its ranking: the front, the best plan of each cell, and how plans hold up in draws."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from knee.engine.simulator import simulate_table
from knee.search import follow_ups as draws_of
from knee.search.follow_ups import OF_MEMORY, drawn, robust
from knee.search.plan_search import cell_bests, pareto, score, search
from knee.search.space import Space, fitting, whole_table
from knee.specs.profile_parameters import value_of
from search.brute_force import random_job
from tables import EAGER, H100, LLAMA_7B, job, table

HBM_BYTES = 80e9


@pytest.mark.parametrize("seed", range(20))
def test_the_front_has_every_plan_that_no_other_beats_and_no_other_plan(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 40))
    step_s, power_w = 1.0 + 0.02 * draw.integers(0, 12, n), 400.0 + 20.0 * draw.integers(0, 8, n)
    memory_bytes = HBM_BYTES * (0.005 + 0.1 * draw.integers(0, 9, n))
    results: Any = SimpleNamespace(step_s=step_s, power_w_per_gpu=power_w, memory_bytes=memory_bytes)
    front = pareto(results, HBM_BYTES)
    merits = np.stack((-step_s, -step_s * power_w, -memory_bytes), axis=1)  # they differ by more than is rounded
    near = np.flatnonzero(step_s <= 1.15 * step_s.min())
    better = [
        any((merits[j] >= merits[i] - 1e-9).all() and (merits[j] > merits[i] + 1e-9).any() for j in near) for i in near
    ]
    expected = {tuple(np.round(merits[i], 6)) for i, beaten in zip(near, better, strict=True) if not beaten}
    assert {tuple(np.round(merits[i], 6)) for i in front} == expected
    assert len(front) == len(expected)
    assert (np.diff(step_s[front]) >= 0).all()


def test_plans_within_a_thousandth_or_a_hundredth_of_the_memory_count_as_equal() -> None:
    def front(**changes: tuple[float, float]) -> list[int]:
        columns = {"step_s": (1.0, 1.0), "power_w_per_gpu": (500.0, 500.0), "memory_bytes": (40.4e9, 40.4e9)} | changes
        results: Any = SimpleNamespace(**{name: np.array(column) for name, column in columns.items()})
        return pareto(results, HBM_BYTES).tolist()

    assert front() == [0]
    assert front(power_w_per_gpu=(500.0, 500.1)) == [0]
    assert front(step_s=(1.0, 1.01), power_w_per_gpu=(500.0, 480.0)) == [0, 1]
    assert front(step_s=(1.0, 1.0001), memory_bytes=(40.4e9, 40.3e9)) == [0]
    assert front(step_s=(1.0, 1.01), memory_bytes=(40.4e9, 39.5e9)) == [0, 1]
    assert front(step_s=(1.0, 1.16), memory_bytes=(40.4e9, 10e9)) == [0]


@pytest.mark.parametrize("seed", [0, 2])
def test_the_best_plan_of_every_cell_is_that_of_simulating_everything(seed: int) -> None:
    space, cluster, profile, objective, keep = random_job(seed)
    found = search(space, cluster, profile, objective=objective, keep=keep)  # type: ignore[arg-type]
    every = whole_table(space)
    fit = fitting(space, profile, every, cluster.gpu.hbm_bytes).table
    scores = score(simulate_table(space.model, cluster, profile, fit), objective)  # type: ignore[arg-type]
    best = {(int(tp), int(pp)): 0.0 for tp, pp in zip(every.tp, every.pp, strict=True)}
    for tp, pp, value in zip(fit.tp.tolist(), fit.pp.tolist(), scores.tolist(), strict=True):
        best[tp, pp] = max(best[tp, pp], value)
    cells = list(cell_bests(found))
    assert {(cell.tp, cell.pp) for cell in cells} == best.keys()
    for cell in cells:
        value = 0.0 if cell.results is None else float(score(cell.results, objective)[0])  # type: ignore[arg-type]
        assert value == pytest.approx(best[cell.tp, cell.pp], rel=1e-9)
        assert cell.plan is None or (cell.plan.tp, cell.plan.pp) == (cell.tp, cell.pp)
        assert cell.plans > 0


def test_a_cell_whose_plans_do_not_fit_has_none() -> None:
    """7B parameters with fp32 states are 108 GB: one H100 does not hold them, eight hold an eighth each."""
    space = Space(model=LLAMA_7B, gpus=8, global_batch=8, seq_len=4096, shardings=("ddp",), recomputes=("none",))
    cells = {(cell.tp, cell.pp): cell for cell in cell_bests(search(space, H100, EAGER, keep=1))}
    assert (cells[1, 1].plan, cells[1, 1].results) == (None, None)
    for pair in ((8, 1), (1, 8)):
        results = cells[pair].results
        assert results is not None
        assert results.fits.tolist() == [True]


def judged(
    monkeypatch: pytest.MonkeyPatch,
    scores: Sequence[float],
    got: list[list[float]],
    fits: list[list[bool]] | None = None,
) -> draws_of.Robust:
    """Plans with these scores, and what each got in every draw; negative scores are prices."""
    name = "tokens_per_s" if scores[0] > 0 else "usd_per_mtoken"
    sign = 1.0 if scores[0] > 0 else -1.0
    columns = {name: sign * np.array(got).ravel(), "fits": np.array(fits or np.ones_like(got), dtype=np.bool_).ravel()}
    monkeypatch.setattr(draws_of, "simulate_variants", lambda *_: SimpleNamespace(**columns))
    found: Any = SimpleNamespace(
        scores=np.array(scores),
        table=table(*(job(dp_shard=8) for _ in scores)),
        cluster=H100,
        profile=EAGER,
        space=SimpleNamespace(model=LLAMA_7B),
        objective=name,
    )
    return robust(found, draws=len(got))


def test_draws_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    got = [[100.0, 99.0, 90.0], [90.0, 100.0, 99.0], [80.0, 100.0, 97.0], [100.0, 97.0, 120.0]]
    fits = [[True] * 3, [True] * 3, [True] * 3, [True, True, False]]
    found = judged(monkeypatch, [100.0, 99.0, 95.0, 89.0], got, fits)  # the last is not near
    assert found.good_frac.tolist() == [0.5, 0.75, 0.25]
    assert found.fits_frac.tolist() == [1.0, 1.0, 0.75]
    assert found.worst_frac.tolist() == pytest.approx([0.8, 0.97, 0.0])
    assert found.recommended == 1
    assert found.ahead_frac.tolist() == [0.5, 0.0, 0.0]
    assert found.indistinguishable_rows == [0]


@pytest.mark.parametrize(("draws", "more", "recommended"), [(50, 1, 0), (50, 2, 1), (40, 1, 1)])
def test_the_first_plan_gives_way_only_to_one_that_is_good_clearly_more_often(
    draws: int, more: int, recommended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5% of the draws is clearly; 4% is not."""
    half = draws // 2
    found = judged(monkeypatch, [100.0, 99.0], [[100.0, 90.0]] * (half - more) + [[90.0, 100.0]] * (half + more))
    assert found.recommended == recommended


def test_prices_are_better_where_they_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, [-1.0, -1.1, -1.2], [[-1.0, -1.1], [-1.03, -1.0]])  # the third is not near
    assert found.good_frac.tolist() == [0.5, 0.5]
    assert found.worst_frac.tolist() == pytest.approx([1 / 1.03, 1 / 1.1])
    assert found.ahead_frac.tolist() == [0.0, 0.5]


def test_a_draw_varies_each_parameter_by_its_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def simulated(_model: object, variants: list[Any], plans: Any) -> SimpleNamespace:
        seen.extend(variants)
        n = len(variants) * len(plans)
        return SimpleNamespace(tokens_per_s=np.ones(n), fits=np.ones(n, dtype=np.bool_))

    monkeypatch.setattr(draws_of, "simulate_variants", simulated)
    found: Any = SimpleNamespace(
        scores=np.ones(1),
        table=table(job(dp_shard=8)),
        cluster=H100,
        profile=EAGER,
        space=SimpleNamespace(model=LLAMA_7B),
        objective="tokens_per_s",
    )
    robust(found, draws=2000)
    for p in drawn(H100, EAGER):
        fitted = value_of(H100, EAGER, p.path)
        values = np.array([value_of(cluster, profile, p.path) for cluster, profile in seen])
        steps = values - fitted if p.is_share else np.log(values / fitted)
        spread = p.spread * (0.5 if p.path in OF_MEMORY else 1.0)
        for share, z in ((0.25, -0.6745), (0.5, 0.0), (0.75, 0.6745)):
            step = z * spread
            inside = p.inside(fitted + step if p.is_share else fitted * np.exp(step))
            expected = inside - fitted if p.is_share else np.log(inside / fitted)
            assert np.quantile(steps, share) == pytest.approx(expected, abs=0.1 * spread), p.path
