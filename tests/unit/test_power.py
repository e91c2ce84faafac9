"""Watts of a GPU, against an H200's own readings."""

from __future__ import annotations

import numpy as np
import pytest

from knee.energy.power import power_w, usd_per_mtoken
from knee.specs.load import load_cluster

H200 = load_cluster("dgx-h200").spec.gpu


def watts(*, duty: float = 0.0, moved_bytes: float = 0.0, comm_frac: float = 0.0) -> float:
    """One second, of which a share runs bf16 matmuls of 8192^3 at three quarters of the peak."""
    flop = duty * 0.75 * 989e12
    return float(power_w(H200, step_s=np.ones(1), flop=np.array([flop]), moved_bytes=np.array([moved_bytes]),
                         comm_s=np.array([comm_frac]))[0])


def test_nothing_runs() -> None:
    assert watts() == pytest.approx(H200.idle_w, rel=1e-3)


READINGS = {0.20: 293, 0.33: 414, 0.50: 556, 0.67: 645, 0.80: 704, 1.0: 705}


@pytest.mark.parametrize(("duty", "measured"), READINGS.items())
def test_duty_cycles_of_an_h200(duty: float, measured: float) -> None:
    """NVML's energy counter at a 700 W cap (shared/notes/traces_and_energy.md)."""
    assert watts(duty=duty) == pytest.approx(measured, rel=0.06)


def test_never_above_the_cap() -> None:
    assert watts(duty=1.0, moved_bytes=4e12, comm_frac=1.0) <= H200.tdp_w
    assert watts(duty=100.0) <= H200.tdp_w


def test_a_copy_draws_what_was_measured() -> None:
    """402 W for a copy at 4.0 TB/s."""
    assert watts(moved_bytes=4.0e12) == pytest.approx(402, rel=0.02)


def test_work_and_waiting_both_draw() -> None:
    assert H200.idle_w < watts(comm_frac=1.0) < watts(comm_frac=1.0, duty=0.3)


def test_dollars() -> None:
    assert float(usd_per_mtoken(3.6, np.array([1000.0]))[0]) == pytest.approx(1.0)
