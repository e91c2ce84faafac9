"""``knee report``: a page of one's own records, and what is no record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.cli import main

ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--profile", "paper", "--local-batch", "2", "--json")
NASTY = '"><script>alert(1)</script>'


def knee(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def simulated() -> dict[int, dict[str, Any]]:
    return {n: json.loads(knee(*ASK, "--gpus", str(n)).stdout) for n in (8, 16)}


def measured(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A run that was a fifth slower than the simulation."""
    found = {key: value for key, value in record.items() if key != "trust"}
    return found | {
        "kind": "measured",
        "status": "done",
        "tokens_per_s": 0.8 * record["tokens_per_s"],
        "tokens_per_s_per_gpu": 0.8 * record["tokens_per_s_per_gpu"],
        "step_s": record["step_s"] / 0.8,
        "memory_bytes": None,
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path, simulated: dict[int, dict[str, Any]]) -> Path:
    """Two simulations in a file, two runs in folders, and something else."""
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "simulated.json").write_text("\n".join(json.dumps(r) for r in simulated.values()), encoding="utf-8")
    for n, record in simulated.items():
        (runs / f"run{n}").mkdir()
        (runs / f"run{n}" / "record.json").write_text(json.dumps(measured(record)), encoding="utf-8")
        (runs / f"run{n}" / "job.json").write_text("{}", encoding="utf-8")
    (runs / "notes.json").write_text('{"hello": 1}', encoding="utf-8")
    return runs


def test_a_folder_becomes_a_page(tmp_path: Path, folder: Path, simulated: dict[int, dict[str, Any]]) -> None:
    pytest.importorskip("vl_convert")
    out = tmp_path / "page.html"
    result = knee("report", folder, "-o", out, "--title", "Our <cluster>")
    assert result.exit_code == 0, result.stderr
    assert f"wrote {out}" in result.stderr
    assert "notes.json: nothing in it was measured or simulated" in result.stderr
    assert "job.json" not in result.stderr  # a run's folder is its record
    page = out.read_text(encoding="utf-8")
    assert "<h1>Our &lt;cluster&gt;</h1>" in page
    assert "2 measured and 2 simulated steps of llama2-7b on 8 to 16 GPUs." in page
    assert "Of tokens/s per GPU knee is off by 25.0% in the median of 2, by +25.0% at worst." in page
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)">', page)}
    assert {r[key] for r in simulated.values() for key in ("tokens_per_s", "step_s", "memory_bytes")} <= shown
    assert {0.8 * r["tokens_per_s_per_gpu"] for r in simulated.values()} <= shown
    for title in (
        "Tokens per second, all GPUs",
        "Tokens per second per GPU",
        "MFU",
        "Memory per GPU",
        "Power per GPU",
        "Time per step, by what the GPU does",
        "Tokens per joule",
    ):
        assert f"<h3>{title}</h3>" in page
    assert "unknown" in page
    assert "notes.json" in page
    assert "url(" not in page


def test_rows_as_json_need_no_extra(folder: Path) -> None:
    result = knee("report", folder, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["series"], row["gpus"], row["kind"]) for row in rows] == [
        ("FSDP", 8, "measured"),
        ("FSDP", 8, "simulated"),
        ("FSDP", 16, "measured"),
        ("FSDP", 16, "simulated"),
    ]
    assert rows[0]["memory_bytes"] is None
    assert rows[0]["record"].endswith("record.json")
    assert not Path("report.html").exists()


def test_predictions_stand_beside_measured_records(tmp_path: Path, simulated: dict[int, dict[str, Any]]) -> None:
    path = tmp_path / "runs.json"
    mine = [measured(simulated[8]), measured(simulated[16], cluster="my-cluster")]
    path.write_text(json.dumps(mine), encoding="utf-8")
    result = knee("report", path, "--simulate", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    made = [row for row in rows if row["kind"] == "simulated"]
    assert [row["tokens_per_s"] for row in made] == [simulated[8]["tokens_per_s"]]
    assert "runs.json, record 2 is not predicted" in result.stderr
    assert {row["cluster"] for row in rows} == {"dgx-h100", "my-cluster"}


def test_one_count_of_gpus_is_bars(tmp_path: Path, simulated: dict[int, dict[str, Any]]) -> None:
    pytest.importorskip("vl_convert")
    record = simulated[8]
    other = record | {"plan": record["plan"] | {"tp": 2, "dp_shard": 4}}
    (tmp_path / "a.json").write_text(json.dumps([record, other]), encoding="utf-8")
    result = knee("report", tmp_path / "a.json", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    assert "FSDP, TP 2" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_curves_by_a_column(tmp_path: Path, folder: Path) -> None:
    rows = json.loads(knee("report", folder, "--by", "profile", "--json").stdout)["rows"]
    assert {row["series"] for row in rows} == {"paper"}
    result = knee("report", folder, "--by", "colour", "-o", tmp_path / "x.html")
    assert result.exit_code == 2
    assert "error: --by colour: no record has that column" in result.stderr


def test_mfu_of_two_conventions_is_not_drawn(tmp_path: Path, simulated: dict[int, dict[str, Any]]) -> None:
    pytest.importorskip("vl_convert")
    both = [simulated[8], simulated[16] | {"flop_convention": "6n"}]
    (tmp_path / "a.json").write_text(json.dumps(both), encoding="utf-8")
    result = knee("report", tmp_path / "a.json", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "their MFU cannot be compared; it is not drawn" in page
    assert "<h3>MFU</h3>" not in page
    assert "<h3>Memory per GPU</h3>" in page


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "it is empty"),
        ("not json", "from line 1 on it is not JSON"),
        ("3", "it is no table of keys and values"),
        ('{"kind": "guessed", "step_s": 1}', "its kind is 'guessed'"),
        ('{"step_s": 1, "gpus": "many"}', "gpus is 'many'"),
        ('{"step_s": NaN, "gpus": 8}', "nothing in it was measured or simulated"),
        ('{"kind": "simulated", "impossible": "3 does not divide 32"}', "a point that cannot be: 3 does not divide 32"),
    ],
)
def test_what_is_no_record_is_an_error_with_its_reason(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    result = knee("report", tmp_path / "a.json")
    assert result.exit_code == 2
    assert why in result.stderr
    assert "hint: a record is what" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_given_and_nothing_there(tmp_path: Path) -> None:
    assert "error: no records are given" in knee("report").stderr
    assert "error: there is no" in knee("report", tmp_path / "none").stderr
    assert "has no record.json and no other .json file in it" in knee("report", tmp_path).stderr


def test_a_record_that_does_not_say_its_job_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    record = {"kind": "measured", "gpus": 8, "model": NASTY, "tokens_per_s_per_gpu": 5000.0, "step_s": "fast"}
    (tmp_path / "a.json").write_text(json.dumps(record), encoding="utf-8")
    result = knee("report", tmp_path / "a.json", "--title", NASTY, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "plan unknown" in page
    assert "<script>alert" not in page


def test_of_a_sweep_its_records_are_read_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "sweep" / "runs" / "0001"
    (run / "attempts" / "1").mkdir(parents=True)
    record = (Path(__file__).parents[2] / "data/h200/train/llama2-7b-batch2-eager.json").read_text(encoding="utf-8")
    for path in (run / "record.json", run / "attempts" / "1" / "record.json"):
        path.write_text(record, encoding="utf-8")
    (run / "status.json").write_text('{"state": "done"}', encoding="utf-8")
    (tmp_path / "sweep" / "sweep.json").write_text("{}", encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "sweep"), "--json", "-o", str(tmp_path / "p.html")])
    assert result.exit_code == 0, result.output
    assert "note:" not in result.stderr
    assert len(json.loads(result.stdout)["rows"]) == 1
