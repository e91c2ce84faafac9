"""``knee validate`` of one's own runs: a folder with records, and JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from knee.commands.main import main


def knee(*words: str | Path) -> str:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs that are as simulated, but for their speed; two differ in what no column of a table has."""
    for number, options in enumerate((("--tp", "2"), ("--tp", "2", "--recompute", "full"), ())):
        record = json.loads(
            knee(
                "simulate",
                "llama2-7b",
                "--cluster",
                "dgx-h100",
                "--gpus",
                "8",
                "--local-batch",
                "2",
                "--profile",
                "knee",
                *options,
                "--json",
            )
        )
        rates = {name: record[name] / (1.0 + number / 10) for name in ("tokens_per_s", "tokens_per_s_per_gpu")}
        run = tmp_path / "sweep" / "runs" / f"000{number}"
        run.mkdir(parents=True)
        plain = record | rates | {"step_s": None, "kind": "measured", "status": "done"}
        (run / "record.json").write_text(json.dumps(plain), encoding="utf-8")
    return tmp_path / "sweep"


def test_a_folder_of_records_is_validated_row_by_row(folder: Path, tmp_path: Path) -> None:
    data = json.loads(knee("validate", folder, "--json", "--rows", tmp_path / "rows.csv"))
    assert (data["all"]["rows"], data["all"]["runs"]) == (3, 3)
    with (tmp_path / "rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["runs/0000", "runs/0001", "runs/0002"]
    assert [float(row["error_frac"]) for row in rows] == pytest.approx([0.0, 0.1, 0.2], abs=1e-6)
    assert "median error of tokens/s per GPU: 10.0%" in knee("validate", folder)
    one = json.loads(knee("validate", folder / "runs" / "0001" / "record.json", "--json"))
    assert one["all"]["runs"] == 1


def test_a_folder_without_records_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["validate", str(tmp_path)])
    assert result.exit_code == 2
    assert "contains no record.json" in result.output
