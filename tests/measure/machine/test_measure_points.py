"""Measuring a list of points: failures are readings, a broken device ends the probe, and what failed is tried last."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knee.base.errors import RunFailed
from knee.measure.machine.listener import ProbeStopped, collect
from knee.measure.machine.readings import GemmPoint, ReadingsFile, Record, key_of, read_readings
from made_machine import MACHINE

POINTS = [GemmPoint(m=m, n=8, k=8, layout="forward") for m in (1, 2, 3, 4)]
GOOD: Record = {"median_s": 1.0, "spread_frac": 0.0}


def failing(point: Any) -> Record:
    """The second point does not fit."""
    if point.m == 2:
        raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")
    return GOOD


def test_a_failure_is_a_reading_and_is_tried_last_next_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    collect(ReadingsFile(path, MACHINE), POINTS[:3], failing)
    assert len(read_readings(path).records) == 3
    assert [r["error"] for r in read_readings(path).failed] == ["out of memory"]
    collect(ReadingsFile(path, MACHINE), POINTS, lambda _: GOOD)
    assert [r["m"] for r in read_readings(path).records] == [1, 3, 4, 2]


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    def stopped(point: Any) -> Record:
        if point.m == 3:
            raise KeyboardInterrupt
        return GOOD

    with pytest.raises(ProbeStopped) as ended:
        collect(ReadingsFile(tmp_path / "mine.kernels.jsonl", MACHINE), POINTS, stopped)
    assert (ended.value.kept, ended.value.left) == (2, 2)
    assert len(read_readings(tmp_path / "mine.kernels.jsonl").records) == 2


def test_a_broken_device_ends_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    cuda = SimpleNamespace(
        is_available=lambda: True, synchronize=broken, memory_reserved=lambda: 0, mem_get_info=lambda: (1, 1)
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, rand=lambda *_, **__: None))
    path = tmp_path / "mine.kernels.jsonl"
    with pytest.raises(RunFailed) as caught:
        collect(ReadingsFile(path, MACHINE), POINTS, failing)
    assert caught.value.code == "device-broken"
    assert [r["key"] for r in read_readings(path).records] == [key_of(POINTS[0]), key_of(POINTS[1])]
