"""``knee report``: a page of one's own records, and what is no record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.base.errors import ExitCode, Incomplete
from knee.commands.main import main
from knee.commands.report.api import read_records
from refusals import caught, ended, kind, numbers, refused

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


@pytest.mark.slow
def test_a_folder_becomes_a_page(tmp_path: Path, folder: Path, simulated: dict[int, dict[str, Any]]) -> None:
    pytest.importorskip("vl_convert")
    out = tmp_path / "page.html"
    result = knee("report", folder, "-o", out, "--title", "Our <cluster>")
    assert result.exit_code == 0, result.stderr
    (note,) = read_records(folder).notes  # a run's folder is its record, and its job.json is none of the notes
    assert note.code == "not-a-record"
    page = out.read_text(encoding="utf-8")
    assert "<h1>Our &lt;cluster&gt;</h1>" in page
    lead = page.split("</h1>")[1]
    assert numbers(re.sub(r"<[^>]+>", " ", lead))[:3] == [2, 2, 8]
    assert "25.0% in the median of 2, by +25.0%" in lead
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
    assert str(folder / "notes.json") in page
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
    (note,) = read_records(path, simulate=True).notes
    assert (note.code, note.startswith(f"{path}, record 2 ")) == ("unknown-name", True)
    assert {row["cluster"] for row in rows} == {"dgx-h100", "my-cluster"}


@pytest.mark.slow
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
    assert kind(refused("report", folder, "--by", "colour", "-o", tmp_path / "x.html")) == ("unknown-choice", "by")


def test_mfu_of_two_conventions_is_not_drawn(tmp_path: Path, simulated: dict[int, dict[str, Any]]) -> None:
    pytest.importorskip("vl_convert")
    both = [simulated[8], simulated[16] | {"flop_convention": "6n"}]
    (tmp_path / "a.json").write_text(json.dumps(both), encoding="utf-8")
    result = knee("report", tmp_path / "a.json", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h3>MFU</h3>" not in page
    assert "<h3>Memory per GPU</h3>" in page


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        ("", "empty", ""),
        ("not json", "not-json", "line 1"),
        ("3", "not-a-record", ""),
        ('{"kind": "guessed", "step_s": 1}', "not-a-record", "'guessed'"),
        ('{"step_s": 1, "gpus": "many"}', "not-a-record", "'many'"),
        ('{"step_s": NaN, "gpus": 8}', "not-a-record", ""),
        ('{"kind": "simulated", "impossible": "3 does not divide 32"}', "not-a-record", "3 does not divide 32"),
    ],
)
def test_what_is_no_record_is_an_error_with_its_reason(tmp_path: Path, content: str, code: str, names: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    error = refused("report", tmp_path / "a.json")
    assert kind(error) == (code, "records")
    assert names in error.message


def test_nothing_given_and_nothing_there(tmp_path: Path) -> None:
    assert kind(refused("report")) == ("missing-argument", "records")
    assert kind(refused("report", tmp_path / "none")) == ("no-file", "records")
    assert kind(refused("report", tmp_path)) == ("nothing-usable", "records")
    (tmp_path / "loop").symlink_to("loop")
    assert kind(refused("report", tmp_path / "loop")) == ("unreadable", "records")


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty"), (b'{"kind": "meas', "not-json"), (b'{"model": "\xff"}', "not-utf8")]
)
def test_a_damaged_file_beside_records_is_answered_in_part(folder: Path, content: bytes, code: str) -> None:
    (folder / "run8" / "record.json").write_bytes(content)
    result, error = ended("report", folder, "--json")
    assert (error.exit_code, error.code) == (ExitCode.IN_PART, code)
    assert len(json.loads(result.stdout)["rows"]) == 3
    answer = read_records(folder)
    (unread,) = answer.unread
    assert unread in answer.notes
    assert isinstance(caught(answer.check_whole), Incomplete)


@pytest.mark.slow
def test_a_page_is_written_before_an_answer_in_part_ends(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("vl_convert")
    (folder / "run8" / "record.json").write_bytes(b"{")
    assert ended("report", folder, "-o", tmp_path / "page.html")[1].exit_code == ExitCode.IN_PART
    assert (tmp_path / "page.html").exists()


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
    record = (Path(__file__).parents[3] / "data/h200/train/llama2-7b-batch2-eager.json").read_text(encoding="utf-8")
    for path in (run / "record.json", run / "attempts" / "1" / "record.json"):
        path.write_text(record, encoding="utf-8")
    (run / "status.json").write_text('{"state": "done"}', encoding="utf-8")
    (tmp_path / "sweep" / "sweep.json").write_text("{}", encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "sweep"), "--json", "-o", str(tmp_path / "p.html")])
    assert result.exit_code == 0, result.output
    assert "note:" not in result.stderr
    assert len(json.loads(result.stdout)["rows"]) == 1
