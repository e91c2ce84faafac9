"""Options that name a job: the same words, types and help in every command that takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from knee.cli.options.plan_options import option
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_what = partial(option, section="What")
_output = partial(option, section="Output")


def cluster(text: str = "Cluster: a name of `knee catalog`, or a TOML file.") -> Decorator:
    """``--cluster``."""
    return _what("--cluster", metavar="NAME", help=text)


def gpus(text: str = "GPUs in all.") -> Decorator:
    """``--gpus`` of one job."""
    return _what("--gpus", type=int, metavar="N", help=text)


def local_batch(text: str) -> Decorator:
    """``--local-batch``."""
    return _what("--local-batch", type=float, metavar="B", help=text)


def global_batch(text: str = "Sequences a step over all GPUs.") -> Decorator:
    """``--global-batch``."""
    return _what("--global-batch", type=int, metavar="G", help=text)


def seq_len(text: str = "Tokens a sequence; 4,096 or the model's longest if left out.") -> Decorator:
    """``--seq-len``."""
    return _what("--seq-len", type=int, metavar="S", help=text)


def profile(
    text: str = "Software profile: a name of `knee catalog`, or a TOML file; `eager` if left out.",
) -> Decorator:
    """``--profile``."""
    return _what("--profile", metavar="NAME", help=text)


def sets(text: str) -> Decorator:
    """``--set KEY=VALUE``, as ``sets``."""
    return _what("--set", "sets", multiple=True, metavar="KEY=VALUE", help=text)


def training(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--tokens``, ``--grid`` and ``--pue``: a whole run, and where it is trained."""
    for add in (
        option(
            "--pue",
            section="Training",
            type=float,
            metavar="X",
            help="Power of the site over that of its machines; 1.56, the mean of a survey, if left out.",
        ),
        option(
            "--grid",
            section="Training",
            metavar="NAME",
            default=DEFAULT_GRID,
            show_default=True,
            help="Where the electricity comes from: world, us, eu, france, ..., or grams of CO2e per kWh.",
        ),
        option(
            "--tokens",
            section="Training",
            metavar="T",
            help="Also say what training on so many tokens takes, in days, GPU-hours, dollars, MWh and CO2e: 2T, 300B, "
            "1.4e12.",
        ),
    ):
        function = add(function)
    return function


def flop_convention() -> Decorator:
    """``--flop-convention``."""
    text = "How the model's FLOP are counted for the MFU: palm, 6n, causal or torchtitan."
    return _output("--flop-convention", metavar="NAME", default=DEFAULT_CONVENTION, show_default=True, help=text)


def wide() -> Decorator:
    """``--wide``, which the tables themselves heed."""

    def heed(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001 - click's signature
        if value:
            from knee.cli.render.table import show_all_columns

            show_all_columns()

    text = "All columns of every table, whatever the terminal's width; files and pipes get them anyway."
    return _output("--wide", is_flag=True, expose_value=False, callback=heed, help=text)


def as_json(text: str = "Print JSON; every key carries its unit.") -> Decorator:
    """``--json``, as ``as_json``."""
    return _output("--json", "as_json", is_flag=True, help=text)
