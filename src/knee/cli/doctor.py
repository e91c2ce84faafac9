"""``knee doctor``: what this machine has and what works on it."""

from __future__ import annotations

import json

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Say what this machine has, what works on it, and how to get what is missing.

    Reads GPUs, driver, network and versions where they can be read, and imports neither torch nor any other large
    package. Always exits with 0.
    """
    from knee.api.doctor import doctor
    from knee.cli.render.doctor import print_doctor

    answer = doctor()
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2))
    else:
        print_doctor(answer)
