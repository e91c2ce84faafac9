"""The grid of the kernel probe, and the readings that were taken with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knee.probe.points import attention_points, gemm_points, key_of, shuffled, stream_points
from knee.probe.timing import timing_of

READINGS = Path(__file__).parents[2] / "data" / "h200" / "kernels.jsonl"


def test_a_point_is_measured_once() -> None:
    points = [*gemm_points(dtypes=("bf16", "fp16", "fp8")), *attention_points(("flash2", "cudnn")), *stream_points()]
    keys = [key_of(p) for p in points]
    assert len(set(keys)) == len(keys)
    assert sorted(key_of(p) for p in shuffled(points)) == sorted(keys)


def test_layouts_share_their_weight() -> None:
    forward, dgrad, wgrad = gemm_points()[:3]
    assert forward.weight == dgrad.weight == wgrad.weight


def test_quick_is_a_tenth() -> None:
    assert len(gemm_points(quick=True)) * 5 < len(gemm_points())
    assert len(attention_points(("flash2",), quick=True)) * 5 < len(attention_points(("flash2",)))


def test_the_readings_cover_the_grid() -> None:
    grid = [*gemm_points(dtypes=("bf16", "fp16", "fp8")), *attention_points(("flash2", "cudnn", "cutlass")),
            *stream_points()]
    records = [json.loads(line) for line in READINGS.read_text(encoding="utf-8").splitlines()]
    assert {r["key"] for r in records} == {key_of(p) for p in grid}
    assert all(r["median_s"] > 0 for r in records)


def test_the_median_and_its_spread() -> None:
    timing = timing_of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert timing.median_s == 3.0
    assert timing.repeats == 5
    assert timing_of([2.0]).spread_frac == pytest.approx(0.0)
