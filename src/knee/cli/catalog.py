"""``knee catalog``: what is known, and from where."""

from __future__ import annotations

import json

import click


@click.command("catalog")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; numbers in base SI units.")
def command(name: str | None, as_json: bool) -> None:
    """Show what knee knows and from where.

    Without NAME: every model, GPU, cluster and software profile, and what `knee budget` rests on: scaling laws, laws of
    the critical batch, families of shapes, training runs. With the NAME of one, or `constants`: every value with the
    kind of its source (vendor, measured, published, fitted, assumed) and the source itself.
    """
    from knee.api.catalog import catalog_entries
    from knee.cli.render.catalog import print_entries, print_values

    known = catalog_entries()
    found = known.named(name) if name is not None else ()
    if as_json:
        answers = [entry.to_dict() for entry in found] or [known.to_dict()]
        click.echo(json.dumps(answers[0] if len(answers) == 1 else answers, indent=2))
    elif name is None:
        print_entries(known)
    else:
        print_values(found)
