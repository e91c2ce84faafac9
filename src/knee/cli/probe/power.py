"""``knee probe power``: the draw of one GPU under several loads."""

from __future__ import annotations

from typing import Any

import click

from knee.cli.probe.options import options


@click.command("power")
@options
@click.option("--anyway", is_flag=True, help="Measure although someone else uses the GPU.")
def command(as_json: bool, **given: Any) -> None:
    """Measure what one NVIDIA GPU draws at rest, under products, copies and attention, and fit its power model.

    Each load runs for about four seconds, read by the board's energy counter: two minutes in all, --quick one. Prints
    how well the model holds, around the power limit and on loads that were left out, and writes the cluster file.
    """
    from knee.api.probe import probe_power
    from knee.cli.render.probe import listening, print_power

    with listening() as listener:
        answer = probe_power(**given, listener=listener)
    print_power(answer, as_json)
