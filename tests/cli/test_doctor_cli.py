"""``knee doctor``: looks, does not load, and never fails."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from knee.cli import COMMANDS, doctor, main


def test_it_says_what_is_there() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert result.stderr == ""
    for need in doctor.NEEDS:
        assert need.name in result.stdout
    assert "knee simulate" in result.stdout


def test_json() -> None:
    data = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert data.keys() == {"knee", "python", "platform", "needs", "commands"}
    found = {need["name"]: need["found"] for need in data["needs"]}
    assert found["numpy"]
    assert data["commands"]["simulate"] == {"ready": True, "missing": []}


def test_it_knows_every_command() -> None:
    assert doctor.COMMANDS.keys() == COMMANDS.keys()
    assert {name for needs in doctor.COMMANDS.values() for name in needs} <= {need.name for need in doctor.NEEDS}


def test_what_is_missing_comes_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_package", lambda need: None if need.name == "altair" else "1.0")
    text = CliRunner().invoke(main, ["doctor"]).stdout
    line = next(line for line in text.splitlines() if line.split()[:1] == ["altair"])
    assert "not found" in line
    assert "pip install 'knee[report]'" in line


def test_it_loads_nothing_that_it_looks_for() -> None:
    code = "import sys, knee.cli; sys.argv = ['knee', 'doctor']\ntry: knee.cli.main()\nfinally: print(*sys.modules)"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "torch", "altair", "pydantic"} & set(text.splitlines()[-1].split())
