"""``knee budget``: the best model that a budget can train, communication included."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import click

from knee.cli.options import job_options
from knee.cli.options.plan_options import option
from knee.cli.options.sections import Sectioned
from knee.specs.defaults import DEFAULT_BATCH_LAW, DEFAULT_FAMILY, DEFAULT_GRID, DEFAULT_LAW, DEFAULT_SEQ_LEN


@click.command("budget", cls=Sectioned)
@job_options.cluster()
@option(
    "--gpus",
    section="Limits",
    type=int,
    metavar="N",
    help="The most GPUs; fewer are used where that is better. 16,384 if left out.",
)
@option("--days", section="Limits", type=float, metavar="D", help="The most days.")
@option(
    "--usd", section="Limits", metavar="U", help="The most dollars of rent, at the cluster's price: 2M, 1,000,000, 2e6."
)
@option("--mwh", section="Limits", metavar="E", help="The most energy of GPUs and site, in MWh.")
@option("--tokens-max", section="Limits", metavar="T", help="The most tokens there are: 15T, 300B, 1.4e12.")
@option(
    "--batch-max",
    section="Limits",
    metavar="T",
    help="The most tokens a step: 16M. The critical batch size if left out.",
)
@option(
    "--family",
    section="What",
    metavar="NAME",
    default=DEFAULT_FAMILY,
    show_default=True,
    help="Family whose shapes are tried, about four sizes to a doubling.",
)
@option("--model", section="What", metavar="NAME", help="One model only: for those who will serve it.")
@option("--params", section="What", metavar="N", help="One size of the family only: 8B, 350M.")
@option(
    "--tokens-per-param",
    section="What",
    type=float,
    metavar="R",
    help="Train every size on so many tokens a parameter (20 is Chinchilla's, 1,875 Llama-3 8B's).",
)
@option(
    "--law",
    section="What",
    metavar="NAME",
    default=DEFAULT_LAW,
    show_default=True,
    help="Scaling law: besiroglu-2024, hoffmann-2022 or kaplan-2020.",
)
@option(
    "--batch-law",
    section="What",
    metavar="NAME",
    default=DEFAULT_BATCH_LAW,
    show_default=True,
    help="Law of the critical batch: kaplan-2020 or merrill-2025.",
)
@option(
    "--mfu",
    section="What",
    type=float,
    metavar="FRAC",
    help="What counting FLOP assumes of the peak; 0.4, as Llama 3 reports, if left out.",
)
@option(
    "--seq-len",
    section="What",
    type=int,
    metavar="S",
    default=DEFAULT_SEQ_LEN,
    show_default=True,
    help="Tokens a sequence.",
)
@job_options.profile()
@job_options.sets("Change one value of the cluster or profile. May be repeated.")
@option(
    "--grid",
    section="Site",
    metavar="NAME",
    default=DEFAULT_GRID,
    show_default=True,
    help="Where the electricity comes from: world, us, eu, france, ..., or grams of CO2e per kWh.",
)
@option(
    "--pue",
    section="Site",
    type=float,
    metavar="X",
    help="Power of the site over that of its machines; 1.56, the mean of a survey, if left out.",
)
@option(
    "--frontier",
    section="Output",
    is_flag=True,
    help="Also, in about a minute: loss against days, dollars, MWh and CO2e with knees; curves of equal loss.",
)
@option(
    "--check",
    section="Output",
    is_flag=True,
    help="Only hold knee against training runs whose cost was published, and say how far off it is.",
)
@job_options.as_json()
@job_options.wide()
@option("--plot", section="Output", metavar="FILE", help="Also draw it: a file .svg, .png, .html or .json (Vega-Lite).")
@option("--html", section="Output", metavar="FILE", help="Also write a page with every chart and its values.")
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
    """Find the model that loses least within a budget, with communication counted.

    For shapes of a family on 2^k and 3 x 2^k GPUs, the limit, and the count that spends the dollars within the days,
    knee finds the best plan and its tokens/s, the tokens that every limit affords, and the loss that a published
    scaling law predicts. Beside the best run stands what counting FLOP would have chosen (GPUs x peak x an assumed
    MFU x time, split by the law's closed form), what that really reaches on this cluster, and what is lost by it.

    \b
        knee budget --cluster dgx-h100 --gpus 2048 --days 30
        knee budget --cluster dgx-h100 --gpus 4096 --usd 2e6 --days 60 --frontier
        knee budget --cluster dgx-a100 --gpus 512 --days 21 --params 8B
        knee budget --check

    The batch of a run may not exceed the critical one at the loss that it reaches. Laws are extrapolated beyond the
    runs that they were fitted to, and the answer says so. Nothing can be trained: exit 3, with what would help.
    """
    from knee.cli.options.budget_options import check_files, refuse_beside_check

    if check:
        refuse_beside_check(ctx)
        _check(as_json)
        return
    check_files(plot, html)
    from knee.api.budget import budget
    from knee.cli.overrides import parse_sets
    from knee.cli.render.budget import print_answer
    from knee.cli.render.progress import Steady

    overrides = parse_sets(options.pop("sets"))
    drawn = plot is not None or html is not None
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
    from knee.api.budget import budget_check
    from knee.cli.render.budget_check import print_checked

    answer = budget_check()
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    else:
        print_checked(answer)
