"""Tables on stdout: colour on a terminal, and the same characters everywhere."""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 10_000
"""Width of a file, a pipe, or a table that is asked for whole: no line is folded, no column left out."""
NARROWEST = 30
"""Characters that the last column keeps before a column is left out."""
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
    from rich.text import Text

    _console().print(Text(seen(text), style="bold"))


def print_rows(
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    dim: Sequence[int] = (),
    optional: Sequence[int] = (),
) -> None:
    """Aligned columns; those in ``right`` are numbers, those in ``dim`` are remarks. On a terminal that is too narrow
    those in ``optional`` are left out, the first of them first, and the last column is folded."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    columns, left_out = _fitting(rows, optional, _width() - 2)
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            justify="right" if column in right else "left",
            style="dim" if column in dim else None,
            no_wrap=column != columns[-1],
        )
    for row in rows:
        table.add_row(*(Text(seen(row[column])) for column in columns if column < len(row)))
    console = _console(_width() - 2)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        # rich fills the last column with blanks
        sys.stdout.write(f"  {line}".rstrip() + "\n")
    if left_out:
        names = ", ".join(rows[0][column] for column in sorted(left_out))
        sys.stdout.write(f"  (columns left out: {names}; --wide shows all)\n")


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


def _console(width: int = WIDE) -> Console:
    from rich.console import Console

    write_anywhere()
    return Console(file=sys.stdout, width=max(width, 1), highlight=False, markup=False, emoji=False)
