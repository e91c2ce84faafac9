"""``knee doctor``: what this machine has and what works on it."""

from __future__ import annotations

import json

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Show what this machine has, which commands work on it, and how to install what is missing.

    knee reads the GPUs, driver, network and versions if possible, without importing torch or other large packages.
    The exit code is always 0.
    """
    from knee.api.doctor import doctor
    from knee.cli.render.doctor import print_doctor

    answer = doctor()
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2))
    else:
        print_doctor(answer)
