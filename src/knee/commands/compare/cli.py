"""``knee compare``: measured, simulated and published records side by side."""

from __future__ import annotations

from pathlib import Path

import click

from knee.commands.compare.api import Comparison
from knee.commands.options.output import print_result
from knee.commands.options.sections import as_json
from knee.show.terminal.table import print_heading, print_rows


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
            one.quantity.metric.text(value) + ("" if share is None else f" ({share:+.1%})")
            for value, share in zip(one.values, (None, *one.difference_frac[1:]), strict=True)
        ]
        rows.append([one.quantity.title, *cells])
    print_rows(rows, right=tuple(range(1, len(found.kinds) + 1)))
    for note in [*(f"MFU uses the {name} FLOP convention" for name in found.flop_conventions), *found.notes]:
        click.echo(f"  - {note}")


@click.command("compare")
@click.argument("records", nargs=-1, type=click.Path(path_type=Path), metavar="A B...")
@as_json("Print JSON.")
def command(records: tuple[Path, ...], as_json: bool) -> None:
    """Compare records side by side, with the difference of each to the first.

    A record is a file from `knee simulate --json`, the folder of a `knee train` run (or its record.json), or any JSON
    file with the same keys. knee refuses to compare MFU values that use different FLOP conventions.

    \b
        knee train llama2-7b --out run
        knee simulate llama2-7b --cluster dgx-h200 --gpus 1 --local-batch 2 --json > simulated.json
        knee compare run simulated.json
    """
    from knee.commands.compare.api import compare

    print_result(compare(*records), as_json, print_answer)
