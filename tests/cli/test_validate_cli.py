"""``knee validate`` as a stranger uses it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from knee.cli import main

HEADER = "id,source,layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tp,tokens_per_s_per_gpu,memory_gib,status"
ROWS = (
    "a1,A,16,2048,32,h100-80gb,8,4096,64,1,30000,40,ok",
    "a2,A,16,2048,32,h100-80gb,8,4096,64,2,25000,30,ok",
    "a3,A,16,2048,32,h100-80gb,8,4096,64,4,15000,,ok",
    "b1,B,32,4096,32,a100-80gb,64,2048,256,1,3000,,ok",
    "b2,B,32,4096,32,a100-40gb,8,8192,256,1,,,oom",
    "c1,C,32,4096,32,tpu-v9,8,8192,256,1,100,,ok",
)


def knee(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["validate", *(str(arg) for arg in args)])


def refused(*args: str | Path) -> str:
    result = knee(*args)
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error:") == 1
    assert result.stderr.count("hint:") == 1
    return result.stderr


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((HEADER, *ROWS)) + "\n", encoding="utf-8")
    return path


def test_tables(runs: Path) -> None:
    result = knee(runs)
    assert result.exit_code == 0
    assert result.stderr == ""
    for words in ("tokens/s per GPU: error", "median over 2 sources", "error of memory", "regret", "all rows",
                  "C: no GPU 'tpu-v9' is known", "sharding was not given: fsdp"):
        assert words in result.stdout


def test_json(runs: Path) -> None:
    data = json.loads(knee(runs, "--json").stdout)
    assert data.keys() == {"median_of_sources_frac", "all", "sources", "assumptions", "ignored_columns"}
    score = data["all"]
    assert (score["rows"], score["rows_used"], score["runs"]) == (6, 5, 5)
    assert score["throughput"]["points"] == 4
    assert score["memory"]["points"] == 2
    assert score["fitting"]["oom"] == {"fits": 0, "does_not": 1}
    assert score["ranking"]["groups"] == 1
    assert list(data["sources"]) == ["A", "B", "C"]
    assert data["sources"]["C"]["throughput"] is None


def test_rows(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    result = knee(runs, "--rows", out)
    assert result.exit_code == 0
    assert "wrote" in result.stderr
    with out.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    first = rows["a1"]
    expected = float(first["predicted_tokens_per_s_per_gpu"]) / 30000 - 1
    assert float(first["error_frac"]) == pytest.approx(expected)
    assert rows["b2"]["error_frac"] == ""
    assert rows["b2"]["fits"] == "False"
    assert "tpu-v9" in rows["c1"]["skipped"]
    assert first["skipped"] == ""


def test_unknown_columns_are_ignored_with_a_word(runs: Path) -> None:
    lines = runs.read_text().splitlines()
    runs.write_text("\n".join([lines[0] + ",weather", *(line + ",fair" for line in lines[1:])]))
    result = knee(runs, "--json")
    assert result.stderr == "ignored columns: weather\n"
    assert json.loads(result.stdout)["ignored_columns"] == ["weather"]


def test_only_status(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,status\n16,2048,32,h100-80gb,8,4096,64,ok\n")
    result = knee(path)
    assert result.exit_code == 0, result.stderr
    assert "does knee expect them to fit?" in result.stdout
    assert "error of" not in result.stdout
    assert json.loads(knee(path, "--json").stdout)["median_of_sources_frac"] is None


def test_no_file() -> None:
    assert "a file of published runs is needed" in refused()


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "nowhere.csv")
    assert "cannot be read" in refused(tmp_path)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert "is empty" in refused(empty)
    empty.write_text(HEADER + "\n")
    assert "no rows" in refused(empty)
    empty.write_bytes(b"\x80\x81\x82")
    assert "UTF-8" in refused(empty)


def test_missing_columns(runs: Path) -> None:
    runs.write_text(runs.read_text().replace("n_gpus", "gpus_n").replace("heads", "h"))
    said = refused(runs)
    assert "has no column heads, n_gpus" in said


def test_no_row_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("\n".join((HEADER, ROWS[-1], ROWS[-1].replace("100,", "200,"))))
    said = refused(path, "--json")
    assert "none of the 2 rows" in said
    assert "no GPU 'tpu-v9' is known" in said


def test_rows_that_cannot_be_written(runs: Path, tmp_path: Path) -> None:
    assert "which is read" in refused(runs, "--rows", runs)
    assert "cannot be written" in refused(runs, "--rows", tmp_path / "no" / "such" / "folder.csv")


def test_many_different_reasons_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    bad = [ROWS[0].replace("h100-80gb", f"chip{i}") for i in range(40)]
    path.write_text("\n".join((HEADER, *ROWS, *bad)))
    result = knee(path)
    assert "and 29 more" in result.stdout
    assert len(json.loads(knee(path, "--json").stdout)["all"]["skipped"]) == 41
