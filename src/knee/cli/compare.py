"""``knee compare``: measured, simulated and published records side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from knee.api.compare import Comparison


@click.command("compare")
@click.argument("records", nargs=-1, type=click.Path(path_type=Path), metavar="A B...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(records: tuple[Path, ...], as_json: bool) -> None:
    """Put records side by side, with each one's difference to the first.

    A record is a file of `knee simulate --json`, the folder of a `knee train` run (or its record.json), or any JSON
    file with the same keys. MFU under different FLOP conventions is refused.

    \b
        knee train llama2-7b --out run
        knee simulate llama2-7b --cluster dgx-h200 --gpus 1 --local-batch 2 --json > simulated.json
        knee compare run simulated.json
    """
    from knee.api.compare import compare

    found = compare(*records)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        _print(found)


def _print(found: Comparison) -> None:
    from knee.cli.render.table import print_heading, print_rows
    from knee.record.side_by_side import shown

    print_heading("records")
    print_rows(
        [
            [
                str(number),
                name,
                record.get("kind", "measured"),
                str(record.get("model") or ""),
                f"{record.get('gpus', '?')} x {record.get('cluster') or 'unknown'}",
                str(record.get("profile") or ""),
            ]
            for number, (name, record) in enumerate(zip(found.names, found.records, strict=True), start=1)
        ]
    )
    print_heading("values (difference to the first)")
    kinds = [f"{number} {record.get('kind', 'measured')}" for number, record in enumerate(found.records, start=1)]
    rows = [["", *kinds]]
    for one in found.values:
        cells = [shown(one.quantity, one.values[0])]
        for value, share in zip(one.values[1:], one.difference_frac[1:], strict=True):
            cells.append(shown(one.quantity, value) + ("" if share is None else f" ({share:+.1%})"))
        rows.append([one.quantity.title, *cells])
    print_rows(rows, right=tuple(range(1, len(kinds) + 1)))
    conventions = {str(record.get("flop_convention")) for record in found.records if record.get("mfu_frac") is not None}
    for note in [*(f"MFU by the {name} FLOP convention" for name in conventions), *found.notes]:
        click.echo(f"  - {note}")
