"""Options that name a job: the same words, types and help in every command that takes them."""

from __future__ import annotations

from typing import Any

import click

from knee.commands.options.sections import KEY_VALUE, Decorator, option, options, parameter_of
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID

USUAL: dict[tuple[str, Any], str] = {
    ("--cluster NAME", str): "Cluster: a name from `knee catalog`, or the path of a TOML file.",
    ("--gpus N", int): "Total number of GPUs.",
    ("--local-batch B", float): "Sequences per step divided by the number of GPUs.",
    ("--global-batch G", int): "Sequences per step over all GPUs.",
    ("--seq-len S", int): "Tokens per sequence; default: 4,096, or the model's maximum if that is smaller.",
    ("--profile NAME", str): "Software profile: a name from `knee catalog`, or the path of a TOML file; default: "
    "`eager`.",
    ("--set overrides KEY=VALUE", (KEY_VALUE,)): "Override one value of the model, cluster, profile or plan. May be "
    "repeated.",
}
"""Flags and type of each option -> its usual text."""


def job_options(names: str = "", **texts: str) -> Decorator:
    """Options of a job by the names of their parameters, in this order; ``texts`` replace the usual ones."""
    keys = {parameter_of(key[0]): key for key in USUAL}
    asked = {name: USUAL[keys[name]] for name in names.split()} | texts
    return options("Job", {keys[name]: text for name, text in asked.items()})


SITE: dict[tuple[Any, ...], str] = {
    ("--grid NAME", str, DEFAULT_GRID): "Carbon intensity of the electricity: a region (world, us, eu, france, ...) or "
    "grams of CO2e per kWh.",
    ("--pue X", float): "Power usage effectiveness (PUE): power of the whole site divided by power of its machines; "
    "default: 1.56, a survey mean.",
}
"""Where a run is trained."""
training = options(
    "Whole training run",
    {
        ("--tokens T", str): "Also show the days, GPU-hours, dollars, MWh and CO2e of training on this many tokens, "
        "for example 2T, 300B or 1.4e12.",
        **SITE,
    },
)
"""A whole run, and where it is trained."""
flop_convention = options(
    "Output",
    {
        ("--flop-convention NAME", str, DEFAULT_CONVENTION): "FLOP convention of the MFU: palm, 6n, causal or "
        "torchtitan.",
    },
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
