"""``knee tune`` as people type it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_tune import PROGRAM  # type: ignore[import-not-found]

from knee.commands.main import main

JOB = ("tune", "llama-tiny", "--cluster", "cpu", "--gpus", "4", "--global-batch", "16", "--seq-len", "128")
SMALL = ("--steps", "6", "--trace-steps", "0", "--only", "cp == 1 and tp == 1 and pp == 1 and recompute == 'none'")


@pytest.mark.slow
def test_the_answer_and_its_status(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = ("--program", f"{sys.executable} {tmp_path / 'program.py'}", "--out", str(tmp_path / "tuned"))
    page = tmp_path / "page.html"
    found = CliRunner().invoke(main, [*JOB, *SMALL, *out, "--within", "5%", "--knobs", "none", "--html", str(page)])
    assert found.exit_code == 0, found.stderr
    assert "with 90% probability no untried candidate is faster by more" in found.stdout
    assert "best so far 975 tokens/s per GPU" in found.stderr
    assert page.exists()
    status = CliRunner().invoke(main, ["tune", "status", str(tmp_path / "tuned"), "--json"])
    plain = json.loads(status.stdout)
    assert (plain["why"], plain["within_frac"]) == ("within", 0.05)
    assert plain["best_tokens_per_s_per_gpu"] == pytest.approx(975.0)


def test_a_program_that_only_fails_ends_it(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, [*JOB, *SMALL, "--program", "false", "--out", str(tmp_path / "tuned")])
    assert found.exit_code == 7
    assert "none of the 3 runs completed" in found.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "llama-tiny"), "--out is missing"),
        (("tune", "--replay", "published", "--gpus", "4"), "--gpus cannot be used with it"),
        (("tune", "llama-tiny", "--replay", "published"), "JOB cannot be used with it"),
        (("tune", "--replay", "published", "--max-runs", "3"), "--max-runs cannot be used with it"),
        ((*JOB, "--out", "x", "--least-plans", "4"), "applies only to --replay"),
        ((*JOB, "--out", ""), "--out '' is empty"),
        ((*JOB, "--out", "x", "--steps", "0"), "--steps is 0; it must be at least 1"),
        ((*JOB, "--out", "x", "--knobs", "none,compile"), "'none' is not one of"),
        ((*JOB, "--out", "x", "--within", "abc"), "is not a share"),
        ((*JOB, "--out", "x", "--knobs", "foo"), "'foo' is not one of"),
        (("tune", "status", "/"), "it is not the folder of `knee tune`"),
    ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2
    assert said in found.stderr
    assert "Traceback" not in found.stderr
