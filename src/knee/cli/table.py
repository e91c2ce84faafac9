"""Tables on stdout: colour on a terminal, and the same characters everywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 10_000
"""Lines are never folded to the terminal's width: what is printed does not depend on it."""


def print_heading(text: str) -> None:
    """The title of what follows."""
    from rich.text import Text

    _console().print(Text(text, style="bold"))


def print_rows(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), dim: Sequence[int] = ()) -> None:
    """Aligned columns; those in ``right`` are numbers, those in ``dim`` are remarks."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    columns = max(len(row) for row in rows)
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in range(columns):
        table.add_column(justify="right" if column in right else "left", style="dim" if column in dim else None,
                         no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = _console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        # rich fills the last column with blanks
        sys.stdout.write(f"  {line}".rstrip() + "\n")


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, width=WIDE, highlight=False, markup=False, emoji=False)
