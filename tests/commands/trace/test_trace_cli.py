"""What a stranger's trace says reaches the terminal as text, and bad options end in words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from knee.commands.main import main
from knee.show.terminal.table import seen
from trace_made import document, event, write


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    names = ["gemm\ud800x", "gemm\x1b]0;owned\x07\x1b[2J\nFAKE", "odd\x9b31m\u202etxt"]
    events = [event(100 * i, 50, name=name, stream=7 + i) for i, name in enumerate(names)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [e | {"ts": i, "dur": 1} for i, e in enumerate(events)]}))
    ran = CliRunner().invoke(main, ["trace", str(path), "--no-cache"])
    assert ran.exit_code == 0, ran.output
    assert not set(ran.stdout) & set("\x1b\x07\x9b\u202e")
    assert "FAKE" not in [line.strip() for line in ran.stdout.splitlines()]
    pytest.importorskip("duckdb")
    ran = CliRunner().invoke(main, ["trace", str(path), "--no-cache", "--sql", "select name from kernels"])
    assert ran.exit_code == 0
    assert "\x1b" not in ran.stdout


def test_what_cannot_be_seen_is_written_out() -> None:
    assert seen("a\x1b[1m\t\x7f\ud800 µ…核") == "a\\x1b[1m\\t\\x7f\\ud800 µ…核"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "every kernel name"),
        (".*", "every kernel name"),
        ("(", "not a regular expression"),
        ("(a)\\1+", "not a regular expression"),
        ("a{1000}{1000}", "not a regular expression"),
    ],
)
def test_patterns_that_mean_nothing(tmp_path: Path, pattern: str, said: str) -> None:
    path = write(tmp_path / "t.json", document([event(0, 10)]))
    ran = CliRunner().invoke(main, ["trace", str(path), "--comm-pattern", pattern])
    assert ran.exit_code == 2
    assert said in ran.stderr


def test_patterns_with_repeats_need_an_engine_that_does_not_backtrack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.json", document([event(0, 10, name="nccl" * 1000)]))
    assert CliRunner().invoke(main, ["trace", str(path), "--comm-pattern", "(n.*c.*)+l.*x"]).exit_code == 0
    monkeypatch.setitem(sys.modules, "re2", None)
    assert CliRunner().invoke(main, ["trace", str(path), "--comm-pattern", "n.*x"]).exit_code == 4
    assert CliRunner().invoke(main, ["trace", str(path), "--comm-pattern", "plain"]).exit_code == 0
