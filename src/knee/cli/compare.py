"""``knee compare``: measured, simulated and published records side by side."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("compare")
@click.argument("records", nargs=-1, type=click.Path(path_type=Path), metavar="A B...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(records: tuple[Path, ...], as_json: bool) -> None:
    """Compare records side by side, with the difference of each to the first.

    A record is a file from `knee simulate --json`, the folder of a `knee train` run (or its record.json), or any JSON
    file with the same keys. knee refuses to compare MFU values that use different FLOP conventions.

    \b
        knee train llama2-7b --out run
        knee simulate llama2-7b --cluster dgx-h200 --gpus 1 --local-batch 2 --json > simulated.json
        knee compare run simulated.json
    """
    from knee.api.compare import compare
    from knee.cli.render.compare import print_answer

    found = compare(*records)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        print_answer(found)
