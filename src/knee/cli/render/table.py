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
"""Lines are never folded to the terminal's width: what is printed does not depend on it."""


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


def print_rows(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), dim: Sequence[int] = ()) -> None:
    """Aligned columns; those in ``right`` are numbers, those in ``dim`` are remarks."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    columns = max(len(row) for row in rows)
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in range(columns):
        table.add_column(
            justify="right" if column in right else "left", style="dim" if column in dim else None, no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(seen(cell)) for cell in row))
    console = _console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        # rich fills the last column with blanks
        sys.stdout.write(f"  {line}".rstrip() + "\n")


def _console() -> Console:
    from rich.console import Console

    write_anywhere()
    return Console(file=sys.stdout, width=WIDE, highlight=False, markup=False, emoji=False)
