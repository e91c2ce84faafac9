"""The options that the probes share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from knee.commands.options.sections import Word
from knee.specs.choices import DEVICES
from knee.specs.defaults import CLUSTER_FILE


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every probe."""
    for option in reversed(
        (
            click.option(
                "--out",
                type=click.Path(dir_okay=False, path_type=Path),
                default=CLUSTER_FILE,
                show_default=True,
                help="Cluster file to write; the readings are saved next to it.",
            ),
            click.option(
                "--base",
                metavar="NAME",
                help="Cluster that provides the values that are not measured: a name from `knee catalog`, or the path "
                "of a TOML file; default: the catalogue's cluster with this GPU.",
            ),
            click.option(
                "--quick",
                is_flag=True,
                help="Measure only a fraction of the points, for a first look in about a minute.",
            ),
            click.option("--fresh", is_flag=True, help="Discard earlier readings and measure everything again."),
            click.option(
                "--replay",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Read the readings from a file instead of measuring this machine.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        )
    ):
        function = option(function)
    return function


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of probes that measure one device."""
    device = click.option("--device", type=Word(DEVICES), help="Device to measure; default: the GPU if there is one.")
    return device(
        click.option("--anyway", is_flag=True, help="Measure even if another process uses the GPU.")(function)
    )
