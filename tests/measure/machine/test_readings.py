"""Files of readings: they go on, survive a cut, and refuse another machine."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from knee.measure.machine.readings import GemmPoint, ReadingsFile, key_of, point_of, read_readings
from made_machine import MACHINE
from refusals import caught, kind

POINT = GemmPoint(m=1, n=2, k=3, layout="wgrad")


def test_a_point_comes_back() -> None:
    assert point_of(asdict(POINT) | {"key": "x", "median_s": 1.0}) == POINT
    assert POINT.weight == (1, 2)


def test_a_second_call_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    ReadingsFile(path, MACHINE).add(key_of(POINT), asdict(POINT) | {"median_s": 1.0, "spread_frac": 0.0})
    again = ReadingsFile(path, replace(MACHINE, date="2026-01-02"))
    assert again.done == {key_of(POINT)}
    assert read_readings(path).machine.date == "2026-01-01"
    assert ReadingsFile(path, MACHINE, fresh=True).done == set()


def test_a_line_cut_off_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    ReadingsFile(path, MACHINE).add(key_of(POINT), asdict(POINT) | {"median_s": 1.0, "spread_frac": 0.0})
    with path.open("a") as file:
        file.write('{"key": "half')
    assert len(read_readings(path).records) == 1
    ReadingsFile(path, MACHINE).add("other", asdict(replace(POINT, m=5)) | {"median_s": 2.0, "spread_frac": 0.1})
    assert [r["key"] for r in read_readings(path).records] == [key_of(POINT), "other"]


def test_errors_are_readings_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    ReadingsFile(path, MACHINE).add("bad", asdict(POINT) | {"error": "out of memory"})
    readings = read_readings(path)
    assert list(readings.good("gemm")) == []
    assert [r["error"] for r in readings.failed] == ["out of memory"]
    assert ReadingsFile(path, MACHINE).done == set()  # tried again


@pytest.mark.parametrize(
    "change",
    [
        {"median_s": 0.0},
        {"median_s": -1.0},
        {"median_s": float("nan")},
        {"median_s": "1"},
        {"median_s": None},
        {"m": "8"},
        {"m": True},
        {"layout": 3},
        {"key": 1},
    ],
)
def test_a_reading_that_is_none_is_refused_with_its_line(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    record = {"key": key_of(POINT)} | asdict(POINT) | {"median_s": 1.0, "spread_frac": 0.0} | change
    path.write_text(json.dumps(asdict(MACHINE)) + "\n" + json.dumps(record) + "\n")
    assert kind(caught(lambda: read_readings(path))) == ("not-a-reading", "line 2")


@pytest.mark.parametrize("change", [{"sms": "132"}, {"kind": "tpu"}, {"memory_bytes": None}])
def test_a_machine_that_is_none_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    path.write_text(json.dumps(asdict(MACHINE) | change) + "\n")
    assert kind(caught(lambda: read_readings(path))) == ("not-a-reading", "line 1")


@pytest.mark.parametrize(
    ("change", "field"), [({"device": "other"}, "device"), ({"torch": "3"}, "torch"), ({"driver": "2"}, "driver")]
)
def test_another_machine_is_refused(tmp_path: Path, change: dict[str, str], field: str) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    ReadingsFile(path, MACHINE)
    error = caught(lambda: ReadingsFile(path, replace(MACHINE, **change)))  # type: ignore[arg-type]
    assert kind(error) == ("other-machine", field)
    assert "fresh" in str(error.hint)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty"),
        ("[]\n", "not-a-reading"),
        ('{"a": 1}\n', "empty"),
        ('{"probe": "kernels"}\n', "not-a-reading"),
        ("not json\nnot json\n", "not-a-reading"),
        (json.dumps(asdict(MACHINE)) + '\n{"kind": "unheard"}\n{}\n', "not-a-reading"),
        ("\xff\xfe", "not-utf8"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(text.encode("latin-1"))
    error = caught(lambda: read_readings(path))
    assert error.code == code
    assert str(path) in error.message
