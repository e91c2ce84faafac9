"""Options that name a job: the same words, types and help in every command that takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from knee.commands.options.plan_options import option
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_what = partial(option, section="Job")
_output = partial(option, section="Output")


def cluster(text: str = "Cluster: a name from `knee catalog`, or the path of a TOML file.") -> Decorator:
    """``--cluster``."""
    return _what("--cluster", metavar="NAME", help=text)


def gpus(text: str = "Total number of GPUs.") -> Decorator:
    """``--gpus`` of one job."""
    return _what("--gpus", type=int, metavar="N", help=text)


def local_batch(text: str) -> Decorator:
    """``--local-batch``."""
    return _what("--local-batch", type=float, metavar="B", help=text)


def global_batch(text: str = "Sequences per step over all GPUs.") -> Decorator:
    """``--global-batch``."""
    return _what("--global-batch", type=int, metavar="G", help=text)


def seq_len(text: str = "Tokens per sequence; default: 4,096, or the model's maximum if that is smaller.") -> Decorator:
    """``--seq-len``."""
    return _what("--seq-len", type=int, metavar="S", help=text)


def profile(
    text: str = "Software profile: a name from `knee catalog`, or the path of a TOML file; default: `eager`.",
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
            section="Whole training run",
            type=float,
            metavar="X",
            help="Power usage effectiveness (PUE): power of the whole site divided by power of its machines; default: "
            "1.56, a survey mean.",
        ),
        option(
            "--grid",
            section="Whole training run",
            metavar="NAME",
            default=DEFAULT_GRID,
            show_default=True,
            help="Carbon intensity of the electricity: a region (world, us, eu, france, ...) or grams of CO2e per kWh.",
        ),
        option(
            "--tokens",
            section="Whole training run",
            metavar="T",
            help="Also show the days, GPU-hours, dollars, MWh and CO2e of training on this many tokens, for example "
            "2T, 300B or 1.4e12.",
        ),
    ):
        function = add(function)
    return function


def flop_convention() -> Decorator:
    """``--flop-convention``."""
    text = "FLOP convention of the MFU: palm, 6n, causal or torchtitan."
    return _output("--flop-convention", metavar="NAME", default=DEFAULT_CONVENTION, show_default=True, help=text)


def wide() -> Decorator:
    """``--wide``, which the tables themselves heed."""

    def heed(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001 - click's signature
        if value:
            from knee.show.terminal.table import show_all_columns

            show_all_columns()

    text = "Show all table columns, even if they are wider than the terminal. Files and pipes always get all columns."
    return _output("--wide", is_flag=True, expose_value=False, callback=heed, help=text)


def as_json(text: str = "Print JSON; the name of each key ends in its unit.") -> Decorator:
    """``--json``, as ``as_json``."""
    return _output("--json", "as_json", is_flag=True, help=text)
