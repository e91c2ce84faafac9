"""``knee compare``: records side by side, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.cli import main

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
    for word in (
        "1 measured",
        "2 simulated",
        "(-50.0%)",
        "MFU",
        "exposed share of the step",
        "power per GPU",
        "unknown",
        "palm FLOP convention",
    ):
        assert word in result.stdout


def test_conventions_are_not_mixed(tmp_path: Path, simulated: Path) -> None:
    run = measured(tmp_path / "run", simulated, flop_convention="6n")
    result = knee("compare", str(simulated), str(run))
    assert result.exit_code == 2
    assert "by the palm convention" in result.stderr
    assert "MFU cannot be compared" in result.stderr
    # a record without an MFU has nothing to mix
    run = measured(tmp_path / "run", simulated, flop_convention="6n", mfu_frac=None)
    assert knee("compare", str(simulated), str(run)).exit_code == 0


def test_other_jobs_and_failed_runs_are_said(tmp_path: Path, simulated: Path) -> None:
    run = measured(tmp_path / "run", simulated, gpus=8, status="oom", error="out of memory")
    result = knee("compare", str(simulated), str(run))
    assert result.exit_code == 0
    assert "gpus differs: 16, 8" in result.stdout
    assert "record 2 oom: out of memory" in result.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not a JSON document"),
        ("[]", "is not a record"),
        ('{"kind": "dreamt"}', "is not a record"),
        ("{}", "nothing that could be compared"),
        ('{"mfu_frac": 0.4, "flop_convention": {}}', "flop_convention is not a name"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, simulated: Path, content: str, words: str) -> None:
    (tmp_path / "bad.json").write_text(content, encoding="utf-8")
    result = knee("compare", str(simulated), str(tmp_path / "bad.json"))
    assert result.exit_code == 2
    assert words in result.stderr
    assert knee("compare", str(simulated)).exit_code == 2
    assert "cannot be read" in knee("compare", str(simulated), str(tmp_path / "none.json")).stderr
