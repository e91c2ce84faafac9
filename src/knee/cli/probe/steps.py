"""``knee probe steps``: whole training steps of one device against the simulator."""

from __future__ import annotations

from typing import Any

import click

from knee.cli.probe.options import device_options, options


@click.command("steps")
@options
@device_options
def command(as_json: bool, **given: Any) -> None:
    """Measure plain training steps of Llama 1B and 7B on one device, and simulate the same.

    The simulator takes the cluster file (--out) where a probe has written one, and the catalogue's entry otherwise.
    Steps are never fitted on: they say how far the file can be trusted. About five minutes on an H200.
    """
    from knee.api.probe import probe_steps
    from knee.cli.render.probe import listening, print_steps

    with listening() as listener:
        answer = probe_steps(**given, listener=listener)
    print_steps(answer, as_json)
