"""Tables of runs, bandwidths and data sheets: CSV and Parquet say the same."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from knee.commands.study import api as tables
from knee.commands.study.api import write_tables
from knee.commands.study.record_store import Store
from knee.commands.study.run_study import Ran, points_to_run, recorded, results

NAMES = ["fig2b", "fig12", "table1"]


@pytest.fixture(scope="module")
def ran(studied: Path) -> list[Ran]:
    points, store = points_to_run(NAMES), Store(studied / "records")
    record = store.record(points[0].question)
    measured = {k: v for k, v in record.items() if k != "trust"} | {"kind": "measured", "comm_load_s": None}
    return results(NAMES, recorded(points, store.record), [(points[0], measured)])


def in_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_kind_of_row_has_a_table(ran: list[Ran], tmp_path: Path) -> None:
    written = write_tables(ran, tmp_path)
    assert sorted(path.name for path in written) == sorted(path.name for path in tmp_path.iterdir())
    assert {path.stem for path in written} == {"runs", "bandwidths", "hardware"}
    counts = {name: len(in_csv(tmp_path / f"{name}.csv")) for name in ("runs", "bandwidths", "hardware")}
    assert counts == {"runs": 10, "bandwidths": 120, "hardware": 3}
    rows = in_csv(tmp_path / "runs.csv")
    assert [row["kind"] for row in rows].count("measured") == 1
    assert {row["study"] for row in rows} == {"fig12"}
    values = [row for one in ran for row in one.rows if "plan" in row]
    assert [float(row["step_s"]) for row in rows] == [row["step_s"] for row in values]  # to the last digit


def test_both_forms_hold_the_same_values(ran: list[Ran], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_tables(ran, tmp_path)
    for name in ("runs", "bandwidths", "hardware"):
        texts, table = in_csv(tmp_path / f"{name}.csv"), parquet.read_table(tmp_path / f"{name}.parquet")
        assert list(texts[0]) == table.column_names
        for text, row in zip(texts, table.to_pylist(), strict=True):
            assert all(_same(text[column], row[column]) for column in text)


def _same(text: str, value: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(text) == value
    return text == ("" if value is None else str(value))


def test_without_pyarrow_there_is_csv(ran: list[Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else name)
    assert {path.suffix for path in write_tables(ran, tmp_path)} == {".csv"}


def test_no_rows_no_table(tmp_path: Path) -> None:
    assert write_tables([], tmp_path) == []
    assert list(tmp_path.iterdir()) == []
