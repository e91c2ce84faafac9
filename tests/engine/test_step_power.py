"""Watts of a GPU, against an H200's own readings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from knee.engine.energy import power_w, usd_per_mtoken
from knee.measure.hardware_fit.power_constants import modelled_w, windows_of
from knee.measure.machine.readings import read_readings
from knee.specs.hardware import Gpu
from knee.specs.load import load_cluster

H200 = load_cluster("dgx-h200").spec.gpu
WINDOWS = windows_of(read_readings(Path(__file__).parents[2] / "data" / "h200" / "power.jsonl"))
LOADS = list(zip(WINDOWS.load, WINDOWS.duty_frac.tolist(), strict=True))


def watts(*, duty: float = 0.0, moved_bytes: float = 0.0, comm_frac: float = 0.0, gpu: Gpu = H200) -> float:
    """One second, of which a share runs bf16 matmuls of 8192^3 at three quarters of the peak."""
    flop = duty * 0.75 * 989e12
    return float(
        power_w(
            gpu,
            step_s=np.ones(1),
            flop=np.array([flop]),
            moved_bytes=np.array([moved_bytes]),
            comm_s=np.array([comm_frac]),
        )[0]
    )


def test_nothing_runs() -> None:
    assert watts() == pytest.approx(H200.idle_w, rel=1e-3)


@pytest.mark.parametrize("row", range(len(WINDOWS)), ids=[f"{name}-{duty:g}" for name, duty in LOADS])
def test_loads_of_an_h200(row: int) -> None:
    """Draw by the energy counter at a 700 W cap."""
    assert modelled_w(H200, WINDOWS)[row] == pytest.approx(WINDOWS.power_w[row], rel=0.02)


def test_never_above_the_cap() -> None:
    assert watts(duty=1.0, moved_bytes=4e12, comm_frac=1.0) <= H200.tdp_w
    assert watts(duty=100.0) <= H200.tdp_w


def test_the_bend_at_the_cap() -> None:
    """A sharper bend comes nearer to the plain minimum, and none overflows."""
    demands = {"below": 0.3, "above": 3.0, "far above": 1e6}
    for name, duty in demands.items():
        drawn = [watts(duty=duty, gpu=replace(H200, cap_sharpness=sharp)) for sharp in (2.0, 8.0, 30.0, 1e4)]
        assert drawn == sorted(drawn), name
        assert drawn[-1] == pytest.approx(min(H200.tdp_w, watts(duty=duty, gpu=replace(H200, tdp_w=1e12))), rel=1e-3)


def test_work_and_waiting_both_draw() -> None:
    assert H200.idle_w < watts(comm_frac=1.0) < watts(comm_frac=1.0, duty=0.3)


def test_dollars() -> None:
    assert float(usd_per_mtoken(3.6, np.array([1000.0]))[0]) == pytest.approx(1.0)
