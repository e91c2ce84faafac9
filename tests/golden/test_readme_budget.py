"""What the README says of budgets is what `knee budget` answers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from knee.budgets.published_budgets import published_runs
from knee.cli import main

pytestmark = pytest.mark.slow

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## Budget\n") : README.index("## Train it for real")]
SHOWN = re.findall(r"^\$ (knee budget [^\n#]*)(?:#.*)?\n((?:(?!\$ |```).*\n)*)", SECTION, re.MULTILINE)


def test_there_are_commands_with_and_without_an_answer() -> None:
    assert [bool(answer) for _, answer in SHOWN] == [True, True, False, False, False]


@pytest.mark.parametrize(("command", "answer"), [pair for pair in SHOWN if pair[1]])
def test_answers_are_as_shown(command: str, answer: str) -> None:
    result = CliRunner().invoke(main, shlex.split(command)[1:])
    assert result.exit_code == 0, result.stderr
    printed = result.stdout.splitlines()
    for line in answer.splitlines():
        assert line == "..." or line in printed


def test_published_runs_are_as_stated() -> None:
    off = [f"{run.error_frac or 0.0:+.1%}" for run in published_runs()]
    said = "come out at {} (Llama-2 7B), {} (13B), {} (70B) and {} (Llama-3 405B), the FLOP of Chinchilla at {};"
    assert said.format(*off) in " ".join(SECTION.split())
