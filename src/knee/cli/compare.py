"""``knee compare``: measured, simulated and published records side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from knee.errors import InputError


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
    from knee.fidelity.side_by_side import compared, differences, read_record, refuse_mixed, shown

    if len(records) < 2:
        raise InputError("two or more records are compared", hint="`knee compare run simulated.json`")
    names = [str(path) for path in records]
    found = [read_record(path) for path in records]
    refuse_mixed(names, found)
    table, notes = compared(found), differences(found)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "records": [_head(name, record) for name, record in zip(names, found, strict=True)],
                    "rows": [
                        {
                            "name": row.title,
                            "key": row.key,
                            "share_of": row.over,
                            "values": values,
                            "difference_frac": apart,
                        }
                        for row, values, apart in table
                    ],
                    "notes": notes,
                },
                indent=2,
                allow_nan=False,
            )
        )
        return
    from knee.cli.table import print_heading, print_rows

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
            for number, (name, record) in enumerate(zip(names, found, strict=True), start=1)
        ]
    )
    print_heading("values (difference to the first)")
    rows = [["", *(f"{number} {record.get('kind', 'measured')}" for number, record in enumerate(found, start=1))]]
    for row, values, apart in table:
        cells = [shown(row, values[0])]
        for value, share in zip(values[1:], apart[1:], strict=True):
            cells.append(shown(row, value) + ("" if share is None else f" ({share:+.1%})"))
        rows.append([row.title, *cells])
    print_rows(rows, right=tuple(range(1, len(found) + 1)))
    conventions = {str(record.get("flop_convention")) for record in found if record.get("mfu_frac") is not None}
    for note in [*(f"MFU by the {name} FLOP convention" for name in conventions), *notes]:
        click.echo(f"  - {note}")


def _head(name: str, record: dict[str, Any]) -> dict[str, Any]:
    keys = ("kind", "model", "cluster", "profile", "gpus", "global_batch", "seq_len", "flop_convention", "status")
    return {"record": name} | {key: _plain(record.get(key)) for key in keys}


def _plain(value: Any) -> Any:
    """As the record has it, where JSON does; what it says of anything else."""
    return value if isinstance(value, (str, bool, int, type(None))) else str(value)
