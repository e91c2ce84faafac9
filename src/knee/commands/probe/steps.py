"""``knee probe steps``: whole training steps of one device against the simulator."""

from __future__ import annotations

from typing import Any

import click

from knee.commands.probe.options import device_options, options


@click.command("steps")
@options
@device_options
def command(as_json: bool, **given: Any) -> None:
    """Measure training steps of Llama 1B and 7B on one device, and simulate the same steps.

    The simulator uses the cluster file (--out) if a probe has written one, else the catalogue's entry. Steps are never
    used for fitting; they show how accurate the cluster file is. The probe takes about five minutes on an H200.
    """
    from knee.commands.probe.api import probe_steps
    from knee.commands.probe.text import listening, print_steps

    with listening() as listener:
        answer = probe_steps(**given, listener=listener)
    print_steps(answer, as_json)
