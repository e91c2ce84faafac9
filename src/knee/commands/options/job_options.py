"""Options that name a job: the same words, types and help in every command that takes them."""

from __future__ import annotations

from typing import Any

import click

from knee.commands.options.sections import KEY_VALUE, Decorator, option, options
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID

USUAL: dict[str, tuple[str, Any, str]] = {
    "cluster": ("--cluster NAME", str, "Cluster: a name from `knee catalog`, or the path of a TOML file."),
    "gpus": ("--gpus N", int, "Total number of GPUs."),
    "local_batch": ("--local-batch B", float, "Sequences per step divided by the number of GPUs."),
    "global_batch": ("--global-batch G", int, "Sequences per step over all GPUs."),
    "seq_len": (
        *("--seq-len S", int),
        "Tokens per sequence; default: 4,096, or the model's maximum if that is smaller.",
    ),
    "profile": (
        *("--profile NAME", str),
        "Software profile: a name from `knee catalog`, or the path of a TOML file; default: `eager`.",
    ),
    "overrides": (
        *("--set overrides KEY=VALUE", (KEY_VALUE,)),
        "Override one value of the model, cluster, profile or plan. May be repeated.",
    ),
}
"""Flags, type and usual text of each option."""


def job_options(names: str = "", **texts: str) -> Decorator:
    """Options of a job by the names of their parameters, in this order; ``texts`` replace the usual ones."""
    known = {name: USUAL[name][2] for name in names.split()} | texts
    return options("Job", {USUAL[name][:2]: text for name, text in known.items()})


training = options(
    "Whole training run",
    {
        ("--tokens T", str): "Also show the days, GPU-hours, dollars, MWh and CO2e of training on this many tokens, "
        "for example 2T, 300B or 1.4e12.",
        ("--grid NAME", str, DEFAULT_GRID): "Carbon intensity of the electricity: a region (world, us, eu, france, "
        "...) or grams of CO2e per kWh.",
        ("--pue X", float): "Power usage effectiveness (PUE): power of the whole site divided by power of its "
        "machines; default: 1.56, a survey mean.",
    },
)
"""A whole run, and where it is trained."""
flop_convention = option(
    "--flop-convention NAME",
    str,
    "FLOP convention of the MFU: palm, 6n, causal or torchtitan.",
    section="Output",
    default=DEFAULT_CONVENTION,
)


def _heed(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001 - click's signature
    if value:
        from knee.show.terminal.table import show_all_columns

        show_all_columns()


wide = option(
    "--wide",
    bool,
    "Show all table columns, even if they are wider than the terminal. Files and pipes always get all columns.",
    section="Output",
    expose_value=False,
    callback=_heed,
)
"""``--wide``, which the tables themselves heed."""
