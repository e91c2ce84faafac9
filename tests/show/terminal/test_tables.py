"""Tables on the screen: aligned, folded to a terminal's width, decorated only there."""

from __future__ import annotations

import io
import sys

import pytest

from knee.show.terminal.table import print_heading, print_rows

REMARK = "ranks wait for the last one at every collective between nodes"


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def screen_of(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """From now on stdout is a terminal; not a fixture, because pytest takes stdout back after those."""
    made = Screen()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return made


def test_columns_are_aligned_and_lines_have_no_blanks_at_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([["tokens/s", "12", "per step"], ["b", "3,456"], ["", "", ""]], right=(1,))
    assert capsys.readouterr().out == "  tokens/s     12  per step\n  b         3,456\n\n"


def test_letters_that_fill_two_places_count_as_two(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([["核心", "a"], ["e\u0301tape", "b"], ["µs", "c"]])
    assert capsys.readouterr().out == "  核心   a\n  e\u0301tape  b\n  µs     c\n"


def test_the_last_column_is_folded_and_keeps_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    print_rows([["skew", REMARK], ["file", "x" * 50]])
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert all(line.startswith("        ") for line in lines if not line.startswith(("  skew", "  file")))
    assert "".join(screen.getvalue().split()) == "".join(f"skew{REMARK}file{'x' * 50}".split())


def test_optional_columns_are_left_out_of_a_narrow_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", "50")
    print_rows([["plan", "energy", "remark"], ["y" * 20, "z" * 20, REMARK]], optional=(1,))
    text = screen.getvalue()
    assert "z" not in text
    assert text.endswith("  (columns left out: energy; --wide shows all)\n")


def test_only_a_terminal_gets_bold_and_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(monkeypatch)
    print_heading("time")
    print_rows([["step", "remark"]], dim=(1,))
    assert screen.getvalue() == "\x1b[1mtime\x1b[0m\n  step  \x1b[2mremark\x1b[0m\n"
    monkeypatch.setenv("TERM", "dumb")
    print_heading("memory")
    assert screen.getvalue().endswith("\nmemory\n")


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_heading("time")
    print_rows([["step", "remark"]], dim=(1,))
    assert capsys.readouterr().out == "time\n  step  remark\n"
