"""``knee catalog``: what is known, and from where."""

from __future__ import annotations

import json

import click

from knee.base.errors import InputError
from knee.commands.options.sections import as_json, option

FILE_KINDS = ("cluster", "gpu", "model", "profile", "study", "site")


@click.command("catalog")
@click.argument("name", required=False)
@as_json("Print JSON with numbers in base SI units.")
@option("--toml as_toml", bool, "Print NAME as a complete TOML file that knee can load.")
@option("--schema", click.Choice(FILE_KINDS), "Print the JSON Schema of this kind of file, for completion in editors.")
def command(name: str | None, as_json: bool, as_toml: bool, schema: str | None) -> None:
    """List what knee knows, with the source of every value.

    Without NAME, the list contains every model, GPU, cluster and software profile, and the data of `knee budget`:
    scaling laws, critical-batch laws, model families and training runs. With NAME, or with `constants`, it shows every
    value with its source and the kind of source (vendor, measured, published, fitted, assumed). NAME may also be the
    path of your own file; knee then also shows the values that the file leaves out and where they come from.
    """
    from knee.commands.catalog.api import catalog_entries, catalog_entry, catalog_schema
    from knee.commands.catalog.text import print_entries, print_values

    if schema is not None:
        if name is not None:
            hint = f"knee catalog --schema {schema}"
            raise InputError("--schema takes no NAME", hint=hint, code="contradiction", field="name")
        click.echo(json.dumps(catalog_schema(schema), indent=2))
        return
    if as_toml:
        if name is None or as_json:
            text = "--toml and --json exclude each other" if as_json else "--toml needs a NAME"
            code = "contradiction" if as_json else "missing-argument"
            raise InputError(text, hint="knee catalog dgx-h100 --toml", code=code, field="toml")
        click.echo(catalog_entry(name).to_toml(), nl=False)
        return
    known = catalog_entries()
    found = known.named(name) if name is not None else ()
    if as_json:
        answers = [entry.to_dict() for entry in found] or [known.to_dict()]
        click.echo(json.dumps(answers[0] if len(answers) == 1 else answers, indent=2))
    elif name is None:
        print_entries(known)
    else:
        print_values(found)
