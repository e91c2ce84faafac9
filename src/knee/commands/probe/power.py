"""``knee probe power``: the draw of one GPU under several loads."""

from __future__ import annotations

from typing import Any

import click

from knee.commands.probe.options import options


@click.command("power")
@options
@click.option("--anyway", is_flag=True, help="Measure even if another process uses the GPU.")
def command(as_json: bool, **given: Any) -> None:
    """Measure the power of one NVIDIA GPU when idle and during matrix products, copies and attention, and fit its
    power model.

    Each load runs for about four seconds, and the GPU's energy counter is read. The probe takes two minutes, or one
    with --quick. The output shows the error of the power model near the power limit and on loads that were held out.
    The result is written to the cluster file.
    """
    from knee.commands.probe.api import probe_power
    from knee.commands.probe.text import listening, print_power

    with listening() as listener:
        answer = probe_power(**given, listener=listener)
    print_power(answer, as_json)
