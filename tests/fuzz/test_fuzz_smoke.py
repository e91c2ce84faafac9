"""A few hundred cases of every kind in one process, and the oracle held against endings that must be found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fuzz.kinds import KINDS, arguments
from fuzz.oracle import documented_codes, judge
from fuzz.run import MEMORY_BYTES, STARTED, Outcome, TooLong
from knee.commands.main import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHEAP = "trace-cut,classes,model,huggingface,site,bandwidths,records-compare,sweep-state,shards,text,arguments"


def test_some_cases_of_a_fixed_seed_find_nothing(tmp_path: Path) -> None:
    words = ["--cases", "300", "--jobs", "1", "--kinds", CHEAP, "--out", str(tmp_path / "found")]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *words],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 0: 0 findings" in done.stdout


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_number_and_a_seed_are_one_case(kind: object) -> None:
    cases = [KINDS[[one.name for one in KINDS].index(kind.name)].case(3, number) for number in (5, 5, 6)]  # type: ignore[attr-defined]
    assert cases[0] == cases[1] != cases[2]


def test_every_command_has_a_vector_that_works() -> None:
    assert set(arguments.BASES) == set(arguments.commands())
    assert {0, 2, 3, 4, 5, 130, 143} <= documented_codes()
    assert 1 not in documented_codes()


@pytest.mark.parametrize(
    ("words", "outcome", "verdict"),
    [
        (["catalog"], Outcome(code=1, err="error: x\n"), "code"),
        (["catalog"], Outcome(code=2, err="x\n"), "words"),
        (["catalog"], Outcome(code=2, err="error: x\nerror: y\n"), "words"),
        (["catalog"], Outcome(code=2, err="error: x\nmore\nhint: y\n"), "words"),
        (["catalog"], Outcome(code=0, err="error: x\n"), "words"),
        (["catalog", "--json"], Outcome(code=0, out='{"a": NaN}'), "json"),
        (["catalog", "--json"], Outcome(code=0, out="{} {}"), "json"),
        (["catalog"], Outcome(error=KeyError("x"), trace=""), "crash"),
        (["catalog"], Outcome(error=TooLong("x"), trace=""), "hang"),
        (["catalog"], Outcome(error=MemoryError(), trace=""), "memory"),
        (["catalog"], Outcome(code=0, peak_bytes=2 * MEMORY_BYTES), "memory"),
        (["catalog"], Outcome(code=0, complaints=["RuntimeWarning at a.py:3: overflow"]), "warning"),
        (["sweep"], Outcome(code=0, violations=["os.kill of -1"]), "outside"),
    ],
)
def test_what_must_not_be_is_found(words: list[str], outcome: Outcome, verdict: str) -> None:
    assert [finding.verdict for finding in judge(words, outcome)] == [verdict]


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        (["catalog", "--json"], Outcome(code=0, out='{"a": 1}')),
        (["catalog", "--json"], Outcome(code=2, err="error: x\nhint: y\n")),
        (["simulate"], Outcome(code=2, err="a note\nerror: m.toml has 2 mistakes:\n  a: b\n  c: d\nhint: y\n")),
        (["train"], Outcome(code=STARTED)),
    ],
)
def test_what_may_be_is_not_found(words: list[str], outcome: Outcome) -> None:
    assert judge(words, outcome) == []


def test_an_error_is_one_line_whatever_is_in_it() -> None:
    result = CliRunner().invoke(main, ["catalog", "a\nb\x1b[31m\rc"])
    assert result.exit_code == 2
    assert click.unstyle(result.stderr).count("\n") == 2
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stderr


def test_a_case_is_kept_as_it_was(tmp_path: Path) -> None:
    from fuzz.case import read_case

    case = KINDS[0].case(0, 1)
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case.plain()))
    assert read_case(path) == case
