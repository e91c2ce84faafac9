"""``knee probe kernels``: the compute of one device."""

from __future__ import annotations

from typing import Any

import click

from knee.cli.probe.options import device_options, options


@click.command("kernels")
@options
@device_options
def command(as_json: bool, **given: Any) -> None:
    """Measure products, attention and memory-bound kernels of one device, and fit its compute model.

    Prints how well the fit holds, also on shapes that were left out of it, and writes the cluster file. A full grid
    takes about eight minutes on an H200, --quick one or two.
    """
    from knee.api.probe import probe_kernels
    from knee.cli.render.probe import listening, print_kernels

    with listening() as listener:
        answer = probe_kernels(**given, listener=listener)
    print_kernels(answer, as_json)
