"""What a run tells about its plan and about plans like it."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest

from knee.base.arrays import Floats
from knee.commands.tune.loop import next_plans, standing
from knee.commands.tune.posterior import TERMS, Beliefs, Candidates, Mechanisms, Outcome, carried_spreads
from knee.specs.profile_parameters import PARAMETERS

QUIET = dict.fromkeys(TERMS, 0.001) | {"stack": 0.0}


def candidates(rate: list[float], memory: list[float], tp: list[int], cost: list[float] | None = None) -> Candidates:
    n = len(rate)
    same = np.zeros(n, dtype=np.int64)
    degrees = np.log2(np.array(tp, dtype=float))
    zeros = np.zeros((n, 1))
    return Candidates(
        mechanisms=Mechanisms(
            tp=np.column_stack([degrees, zeros, zeros]),
            pp=zeros,
            micro_batch=zeros,
            schedule=same,
            recompute=same,
            sharding=same,
            sequence_parallel=same,
        ),
        tokens_per_s_per_gpu=np.array(rate),
        memory_bytes=np.array(memory),
        log_rate_draws=np.tile(np.log(rate), (4, 1)),
        log_memory_draws=np.tile(np.log(memory), (4, 1)),
        hbm_bytes=80.0,
        gpu_h=np.array(cost or [1.0] * n),
    )


def spreads(**values: float) -> dict[str, float]:
    return QUIET | values


def test_a_run_tells_about_plans_that_share_its_mechanism() -> None:
    plans = candidates([100.0, 100.0, 100.0], [10.0] * 3, [1, 8, 8])
    found = Beliefs(plans, spreads(tp=0.2), QUIET).after([Outcome(plan=1, end="ok", tokens_per_s_per_gpu=80.0)])
    alike, other = np.exp(found.log_rate[2]), np.exp(found.log_rate[0])
    assert alike == pytest.approx(80.0, rel=0.02)
    assert 92.0 < other < 96.0  # three doublings away: a correlation of 0.22
    assert found.rate_covariance[2, 2] < 0.1 * found.rate_covariance[0, 0]


def test_out_of_memory_is_evidence_and_a_lost_node_is_none() -> None:
    plans = candidates([100.0, 100.0], [70.0, 70.0], [1, 1])
    beliefs = Beliefs(plans, QUIET, spreads(job=0.2))
    before = beliefs.after([]).fits
    assert before[1] == pytest.approx(0.7475, abs=0.01)
    oom, crashed = (beliefs.after([Outcome(plan=0, end=end)]).fits for end in ("oom", "failed"))
    assert oom[1] < 0.25 < crashed[1] < before[1]
    assert np.array_equal(beliefs.after([Outcome(plan=0, end="lost")]).fits, before)
    read = beliefs.after([Outcome(plan=0, end="ok", tokens_per_s_per_gpu=1.0, memory_bytes=60.0)])
    assert read.fits[1] > 0.99
    assert read.log_memory[1] == pytest.approx(log(60.0), rel=0.01)


def test_a_truncated_gaussian_has_its_known_moments() -> None:
    plans = candidates([100.0], [80.0], [1])
    found = Beliefs(plans, QUIET, spreads(job=0.3)).after([Outcome(plan=0, end="oom")])
    draws = np.random.default_rng(0).standard_normal(400_000) * 0.3
    weights = np.where(draws <= 0, 0.02, 0.98)
    mean = float(np.average(draws, weights=weights))
    assert found.log_memory[0] - log(80.0) == pytest.approx(mean, abs=2e-3)
    assert found.memory_covariance[0, 0] == pytest.approx(
        float(np.average((draws - mean) ** 2, weights=weights)), rel=0.02
    )


def test_what_is_predicted_well_narrows_faster() -> None:
    plans = candidates([100.0] * 4, [10.0] * 4, [1, 2, 4, 8])
    beliefs = Beliefs(plans, spreads(run=0.1), QUIET)

    def left(rates: list[float]) -> float:
        told = [Outcome(plan=at, end="ok", tokens_per_s_per_gpu=rate) for at, rate in enumerate(rates)]
        return float(beliefs.after(told).rate_covariance[3, 3])

    assert left([101.0, 99.0, 100.0]) < 0.6 * 0.01 < 0.01 < left([130.0, 70.0, 140.0])


def test_it_stops_when_nothing_is_to_be_gained() -> None:
    plans = candidates([100.0, 99.0, 90.0], [10.0] * 3, [1, 2, 4])
    beliefs = Beliefs(plans, spreads(run=0.01), QUIET)
    start = standing(beliefs, [])
    assert (start.next, start.best, start.bound_frac, start.enough(0.02)) == (0, None, None, False)
    after = standing(beliefs, [Outcome(plan=0, end="ok", tokens_per_s_per_gpu=100.0)])
    assert after.best == 0
    assert after.next == 1
    assert after.enough(0.02)
    assert not after.enough(0.0)
    assert after.expected_gain_frac is not None
    assert after.bound_frac is not None
    assert 0.0 < after.expected_gain_frac < after.bound_frac < 0.02
    every = [Outcome(plan=at, end="ok", tokens_per_s_per_gpu=100.0 - at) for at in range(3)]
    done = standing(beliefs, every)
    assert (done.next, done.best, done.bound_frac, done.enough(0.01)) == (None, 0, 0.0, True)


def test_a_cheap_run_goes_first_among_equals_and_plans_at_once_differ() -> None:
    plans = candidates([100.0, 100.0, 100.0, 100.0], [10.0] * 4, [1, 1, 8, 8], [4.0, 1.0, 2.0, 2.0])
    beliefs = Beliefs(plans, spreads(tp=0.2, run=0.01), QUIET)
    assert standing(beliefs, []).next == 1
    told = [Outcome(plan=1, end="ok", tokens_per_s_per_gpu=100.0)]
    at_once = next_plans(beliefs, told, busy=[2], count=2)
    assert len(set(at_once)) == 2
    assert not {1, 2} & set(at_once)


def test_failures_leave_something_to_try() -> None:
    plans = candidates([100.0, 90.0, 50.0], [79.0, 78.0, 20.0], [1, 1, 1])
    beliefs = Beliefs(plans, QUIET, spreads(job=0.1))
    after = standing(beliefs, [Outcome(plan=0, end="oom")])
    assert after.next == 2
    assert after.best is None
    assert not after.enough(1.0)
    none = standing(beliefs, [Outcome(plan=at, end="oom") for at in range(3)])
    assert (none.next, none.best, none.bound_frac) == (None, None, None)


def test_runs_tell_the_parameters_of_the_stack() -> None:
    random = np.random.default_rng(0)
    positions = random.standard_normal((64, 2))
    slopes = np.array([[0.1, 0.1, 0.1, 0.1], [0.0, 0.05, 0.1, 0.2]])
    plans = replace(
        candidates([100.0] * 4, [10.0] * 4, [1, 2, 4, 8]),
        log_rate_draws=np.log(100.0) + positions @ slopes,
        parameters=PARAMETERS[:2],
        positions=positions,
    )
    beliefs = Beliefs(plans, spreads(stack=1.0), QUIET)
    truth = np.array([-1.0, 0.5])
    told = [
        Outcome(plan=at, end="ok", tokens_per_s_per_gpu=100.0 * float(np.exp(truth @ slopes[:, at]))) for at in (0, 3)
    ]
    assert beliefs.stack_positions(told) == pytest.approx(truth, abs=0.15)
    assert not beliefs.stack_positions([]).any()


def test_carried_spreads_have_every_term() -> None:
    fitted: Floats = np.array([carried_spreads("throughput")[term] for term in TERMS])
    assert set(carried_spreads("memory", without="hagemann2023")) == set(TERMS)
    assert (fitted > 0).all()
    assert carried_spreads("memory", without="nobody") == carried_spreads("memory")
