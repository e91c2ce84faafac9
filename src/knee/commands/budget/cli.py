"""``knee budget``: the best model that a budget can train, communication included."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import nullcontext
from typing import Any

import click

from knee.commands.options import job_options
from knee.commands.options.plan_options import knob_options, option
from knee.commands.options.sections import Sectioned
from knee.specs.defaults import DEFAULT_BATCH_LAW, DEFAULT_FAMILY, DEFAULT_GRID, DEFAULT_LAW, DEFAULT_SEQ_LEN


@click.command("budget", cls=Sectioned)
@job_options.cluster()
@option(
    "--gpus",
    section="Limits",
    type=int,
    metavar="N",
    help="Maximum number of GPUs; knee uses fewer if that is better. Default: 16,384.",
)
@option("--days", section="Limits", type=float, metavar="D", help="Maximum number of days.")
@option(
    "--usd",
    section="Limits",
    metavar="U",
    help="Maximum rent in dollars at the cluster's price, for example 2M, 1,000,000 or 2e6.",
)
@option("--mwh", section="Limits", metavar="E", help="Maximum energy of GPUs and site, in MWh.")
@option(
    "--tokens-max",
    section="Limits",
    metavar="T",
    help="Number of training tokens that exist, for example 15T, 300B or 1.4e12.",
)
@option(
    "--batch-max",
    section="Limits",
    metavar="T",
    help="Maximum tokens per step, for example 16M; default: the critical batch size.",
)
@option(
    "--family",
    section="Job",
    metavar="NAME",
    default=DEFAULT_FAMILY,
    show_default=True,
    help="Model family whose shapes are tried, about four sizes per doubling of the parameters.",
)
@option(
    "--model",
    section="Job",
    metavar="NAME",
    help="Consider only this model: a name from `knee catalog`, or the path of a TOML file.",
)
@option("--params", section="Job", metavar="N", help="Consider only this size of the family, for example 8B or 350M.")
@option(
    "--tokens-per-param",
    section="Job",
    type=float,
    metavar="R",
    help="Train every size on this many tokens per parameter (Chinchilla: 20; Llama 3 8B: 1,875).",
)
@option(
    "--law",
    section="Job",
    metavar="NAME",
    default=DEFAULT_LAW,
    show_default=True,
    help="Scaling law: besiroglu-2024, hoffmann-2022 or kaplan-2020.",
)
@option(
    "--batch-law",
    section="Job",
    metavar="NAME",
    default=DEFAULT_BATCH_LAW,
    show_default=True,
    help="Law of the critical batch size: kaplan-2020 or merrill-2025.",
)
@option(
    "--mfu",
    section="Job",
    type=float,
    metavar="FRAC",
    help="MFU that the FLOP-only estimate assumes; default: 0.4, as reported for Llama 3.",
)
@option(
    "--seq-len",
    section="Job",
    type=int,
    metavar="S",
    default=DEFAULT_SEQ_LEN,
    show_default=True,
    help="Tokens per sequence.",
)
@job_options.profile()
@job_options.sets("Override one value of the cluster or profile. May be repeated.")
@option(
    "--grid",
    section="Site",
    metavar="NAME",
    default=DEFAULT_GRID,
    show_default=True,
    help="Carbon intensity of the electricity: a region (world, us, eu, france, ...) or grams of CO2e per kWh.",
)
@option(
    "--pue",
    section="Site",
    type=float,
    metavar="X",
    help="Power usage effectiveness (PUE): power of the whole site divided by power of its machines; default: 1.56, a "
    "survey mean.",
)
@option(
    "--sync-every",
    section="Output",
    type=int,
    default=1,
    metavar="H",
    help="Also find the best run whose replicas exchange only every H steps (DiLoCo): more tokens in the same time, "
    "and a change of the loss by a published law.",
)
@knob_options(("sync_fragments", "sync_dtype"), section="Output", defaults={"sync_dtype": "fp32"})
@option(
    "--frontier",
    section="Output",
    is_flag=True,
    help="Also show loss against days, dollars, MWh and CO2e with their knees, and curves of equal loss. Takes some "
    "seconds more.",
)
@option(
    "--check",
    section="Output",
    is_flag=True,
    help="Only compare knee with training runs whose cost was published, and show the errors.",
)
@job_options.as_json()
@job_options.wide()
@option(
    "--plot", section="Output", metavar="FILE", help="Also draw a chart: a .svg, .png, .html or .json (Vega-Lite) file."
)
@option("--html", section="Output", metavar="FILE", help="Also write an HTML page with every chart and its values.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    as_json: bool,
    check: bool,
    plot: str | None,
    html: str | None,
    frontier: bool,
    **options: Any,
) -> None:
    """Find the model with the lowest loss that a budget can train. Communication time is included.

    knee tries model shapes of one family on 2^k and 3 x 2^k GPUs, on the maximum number of GPUs, and on the number of
    GPUs that costs exactly the given dollars in the given days. For each, it finds the best plan and its tokens/s, the
    tokens that all limits allow, and the loss that a published scaling law predicts. The table compares the best run
    with a FLOP-only estimate, which takes GPUs x peak x an assumed MFU x time as the FLOP of the run, and with the loss
    that the model size of this estimate reaches on this cluster.

    \b
        knee budget --cluster dgx-h100 --gpus 2048 --days 30
        knee budget --cluster dgx-h100 --gpus 4096 --usd 2e6 --days 60 --frontier
        knee budget --cluster dgx-a100 --gpus 512 --days 21 --params 8B
        knee budget --check

    The batch never exceeds the critical batch size at the loss that the run reaches. If a law is used outside the
    range of the runs that it was fitted to, the answer says so. If the budget can train nothing, knee suggests what
    would help and exits with code 3.
    """
    from knee.commands.options.budget_options import check_files, refuse_beside_check

    if check:
        refuse_beside_check(ctx)
        _check(as_json)
        return
    check_files(plot, html)
    from knee.commands.budget.api import budget
    from knee.commands.budget.text import print_answer
    from knee.commands.options.overrides import parse_sets
    from knee.show.figures.vega import drawing_beside
    from knee.show.terminal.progress_bar import Steady

    overrides = parse_sets(options.pop("sets"))
    options = {name: value for name, value in options.items() if value is not None}
    drawn = plot is not None or html is not None
    with drawing_beside() if html is not None else nullcontext():
        answer = budget(overrides=overrides, frontier=frontier or drawn, progress=Steady(), **options)
        if as_json:
            click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
        else:
            print_answer(answer)
        if plot is not None:
            answer.plot(plot)
            click.echo(f"wrote {plot}", err=True)
        if html is not None:
            answer.write_page(html, command=shlex.join(["knee", *sys.argv[1:]]))
            click.echo(f"wrote {html}", err=True)


def _check(as_json: bool) -> None:
    from knee.commands.budget.api import budget_check
    from knee.commands.budget.text import print_checked

    answer = budget_check()
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    else:
        print_checked(answer)
