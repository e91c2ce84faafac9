"""The grid of the kernel probe, and the readings that were taken with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from knee.measure.machine.kernel_grid import (
    CPU,
    GPU,
    attention_points,
    device_points,
    gemm_points,
    grouped_points,
    kernel_points,
    stream_points,
)
from knee.measure.machine.readings import GroupedPoint, key_of, read_readings

READINGS = Path(__file__).parents[3] / "data" / "h200" / "kernels.jsonl"
GRID = kernel_points(GPU, ("bf16", "fp16", "fp8"), ("flash2", "cudnn", "cutlass", "unfused"))


def test_a_point_is_measured_once() -> None:
    keys = [key_of(p) for p in GRID]
    assert len(set(keys)) == len(keys)


def test_layouts_share_their_weight() -> None:
    forward, dgrad, wgrad = gemm_points(GPU, ("bf16",))[:3]
    assert forward.weight == dgrad.weight == wgrad.weight


def test_quick_is_a_fifth() -> None:
    assert len(gemm_points(GPU, ("bf16",), quick=True)) * 5 < len(gemm_points(GPU, ("bf16",)))
    all_of_them = attention_points(GPU, ("flash2",), "bf16")
    assert len(attention_points(GPU, ("flash2",), "bf16", quick=True)) * 4 < len(all_of_them)
    assert len(stream_points(GPU, quick=True)) * 4 < len(stream_points(GPU))


def test_the_readings_cover_the_grid() -> None:
    readings = read_readings(READINGS)
    assert {r["key"] for r in readings.records} == {key_of(p) for p in GRID}
    assert not readings.failed
    assert all(r["median_s"] > 0 for r in readings.records)


def test_the_median_and_its_spread() -> None:
    pytest.importorskip("torch")
    from knee.measure.machine.kernel_timing import timing_of

    timing = timing_of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert timing.median_s == 3.0
    assert timing.repeats == 5
    assert timing_of([2.0]).spread_frac == pytest.approx(0.0)


def test_a_processor_gets_small_kernels() -> None:
    points = kernel_points(CPU, ("fp32",), ("flash2",))
    assert max(p.flop for p in points if p.kind == "gemm") < 1e11
    assert not any(getattr(p, "compiled", False) for p in points)


@pytest.mark.parametrize("even", [True, False])
def test_experts_share_all_rows(even: bool) -> None:
    point = GroupedPoint(rows=101, experts=8, n=16, k=32, layout="forward", even=even)
    assert sum(point.counts) == point.rows
    assert len(point.counts) == point.experts
    assert (max(point.counts) - min(point.counts) <= 1) == even


def test_grouped_products_are_measured_in_every_layout() -> None:
    points = grouped_points(CPU, "fp32", quick=True)
    assert {p.layout for p in points} == {"forward", "dgrad", "wgrad"}
    assert {p.even for p in points} == {True, False}
    assert len(grouped_points(GPU, "bf16", quick=True)) * 5 < len(grouped_points(GPU, "bf16"))
    assert len({key_of(p) for p in device_points("cuda", ("bf16",))}) == len(device_points("cuda", ("bf16",)))
