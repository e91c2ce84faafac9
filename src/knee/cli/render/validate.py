"""What ``knee validate`` prints of either kind of file: tables of errors, and counted sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from knee.cli.render.table import print_heading, print_rows

if TYPE_CHECKING:
    from knee.hardware_fit.residuals import Residuals

SHOWN = 12
"""Reasons and assumptions that are printed; JSON has all."""
MOST_NAMED = 40
"""Sources, or the like, that a table has; JSON has all."""
ALL = "all rows"


def print_table(title: str, cells: Sequence[Sequence[str]], right: Sequence[int] | None = None) -> None:
    """Nothing where there is a header only; numbers are in all columns but the first if ``right`` does not say."""
    if len(cells) < 2:
        return
    names = cells[1:-1] if cells[-1][0] == ALL else cells[1:]
    left = len(names) - MOST_NAMED
    if left > 0:
        cells = [cells[0], *names[:MOST_NAMED], *cells[1 + len(names) :]]
    print_heading(title)
    print_rows(cells, right=range(1, len(cells[0])) if right is None else right)
    if left > 0:
        click.echo(f"  and {left:,} more; --json lists all")


def print_errors(title: str, residuals: Mapping[str, Residuals | None], *, of: str, counted: str) -> None:
    """Median, p90 and bias of each; ``of`` heads the names, ``counted`` their number."""
    cells = [[of, counted, "median", "p90", "signed median"]]
    cells += [
        [name, f"{r.points:,}", f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{r.bias_frac:+.1%}"]
        for name, r in residuals.items()
        if r is not None
    ]
    print_table(title, cells)


def print_skipped(skipped: Mapping[str, Mapping[str, int]]) -> None:
    """Of each source; reasons of one kind are one."""
    from knee.validation.skipped_rows import by_kind

    print_counts(
        "skipped",
        {f"{name}: {reason}": rows for name, reasons in skipped.items() for reason, rows in by_kind(reasons).items()},
    )


def print_counts(title: str, counts: Mapping[str, int]) -> None:
    """The sentences that most rows have."""
    if not counts:
        return
    print_heading(f"{title}:")
    for sentence, rows in sorted(counts.items(), key=lambda item: -item[1])[:SHOWN]:
        click.echo(f"  - {rows:,} row{'s' if rows > 1 else ''}: {sentence}")
    if len(counts) > SHOWN:
        click.echo(f"  - and {len(counts) - SHOWN:,} more; --json lists all, --rows lists them by row")
