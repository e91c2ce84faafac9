"""``knee probe kernels``: the compute of one device."""

from __future__ import annotations

from typing import Any

import click

from knee.commands.probe.options import device_options, options


@click.command("kernels")
@options
@device_options
def command(as_json: bool, **given: Any) -> None:
    """Measure matrix products, attention and memory-bound kernels of one device, and fit its compute model.

    The output shows the error of the fit, also on shapes that were held out. The result is written to the cluster
    file. The full grid takes about eight minutes on an H200; --quick takes one or two.
    """
    from knee.commands.probe.api import probe_kernels
    from knee.commands.probe.text import listening, print_kernels

    with listening() as listener:
        answer = probe_kernels(**given, listener=listener)
    print_kernels(answer, as_json)
