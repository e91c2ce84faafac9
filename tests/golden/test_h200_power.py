"""The draw of whole training steps on one H200, by a power model that was fitted on bare loads."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from knee.measure.hardware_fit.measured_steps import simulate_step
from knee.measure.hardware_fit.power_constants import fit_power, windows_of
from knee.measure.machine.readings import read_readings
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster

DATA = Path(__file__).parents[2] / "data" / "h200"


def fitted() -> Cluster:
    """A DGX H200 with the power model of the readings."""
    readings, cluster = read_readings(DATA / "power.jsonl"), load_cluster("dgx-h200").spec
    fit = fit_power(windows_of(readings), cluster.gpu, limit_w=readings.machine.power_limit_w)
    return replace(cluster, gpu=fit.gpu)


def test_whole_steps_draw_what_was_measured() -> None:
    """All were at the cap. The eager 1B is modelled below it: its many fp32 kernels draw more a byte than copies do."""
    cluster = fitted()
    errors, usual = [], []
    for point, read in read_readings(DATA / "steps.jsonl").good("step"):
        if read["power_w"] is None:
            continue
        watts = simulate_step(point, cluster).power_w_per_gpu
        assert watts is not None
        errors.append(abs(watts / read["power_w"] - 1.0))
        if point.compiled or point.model != "llama-1b":
            usual.append(errors[-1])
    assert (len(errors), len(usual)) == (12, 9)
    assert statistics.median(errors) <= 0.02
    assert max(usual) <= 0.06
    assert max(errors) <= 0.12
