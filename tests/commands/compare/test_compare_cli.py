"""``knee compare``: records side by side, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.commands.compare.api import compare
from knee.commands.main import main
from knee.specs.notes import code_of
from refusals import kind, refused

ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "16", "--profile", "paper", "--local-batch", "2")


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "simulated.json"
    path.write_text(knee(*ASK, "--json").stdout, encoding="utf-8")
    return path


def measured(folder: Path, simulated: Path, **changes: Any) -> Path:
    """A run that was twice as fast as the simulation."""
    record = json.loads(simulated.read_text(encoding="utf-8"))
    record |= {
        "kind": "measured",
        "status": "done",
        "tokens_per_s": 2 * record["tokens_per_s"],
        "memory_bytes": None,
        "step_s": record["step_s"] / 2,
        **changes,
    }
    folder.mkdir(exist_ok=True)
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_differences_are_to_the_first(tmp_path: Path, simulated: Path) -> None:
    run = measured(tmp_path / "run", simulated)
    result = knee("compare", str(run), str(simulated), "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    rows = {row["name"]: row for row in data["rows"]}
    assert rows["tokens/s"]["difference_frac"] == [0.0, -0.5]
    assert rows["step time"]["difference_frac"][1] == pytest.approx(1.0)
    assert rows["memory per GPU"]["values"][0] is None
    assert rows["memory per GPU"]["difference_frac"] == [None, None]
    assert [record["kind"] for record in data["records"]] == ["measured", "simulated"]
    assert data["notes"] == []


def test_the_table_has_every_quantity(tmp_path: Path, simulated: Path) -> None:
    result = knee("compare", str(measured(tmp_path / "run", simulated)), str(simulated))
    assert result.exit_code == 0, result.stderr
    for word in ("measured", "simulated", "(-50.0%)", "MFU", "unknown", "palm"):
        assert word in result.stdout


def test_conventions_are_not_mixed(tmp_path: Path, simulated: Path) -> None:
    run = measured(tmp_path / "run", simulated, flop_convention="6n")
    assert kind(refused("compare", simulated, run)) == ("mixed-flop-conventions", "flop_convention")
    # a record without an MFU has nothing to mix
    run = measured(tmp_path / "run", simulated, flop_convention="6n", mfu_frac=None)
    assert knee("compare", str(simulated), str(run)).exit_code == 0


def test_other_jobs_and_failed_runs_are_said(tmp_path: Path, simulated: Path) -> None:
    run = measured(tmp_path / "run", simulated, gpus=8, status="oom", error="out of memory")
    both = compare(simulated, run)
    assert [code_of(note) for note in both.notes] == ["differs", "not-done"]
    shown = knee("compare", str(simulated), str(run)).stdout
    assert all(note in shown for note in both.notes)


@pytest.mark.parametrize(
    ("content", "code", "field"),
    [
        ("{", "not-json", None),
        ("[]", "not-a-record", None),
        ('{"kind": "dreamt"}', "not-a-record", None),
        ("{}", "not-a-record", None),
        ('{"mfu_frac": 0.4, "flop_convention": {}}', "not-a-record", "flop_convention"),
    ],
)
def test_what_is_no_record_is_refused(
    tmp_path: Path, simulated: Path, content: str, code: str, field: str | None
) -> None:
    (tmp_path / "bad.json").write_text(content, encoding="utf-8")
    assert kind(refused("compare", simulated, tmp_path / "bad.json")) == (code, field)


def test_records_that_are_missing(tmp_path: Path, simulated: Path) -> None:
    assert kind(refused("compare", simulated)) == ("missing-argument", "records")
    assert refused("compare", simulated, tmp_path / "none.json").code == "no-file"
