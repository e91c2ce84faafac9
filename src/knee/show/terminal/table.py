"""Tables on stdout: colour on a terminal, and the same characters everywhere."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

from knee.specs.metrics import METRICS

WIDE = 10_000
"""Width of a file, a pipe, or a table that is asked for whole: no line is folded, no column left out."""
NARROWEST = 30
"""Characters that the last column keeps before a column is left out."""
LEAST_ROOM = 10
"""Characters that the last column keeps on any terminal; its lines are then longer than the terminal's."""
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_WORD = re.compile(r"\S++\s*+")
_whole_tables = False


def show_all_columns() -> None:
    """From now on every table has all of its columns, whatever the terminal's width (``--wide``)."""
    global _whole_tables
    _whole_tables = True


def _width() -> int:
    if _whole_tables or not sys.stdout.isatty():
        return WIDE
    from shutil import get_terminal_size  # takes 5 ms to import

    return get_terminal_size().columns


UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal, or turns its text around, or is half of a character."""
ASCII = {"µ": "u", "×": "x", "–": "-", "…": "...", "“": '"', "”": '"'}
"""What knee itself says, for terminals that do not have it."""


def seen(text: str) -> str:
    """Text of a stranger's file, with what a terminal would obey written out."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def _instead(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("knee", _instead)


def write_anywhere() -> None:
    """From now on a terminal without our letters gets others, and no error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="knee")


def print_heading(text: str) -> None:
    """The title of what follows."""
    write_anywhere()
    sys.stdout.write(_styled(seen(text), BOLD) + "\n")


def print_rows(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), dim: Sequence[int] = (), optional: Sequence[int] = ()
) -> None:
    """Aligned columns; those in ``right`` are numbers, those in ``dim`` are remarks. On a terminal that is too narrow
    those in ``optional`` are left out, the first of them first, and the last column is folded."""
    if not rows:
        return
    write_anywhere()
    columns, left_out = _fitting(rows, optional, _width() - 2)
    cells = [[seen(row[column]) if column < len(row) else "" for column in columns] for row in rows]
    widths = [max(map(_cells, column)) for column in zip(*cells, strict=True)]
    room = _width() - 2 - sum(width + 2 for width in widths[:-1])
    widths[-1] = min(widths[-1], max(room, LEAST_ROOM))
    for row in cells:
        for number, end in enumerate(_folded(row[-1], widths[-1])):
            line = [*(row[:-1] if number == 0 else [""] * (len(row) - 1)), end]
            padded = [
                _styled(_padded(text, width, right=column in right), DIM if column in dim else None)
                for text, width, column in zip(line, widths, columns, strict=True)
            ]
            sys.stdout.write(f"  {'  '.join(padded)}".rstrip() + "\n")
    if left_out:
        names = ", ".join(rows[0][column] for column in sorted(left_out))
        sys.stdout.write(f"  (columns left out: {names}; --wide shows all)\n")


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int]) -> None:
    """A heading and, below it, rows under the names of their columns; those in ``right`` are numbers."""
    print_heading(title)
    print_rows([head, *rows], right=right)


def print_columns(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    left: Sequence[str] = (),
    dim: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """A table with named columns. A number under the name of a metric gets that metric's heading and digits; text is
    printed as it is, and a missing value as ``-``. Other columns are named by their headings. Columns are aligned to
    the right, except those in ``left`` and ``dim``; ``dim`` and ``optional`` are those of ``print_rows``."""

    def cell(name: str, value: Any) -> str:
        return value if isinstance(value, str) or name not in METRICS else METRICS[name].cell(value)

    head = [METRICS[name].heading if name in METRICS else name for name in columns]
    cells = [[cell(name, row.get(name, "-")) for name in columns] for row in rows]
    at = {name: number for number, name in enumerate(columns)}
    print_rows(
        [head, *cells],
        right=[number for name, number in at.items() if name not in (*left, *dim)],
        dim=[at[name] for name in dim],
        optional=[at[name] for name in optional],
    )


def _fitting(rows: Sequence[Sequence[str]], optional: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit beside each other, and those that are left out for it."""
    wide = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    wide[-1] = min(wide[-1], NARROWEST)
    columns, left_out = list(range(len(wide))), []
    for column in optional:
        if sum(wide[i] + 2 for i in columns) - 2 <= width:
            break
        columns.remove(column)
        left_out.append(column)
    return columns, left_out


def _cells(text: str) -> int:
    """Columns of a terminal that a text fills: letters of East Asia fill two, accents on other letters none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "FW" else 1 for letter in text)


def _padded(text: str, width: int, *, right: bool) -> str:
    text = text.rstrip()
    blanks = " " * (width - _cells(text))
    return blanks + text if right else text + blanks


def _folded(text: str, width: int) -> list[str]:
    """Lines that are no wider, broken between words, and inside of a word that is wider itself."""
    if _cells(text) <= width:
        return [text]
    lines: list[str] = []
    line, filled = "", 0
    words = _WORD.findall(text)
    if words:
        words[0] = text[: len(text) - len(text.lstrip())] + words[0]
    for part in (part for word in words for part in _parts(word, width)):
        if line and filled + _cells(part.rstrip()) > width:
            lines.append(line.rstrip())
            line, filled = "", 0
        line, filled = line + part, filled + _cells(part)
    return [*lines, line.rstrip()]


def _parts(word: str, width: int) -> Iterator[str]:
    start, filled = 0, 0
    for place, letter in enumerate(word):
        if filled + _cells(letter) > width and place > start:
            yield word[start:place]
            start, filled = place, 0
        filled += _cells(letter)
    yield word[start:]


def _styled(text: str, style: str | None) -> str:
    """Bold or dim on a terminal that can show it; FORCE_COLOR makes a terminal of everything."""
    shown = os.environ.get("FORCE_COLOR") or sys.stdout.isatty()
    if style is None or not text or not shown or os.environ.get("TERM") in ("dumb", "unknown"):
        return text
    return f"{style}{text}{PLAIN}"
