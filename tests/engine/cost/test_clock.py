"""The clock that a power limit leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.cost.compute_costs import StepWork, clock_frac
from knee.engine.energy import demand_w
from knee.engine.simulator import evaluate
from knee.specs.hardware import Gpu
from knee.specs.load import load_cluster
from tables import H100, job, table

H200 = load_cluster("dgx-h200").spec.gpu
PRODUCT_FLOP, PRODUCT_BYTES, CALLS_PER_S = 4398046511104.0, 1610612736.0, 263 / 0.5 / 2.7
"""A product of data/h200/power.jsonl, and how many ran a second of its own time at the highest clock."""


def products(duty: float) -> StepWork:
    """So much of the time at the highest clock, rests of the same length at any."""
    at_highest = PRODUCT_FLOP / (PRODUCT_FLOP * CALLS_PER_S)
    rest = at_highest * (1.0 - duty) / duty
    columns = {"flop": PRODUCT_FLOP, "moved_bytes": PRODUCT_BYTES, "clocked_s": at_highest, "other_s": rest}
    return StepWork(**{k: np.array([v]) for k, v in (columns | {"bubble_frac": 0.0, "host_s": 0.0}).items()})


@pytest.mark.parametrize(("duty", "mhz"), [(0.2, 1980), (0.35, 1980), (0.5, 1969), (1.0, 1476)])
def test_products_on_an_h200(duty: float, mhz: float) -> None:
    """Clocks read on an H200 under 700 W (data/h200/power.jsonl)."""
    assert clock_frac(H200, products(duty))[0] == pytest.approx(mhz / 1980, rel=0.05)


def test_a_step_at_that_clock_draws_the_limit() -> None:
    work = products(1.0)
    x = clock_frac(H200, work)
    seconds = work.clocked_s / x
    drawn = demand_w(H200, step_s=seconds, flop=work.flop * x, moved_bytes=work.moved_bytes, comm_s=0.0 * x)
    assert drawn[0] == pytest.approx(H200.tdp_w)


def capped(gpu: Gpu, watts: float) -> float:
    cluster = replace(H100, gpu=replace(gpu, tdp_w=watts))
    one = job(cluster=cluster, dp_shard=8)
    return float(evaluate(one.model, cluster, one.profile, table(one)).compute.clock_frac[0])


def test_a_limit_below_that_of_the_measurement_slows_down() -> None:
    """Where no clock is known, that of the measurement is the highest, under the limit of the measurement."""
    assert capped(H100.gpu, 700.0) == 1.0
    assert capped(H100.gpu, 1000.0) == 1.0
    assert 0.75 < capped(H100.gpu, 500.0) < 0.85
    assert capped(H100.gpu, 350.0) < capped(H100.gpu, 500.0)
