"""The fit of the power model: on readings that it made itself, and on an H200's."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from knee.base.errors import InputError
from knee.measure.hardware_fit.power_constants import (
    UNFITTED,
    fit_power,
    modelled_w,
    power_values,
    values_of,
    windows_of,
)
from knee.measure.machine.power_loads import power_points
from knee.measure.machine.readings import Readings, Record, key_of, read_readings
from knee.specs.hardware import Gpu
from knee.specs.load import load_cluster

DATA = Path(__file__).parents[3] / "data" / "h200"
H200 = read_readings(DATA / "power.jsonl")
CLUSTER = load_cluster("dgx-h200").spec
TRUE = replace(
    CLUSTER.gpu, idle_w=90.0, tdp_w=500.0, cap_sharpness=14.0, gemm_j_per_flop=0.8e-12, hbm_j_per_byte=45e-12
)
RATES = {"gemm": (700e12, 0.25e12), "copy": (0.0, 4e12), "mixed_4_1": (560e12, 0.9e12), "mixed_2_2": (420e12, 1.6e12),
         "mixed_1_4": (220e12, 2.6e12), "attention_flash2": (300e12, 0.3e12), "attention_cudnn": (500e12, 0.5e12),
         "idle": (0.0, 0.0)}  # fmt: skip
"""FLOP/s and B/s of a load at full duty, on a GPU that is made up."""


def made(gpu: Gpu = TRUE, *, busy_s: float | None = None, noise: float = 0.0) -> Readings:
    """Readings of a GPU that draws as the model says, give or take some noise."""
    random, records = np.random.default_rng(3), []
    for point in power_points():
        flop, moved = (rate * point.duty_frac * (busy_s or 2.7) for rate in RATES[point.load])
        record: Record = {
            "key": key_of(point),
            **asdict(point),
            "calls": 1,
            "flop_per_call": flop,
            "bytes_per_call": moved,
            "window_s": 2.7,
            "power_w": 1.0,
        }
        records.append(record | ({} if busy_s is None else {"busy_s": busy_s}))
    drawn = modelled_w(gpu, windows_of(Readings(H200.machine, tuple(records))))
    drawn = drawn * (1.0 + noise * random.standard_normal(len(drawn)))
    return Readings(H200.machine, tuple(r | {"power_w": float(w)} for r, w in zip(records, drawn, strict=True)))


@pytest.mark.parametrize("busy_s", [None, 2.6])
def test_known_parameters_are_found_again(busy_s: float | None) -> None:
    fit = fit_power(windows_of(made(busy_s=busy_s)), CLUSTER.gpu, limit_w=TRUE.tdp_w)
    for name in ("idle_w", "tdp_w", "gemm_j_per_flop", "hbm_j_per_byte", "cap_sharpness"):
        assert getattr(fit.gpu, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    assert fit.errors.worst_frac < 1e-4
    assert max(r.worst_frac for kind, r in fit.held_back.items() if kind != UNFITTED) < 1e-3


def test_noise_moves_them_little() -> None:
    fit = fit_power(windows_of(made(noise=0.01)), CLUSTER.gpu, limit_w=TRUE.tdp_w)
    assert fit.gpu.gemm_j_per_flop == pytest.approx(TRUE.gemm_j_per_flop, rel=0.03)
    assert fit.gpu.hbm_j_per_byte == pytest.approx(TRUE.hbm_j_per_byte, rel=0.03)


def test_one_bad_window_bends_nothing() -> None:
    readings = made()
    bad = tuple(r | ({"power_w": 2 * r["power_w"]} if r["key"] == "power/gemm/0.2" else {}) for r in readings.records)
    fit = fit_power(windows_of(Readings(readings.machine, bad)), CLUSTER.gpu, limit_w=TRUE.tdp_w)
    assert fit.gpu.gemm_j_per_flop == pytest.approx(TRUE.gemm_j_per_flop, rel=0.05)
    assert fit.errors.median_frac < 0.01


def test_attention_has_an_energy_of_its_own() -> None:
    hot = replace(TRUE.attention["flash2"], j_per_flop=2 * TRUE.gemm_j_per_flop)
    readings = made(replace(TRUE, attention=TRUE.attention | {"flash2": hot}))
    fit = fit_power(windows_of(readings), CLUSTER.gpu, limit_w=TRUE.tdp_w)
    assert fit.gpu.gemm_j_per_flop == pytest.approx(TRUE.gemm_j_per_flop, rel=1e-3)
    assert fit.gpu.attention["flash2"].j_per_flop == pytest.approx(hot.j_per_flop, rel=1e-3)
    assert fit.errors.worst_frac < 1e-3 < fit.held_back[UNFITTED].worst_frac
    hotter = tuple(r | ({"power_w": 499.0} if r["load"].startswith(UNFITTED) else {}) for r in readings.records)
    capped = fit_power(windows_of(Readings(readings.machine, hotter)), CLUSTER.gpu, limit_w=500.0)
    assert capped.gpu.attention["flash2"].j_per_flop is None  # at the limit nothing tells it


def test_without_loads_near_the_cap_its_bend_is_not_told() -> None:
    readings = made(replace(TRUE, tdp_w=5000.0))
    fit = fit_power(windows_of(readings), CLUSTER.gpu, limit_w=5000.0)
    assert fit.around_cap is None
    assert "gpu.cap_sharpness" not in values_of(fit, readings.machine)


def test_a_board_that_does_not_tell_its_limit() -> None:
    gpu = replace(TRUE, tdp_w=CLUSTER.gpu.tdp_w)
    fit = fit_power(windows_of(made(gpu)), CLUSTER.gpu, limit_w=None)
    assert fit.gpu.tdp_w == CLUSTER.gpu.tdp_w
    assert "gpu.tdp_w" not in values_of(fit, replace(H200.machine, power_limit_w=None))


def test_the_h200s_own_points() -> None:
    """At most 4%, also around the cap."""
    fit = fit_power(windows_of(H200), CLUSTER.gpu, limit_w=H200.machine.power_limit_w)
    assert fit.errors.points == 22
    assert fit.errors.median_frac <= 0.01
    assert fit.errors.worst_frac <= 0.02
    assert fit.around_cap is not None
    assert fit.around_cap.points >= 8
    assert fit.around_cap.median_frac <= 0.01
    assert fit.around_cap.worst_frac <= 0.02
    assert fit.held_back["mixed"].worst_frac <= 0.02
    assert fit.held_back["copy"].worst_frac <= 0.05
    assert fit.held_back["attention"].worst_frac > 0.25  # with the energy of products
    for name in ("idle_w", "gemm_j_per_flop", "hbm_j_per_byte", "cap_sharpness"):
        assert getattr(CLUSTER.gpu, name) == pytest.approx(getattr(fit.gpu, name), rel=0.01), name
    for kernel in ("flash2", "cudnn"):
        assert CLUSTER.gpu.attention[kernel].j_per_flop == pytest.approx(fit.gpu.attention[kernel].j_per_flop, rel=0.01)


def test_values_say_where_they_come_from() -> None:
    values = power_values(H200, CLUSTER)
    assert [(name, value.kind) for name, value in values.items()] == [
        ("gpu.tdp_w", "measured"),
        ("gpu.idle_w", "measured"),
        ("gpu.gemm_j_per_flop", "fitted"),
        ("gpu.hbm_j_per_byte", "fitted"),
        ("gpu.cap_sharpness", "fitted"),
        ("gpu.attention.flash2.j_per_flop", "fitted"),
        ("gpu.attention.cudnn.j_per_flop", "fitted"),
    ]
    source = values["gpu.hbm_j_per_byte"].source
    for part in ("knee probe power", "NVIDIA H200", "driver 580", "s by the energy counter", "median"):
        assert part in source


def test_an_unfinished_probe() -> None:
    begun = Readings(H200.machine, tuple(r for r in H200.records if r["load"] != "copy"))
    with pytest.raises(InputError, match="those of copy are missing"):
        fit_power(windows_of(begun), CLUSTER.gpu, limit_w=700.0)
    assert power_values(begun, CLUSTER) == {}
    assert power_values(Readings(H200.machine, ()), CLUSTER) == {}


@pytest.mark.parametrize("change", [{"window_s": "soon"}, {"power_w": None}, {"power_w": 0.0}, {"calls": None}])
def test_readings_that_are_none(change: Record) -> None:
    broken = Readings(H200.machine, (*H200.records[:-1], H200.records[-1] | change))
    with pytest.raises(InputError, match="power reading"):
        windows_of(broken)


def test_the_recording_is_json_of_this_probe() -> None:
    keys = {json.loads(line).get("key") for line in (DATA / "power.jsonl").read_text(encoding="utf-8").splitlines()[1:]}
    assert keys <= {key_of(point) for point in power_points()}
    assert {p.load for p in power_points(quick=True)} >= {"idle", "gemm", "copy"}
