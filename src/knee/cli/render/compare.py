"""Records side by side, on the screen."""

from __future__ import annotations

import click

from knee.cli.render.table import print_heading, print_rows
from knee.record.side_by_side import shown
from knee.results.compare_result import Comparison


def print_answer(found: Comparison) -> None:
    """What each record is of, every value beside the first record's, and what to know of them."""
    print_heading("records")
    print_rows(
        [
            [
                str(number),
                name,
                kind,
                str(record.get("model") or ""),
                f"{record.get('gpus', '?')} x {record.get('cluster') or 'unknown'}",
                str(record.get("profile") or ""),
            ]
            for number, (name, kind, record) in enumerate(zip(found.names, found.kinds, found.records, strict=True), 1)
        ]
    )
    print_heading("values (in parentheses: difference from the first record)")
    rows = [["", *(f"{number} {kind}" for number, kind in enumerate(found.kinds, start=1))]]
    for one in found.values:
        cells = [
            shown(one.quantity, value) + ("" if share is None else f" ({share:+.1%})")
            for value, share in zip(one.values, (None, *one.difference_frac[1:]), strict=True)
        ]
        rows.append([one.quantity.title, *cells])
    print_rows(rows, right=tuple(range(1, len(found.kinds) + 1)))
    for note in [*(f"MFU uses the {name} FLOP convention" for name in found.flop_conventions), *found.notes]:
        click.echo(f"  - {note}")
