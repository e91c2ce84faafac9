"""Exposed communication of a trace as evidence about the stack."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import knee
from knee.commands.tune.posterior import (
    Beliefs,
    Candidates,
    Outcome,
    candidates_of,
    carried_spreads,
    measured_shares,
    simulated_shares,
)
from knee.specs import Job
from knee.specs.plan_table import table_of


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    return [
        knee.simulate("llama2-7b", cluster="dgx-h100", gpus=1024, local_batch=2, sharding="fsdp", tp=tp).job
        for tp in (1, 2)
    ]


@pytest.fixture(scope="module")
def candidates(jobs: list[Job]) -> Candidates:
    return candidates_of(jobs[0].model, jobs[0].cluster, jobs[0].profile, table_of(jobs), steps=10)


def test_what_a_record_and_the_simulator_call_alike(jobs: list[Job], candidates: Candidates) -> None:
    load = {"collective": "all_gather", "group": "dp_shard", "load_s": 0.5, "exposed_s": 0.2}
    assert measured_shares({"traced_step_s": 2.0, "comm_loads": [load, load | {"collective": "send_recv"}]}) == {
        "all_gather": 0.1
    }
    assert measured_shares({"traced_step_s": 2.0, "comm_loads": [{**load, "exposed_s": None}, 3]}) == {}
    assert measured_shares({"tokens_per_s_per_gpu": 1.0}) == {}
    found = simulated_shares(jobs[1], candidates)
    assert found.names == ("all_gather", "all_reduce", "reduce_scatter")
    simulated = knee.simulate(jobs[1])
    # two collectives at the same time count twice here
    assert found.shares.sum() == pytest.approx(simulated.exposed_comm_s / simulated.step_s, rel=0.03)
    assert found.draws.shape == (len(candidates.positions), len(found.names))


@pytest.mark.slow
def test_exposed_communication_narrows_what_a_slow_network_may_cost(jobs: list[Job], candidates: Candidates) -> None:
    spreads, memory = carried_spreads("throughput"), carried_spreads("memory")
    beliefs = Beliefs(candidates, spreads, memory, shares=cache(lambda row: simulated_shares(jobs[row], candidates)))
    rate = float(candidates.tokens_per_s_per_gpu[1])
    plain = Outcome(plan=1, end="ok", tokens_per_s_per_gpu=rate)
    expected = simulated_shares(jobs[1], candidates)
    as_expected = dict(zip(expected.names, expected.shares.tolist(), strict=True))
    # throughput is as predicted, but gathers take longer: then compute is faster than predicted, and a plan that
    # gathers more is slower
    slower = as_expected | {"all_gather": as_expected["all_gather"] + 0.15}
    without, same, worse = (
        beliefs.after([replace(plain, exposed_frac=exposed)]) for exposed in ({}, as_expected, slower)
    )
    assert same.log_rate[0] == pytest.approx(without.log_rate[0], abs=1e-6)
    assert same.rate_covariance[0, 0] < 0.99 * without.rate_covariance[0, 0]
    assert worse.log_rate[0] < same.log_rate[0] - 0.003
    assert np.linalg.norm(beliefs.stack_positions([replace(plain, exposed_frac=slower)])) > 0.05
    assert np.allclose(beliefs.stack_positions([plain]), 0.0)
