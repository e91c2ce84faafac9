"""The options that the probes share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from knee.cli.options.sections import Word
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
                help="The cluster file; readings go beside it.",
            ),
            click.option(
                "--base",
                metavar="NAME",
                help="Catalogue cluster that says what was not measured; by default the one with this GPU.",
            ),
            click.option("--quick", is_flag=True, help="A fraction of the points: a first look in about a minute."),
            click.option("--fresh", is_flag=True, help="Measure anew instead of going on with earlier readings."),
            click.option(
                "--replay",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Take the readings from a file instead of this machine.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        )
    ):
        function = option(function)
    return function


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of probes that measure one device."""
    device = click.option("--device", type=Word(DEVICES), help="What to measure; the GPU where there is one.")
    return device(click.option("--anyway", is_flag=True, help="Measure although someone else uses the GPU.")(function))
