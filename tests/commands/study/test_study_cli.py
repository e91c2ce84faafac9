"""``knee study`` as people use it, without the page."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import refusals
from knee.base.errors import InputError, MissingExtra, NotWritten
from knee.commands.main import main
from knee.commands.study.study_file import load_study, study_names
from lanes import nightly
from refusals import ended, kind, numbers

SOURCES = Path(__file__).parents[3] / "src"
LAST_LINE = r"independent claims: (\d+) reproduced, (\d+) failed, (\d+) not testable"
MINE = """\
title = "Mine"
kind = "beyond"
question = "What?"
finding = "It is {speed}."

[[grid]]
series = "TP {tp}"
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
gpus = 2
local_batch = 2
seq_len = 64
plan = { tp = [1, 2, 3] }

[value.speed]
metric = "tokens_per_s"
at = { tp = 1 }

[[claim]]
id = "X1"
says = "TP is slower"
paper = "slower"
test = [{ test = "compares", at = { tp = 2 }, base = { tp = 1 }, has = [{ metric = "tokens_per_s", than = "less" }] }]
"""


def knee(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["study", *map(str, args)])


def run(out: Path, *args: str | Path) -> Result:
    result = knee("run", *args, "--no-page", "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(*args: str | Path) -> InputError:
    return refusals.refused("study", *args)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


# ---- list and show -------------------------------------------------------------------------------------------------


def test_list() -> None:
    result = knee("list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == study_names()
    assert lines[0].split() == ["study", "where", "about", "runs", "claims"]
    assert re.search(r"fig6 +Figure 6.*25 +6$", result.stdout, re.MULTILINE)


def test_list_as_json() -> None:
    data = json.loads(knee("list", "--json").stdout)
    assert [one["name"] for one in data] == study_names()
    fig6 = next(one for one in data if one["name"] == "fig6")
    assert (fig6["kind"], fig6["points"], fig6["claims"][0]) == ("paper", 25, "T36")


def test_show() -> None:
    said = knee("show", "fig12").stdout
    for words in (load_study("fig12").place, "knee study run fig12", "T63", "assumptions:"):
        assert words in said
    data = json.loads(knee("show", "fig12", "--json").stdout)
    assert len(data["points"]) == 9
    assert data["claim"][0]["id"] == "T63"


@pytest.mark.parametrize("name", study_names())
def test_every_study_can_be_shown(name: str) -> None:
    result = knee("show", name)
    assert result.exit_code == 0, result.exception
    assert load_study(name).question in " ".join(result.stdout.split())
    json.loads(knee("show", name, "--json").stdout)


def test_show_a_file_of_one_s_own(mine: Path) -> None:
    assert f"knee study run {mine}" in knee("show", mine).stdout


# ---- run -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_run_some(tmp_path: Path) -> None:
    result = run(tmp_path / "new" / "folder", "table1", "fig2b", "table1")
    out = tmp_path / "new" / "folder"
    written = {path.name for path in out.iterdir()} - {"bandwidths.parquet", "hardware.parquet"}
    assert written == {".kept", "bandwidths.csv", "claims.csv", "fidelity.csv", "hardware.csv", "records"}
    assert [row["study"] for row in rows_of(out / "claims.csv")] == ["table1", "table1", "fig2b", "fig2b"]
    assert result.stdout.index("table1:") < result.stdout.index("fig2b:")


@pytest.mark.slow
def test_the_last_line_counts_the_claims(tmp_path: Path) -> None:
    result = run(tmp_path, "fig12", "table1")
    found = re.fullmatch(LAST_LINE, result.stdout.splitlines()[-1])
    assert found
    claims = rows_of(tmp_path / "claims.csv")
    verdicts = [row["verdict"] for row in claims if row["role"] == "independent"]
    failed = verdicts.count("off") + verdicts.count("contradicted")
    assert [int(n) for n in found.groups()] == [verdicts.count("reproduced"), failed, verdicts.count("not testable")]
    assert "claims:" not in result.stderr


@pytest.mark.slow
def test_every_claim_and_finding_is_on_the_screen(tmp_path: Path) -> None:
    said = run(tmp_path, "fig12").stdout
    assert load_study("fig12").finding.partition("{")[0] in said
    assert re.search(r"T63 +reproduced +independent ", said)
    assert f"  - {load_study('fig12').assumptions[0]}" in said


def test_json_is_one_document(tmp_path: Path) -> None:
    result = run(tmp_path, "fig12", "--json")
    data = json.loads(result.stdout)
    [study] = data["studies"]
    assert (study["name"], len(study["rows"]), study["claims"][0]["id"]) == ("fig12", 9, "T63")
    assert data["tally"] == {"reproduced": 1, "failed": 0, "not_testable": 0}
    assert re.fullmatch(LAST_LINE, result.stderr.splitlines()[-1])
    assert "_bytes" in " ".join(study["rows"][0])


def test_a_second_run_makes_nothing_and_says_the_same(tmp_path: Path) -> None:
    first, second = run(tmp_path, "fig12"), run(tmp_path, "fig12")
    assert [numbers(ran.stderr)[:3] for ran in (first, second)] == [[9, 9, 0], [9, 0, 9]]
    assert first.stdout == second.stdout
    other = run(tmp_path, "fig12", "--json")
    assert json.loads(other.stdout) == json.loads(run(tmp_path / "elsewhere", "fig12", "--json").stdout)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    run(tmp_path, "fig12")
    path = next((tmp_path / "records").iterdir())
    path.write_text(path.read_text()[:100])
    said = run(tmp_path, "fig12").stderr
    assert f"warning: {path} " in said
    assert numbers(said.splitlines()[-1]) == [9, 1, 8]


def test_a_file_of_one_s_own(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./mine.toml", "mine.toml", mine):
        result = run(tmp_path / "out", name)
        assert result.stdout.splitlines()[0] == "mine: Mine"
        assert result.stdout.splitlines()[-1] == "independent claims: 1 reproduced, 0 failed, 0 not testable"
        assert numbers(result.stderr)[-1] == 1  # that cannot be
        assert [row["tp"] for row in rows_of(tmp_path / "out" / "runs.csv")] == ["1", "2"]
    said = json.loads(run(tmp_path / "out", "mine.toml", "--json").stdout)["studies"][0]
    assert [row["tp"] for row in said["impossible"]] == [3]
    assert said["impossible"][0]["why"]


def test_a_file_whose_name_is_odd(tmp_path: Path) -> None:
    path = tmp_path / "mïne ☃ $(x).toml"
    path.write_text(MINE, encoding="utf-8")
    assert run(tmp_path / "oüt", path).stdout.startswith("mïne ☃ $(x): Mine")


def test_two_studies_of_one_name(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "mine.toml"
    other.parent.mkdir()
    other.write_text(MINE.replace("Mine", "Another"), encoding="utf-8")
    assert kind(refused("run", mine, other, "--out", tmp_path / "out")) == ("contradiction", "study")


def test_studies_that_others_need_are_run_and_not_shown(tmp_path: Path) -> None:
    result = run(tmp_path, "fig2b")
    assert "T67" in result.stdout
    assert "T65" not in result.stdout
    assert {row["study"] for row in rows_of(tmp_path / "bandwidths.csv")} == {"fig2b"}


# ---- a changed grid ------------------------------------------------------------------------------------------------


def test_a_changed_grid(tmp_path: Path) -> None:
    result = run(tmp_path, "fig9", "--set", "gpus=8,16", "--set", "model=llama-1b", "--json")
    [study] = json.loads(result.stdout)["studies"]
    assert {row["gpus"] for row in study["rows"]} == {8, 16}
    assert {row["model"] for row in study["rows"]} == {"llama-1b"}
    assert {claim["verdict"] for claim in study["claims"]} == {"not testable"}
    assert re.search(r"independent claims: 0 reproduced, 0 failed, \d+ not testable", result.stderr)


@pytest.mark.parametrize(("sets", "code", "field"), [
    (["gpu=8"], "not-an-override", "gpu"),
    (["gpus"], "not-key-value", "overrides"),
    (["gpus="], "not-key-value", "overrides"),
    (["gpus=x"], "not-a-number", "gpus"),
    (["gpus=8.5"], "not-a-number", "gpus"),
    (["gpus=8,,16"], "not-a-number", "gpus"),
    (["gpus=0"], "out-of-range", "gpus"),
    (["gpus=-8"], "out-of-range", "gpus"),
    (["local_batch=nan"], "out-of-range", "local_batch"),
    (["local_batch=inf"], "out-of-range", "local_batch"),
    (["local_batch=1e-9"], "batch-not-whole", "local_batch"),
    (["seq_len=none"], "not-a-number", "seq_len"),
    (["local_batch=1", "global_batch=8"], "contradiction", "local_batch"),
    (["gpus=8", "gpus=16"], "contradiction", "overrides"),
    (["gpus=" + ",".join(map(str, range(1, 120_000)))], "too-many", None),
    (["gpus=99999999999999999999999999"], "out-of-range", "local_batch"),
    (["local_batch=1e300"], "out-of-range", "local_batch"),
])  # fmt: skip
def test_changes_that_cannot_be(tmp_path: Path, sets: list[str], code: str, field: str | None) -> None:
    options = [word for text in sets for word in ("--set", text)]
    assert kind(refused("run", "fig9", "--out", tmp_path / "out", *options)) == (code, field)
    assert not (tmp_path / "out" / "records").exists()


@pytest.mark.parametrize("text", [
    "seq_len=99999999999999999999", "seq_len=1", "gpus=7", "global_batch=3", "cluster=cpu", "gpus=8,8,8",
])  # fmt: skip
def test_absurd_sizes_are_answered_or_cannot_be(tmp_path: Path, text: str) -> None:
    result = run(tmp_path, "fig9", "--set", text)
    assert re.fullmatch(LAST_LINE, result.stdout.splitlines()[-1])


def test_a_name_that_nothing_has(tmp_path: Path) -> None:
    for text, near in (("model=llama2-7c", "llama2-7b"), ("cluster=dgx-h101", "dgx-h100"), ("profile=papr", "paper")):
        _, error = ended("study", "run", "fig9", "--no-page", "--out", tmp_path, "--set", text)
        assert kind(error) == ("unknown-name", text.partition("=")[0])
        assert near in str(error.hint)


# ---- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "code", "field", "near"), [
    (["runn"], "unknown-command", None, "run"),
    (["fig6"], "unknown-command", None, "fig6"),
    (["run", "fig66"], "unknown-name", "study", "fig6"),
    (["show", "nothing"], "unknown-name", "study", ""),
    (["show"], "missing-argument", "name", ""),
    (["run", "nowhere.toml"], "no-file", None, ""),
    (["run", "--lancher", "local"], "unknown-option", "--lancher", "--launcher"),
    (["run", "--launcher", "slurm"], "unknown-choice", "launcher", ""),
    (["run", "fig9", "--steps", "4"], "out-of-range", "steps", "--launcher"),
    (["run", "fig9", "--steps", "0", "--launcher", "local"], "out-of-range", "steps", ""),
    (["run", "fig9", "--steps", "x"], "not-a-number", "steps", ""),
    (["--json", "list"], "misplaced-option", None, ""),
    (["--out", "x", "run", "fig9"], "misplaced-option", None, ""),
    (["list", "--jsn"], "unknown-option", "--jsn", "--json"),
])  # fmt: skip
def test_what_cannot_be_asked(
    args: list[str], code: str, field: str | None, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(*args)
    assert kind(error) == (code, field)
    assert near in str(error.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_a_file_is_named(mine: Path, tmp_path: Path) -> None:
    mine.write_text(MINE.replace("title", "titel"), encoding="utf-8")
    assert kind(refused("run", mine, "--out", tmp_path / "out")) == ("unknown-field", "titel")


def test_a_file_in_the_way_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        assert refused("run", "table1", "--no-page", "--out", out).code == "not-a-folder"
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        if path.is_relative_to(tmp_path / "out"):  # as for anyone but root
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    _, error = ended("study", "run", "table1", "--no-page", "--out", tmp_path / "out")
    assert isinstance(error, NotWritten)


# ---- measured records ----------------------------------------------------------------------------------------------


@pytest.fixture
def measured(mine: Path, tmp_path: Path) -> Path:
    """A run's folder, whose record is of the second point: faster than any simulation."""
    run(tmp_path / "before", mine)
    records = [json.loads(path.read_text()) for path in (tmp_path / "before" / "records").iterdir()]
    record = next(r for r in records if r.get("plan", {}).get("tp") == 2)
    record |= {"kind": "measured", "status": "done", "step_s": 1e-9, "tokens_per_s": 1e12}
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    left = ("question", "trust", "seal", "key", "made")
    (folder / "record.json").write_text(json.dumps({k: v for k, v in record.items() if k not in left}))
    return folder


@pytest.mark.parametrize("where", [".", "record.json", ".."])
def test_a_measured_record_stands_in(measured: Path, mine: Path, tmp_path: Path, where: str) -> None:
    result = run(tmp_path / "out", mine, "--records", measured / where)
    assert numbers(result.stderr)[-1] == 1  # of them measured
    assert "warning" not in result.stderr
    # one measured run is not held against a simulated one
    assert result.stdout.splitlines()[-1] == "independent claims: 1 reproduced, 0 failed, 0 not testable"
    [claim] = rows_of(tmp_path / "out" / "claims.csv")
    assert (claim["verdict"], claim["kind"]) == ("reproduced", "simulated")
    rows = rows_of(tmp_path / "out" / "runs.csv")
    assert [(row["tp"], row["kind"]) for row in rows] == [("1", "simulated"), ("2", "simulated"), ("2", "measured")]


def test_a_record_of_no_point_is_said(measured: Path, tmp_path: Path) -> None:
    result = run(tmp_path / "out", "fig12", "--records", measured)
    assert result.stderr.count("warning:") == 1
    assert result.stdout.splitlines()[-1].startswith("independent claims: 1 reproduced")


def _change(folder: Path, **values: Any) -> Path:
    path = folder / "record.json"
    record = {k: v for k, v in (json.loads(path.read_text()) | values).items() if v != "gone"}
    path.write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(("change", "code"), [
    ({"kind": "simulated"}, "not-measured"),
    ({"kind": "published"}, "not-measured"),
    ({"kind": "odd"}, "not-a-record"),
    ({"plan": "gone"}, "not-a-record"),
    ({"plan": {"tp": 2}}, "not-a-record"),
    ({"plan": 3}, "not-a-record"),
    ({"gpus": "gone"}, "not-a-record"),
    ({"gpus": 0}, "not-a-record"),
    ({"model": "gone"}, "not-a-record"),
    ({"comm_loads": 3}, "not-a-record"),
])  # fmt: skip
def test_records_that_cannot_be_used(
    measured: Path, mine: Path, tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    assert refused("run", mine, "--out", tmp_path / "out", "--records", _change(measured, **change)).code == code


def test_records_that_are_not_there(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{")
    for name, code in (("nowhere", "no-file"), ("empty", "nothing-usable"), ("bad.json", "not-json")):
        assert refused("run", mine, "--out", tmp_path / "out", "--records", tmp_path / name).code == code


# ---- real runs -----------------------------------------------------------------------------------------------------

CHANGES = ("model=llama-tiny", "cluster=cpu", "profile=eager", "gpus=2", "seq_len=64")
TINY = [word for change in CHANGES for word in ("--set", change)]


def test_real_runs_need_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    _, error = ended("study", "run", "fig1", "--launcher", "local", "--no-page", *TINY)
    assert isinstance(error, MissingExtra)
    assert "pip install" in str(error.hint)


@nightly
@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make test installs it")
def test_points_trained_for_real(tmp_path: Path) -> None:
    """One point of Figure 1 on two processes; then again, which trains nothing."""
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    words = "study run fig1 --launcher local --steps 4 --no-page --json"
    command = [sys.executable, "-m", "knee", *words.split(), *TINY, "--out", str(tmp_path)]
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180) for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr
    [study] = json.loads(first.stdout)["studies"]
    simulated, real = study["rows"]
    assert (simulated["kind"], real["kind"]) == ("simulated", "measured")
    assert real["tokens_per_s"] > 0
    assert real["all_gather_s"] > 0  # read from its traces
    same = ("series", "model", "cluster", "gpus", "global_batch", "seq_len", "plan", "micro_batch", "precision")
    assert all(simulated[name] == real[name] for name in same)
    assert {claim["verdict"] for claim in study["claims"]} == {"not testable"}
    assert json.loads(second.stdout)["studies"] == [study]
    assert len(list(tmp_path.glob("runs/*/run/record.json"))) == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make test installs it")
def test_points_that_are_too_large_for_this_machine(tmp_path: Path) -> None:
    result, error = ended("study", "run", "fig9", "--launcher", "local", "--no-page", "--out", tmp_path)
    assert kind(error) == ("nothing-trainable", "launcher")
    assert len(result.stderr.splitlines()) > 2  # and why points are simulated only
