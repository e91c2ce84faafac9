"""``knee budget``: the best model that a budget can train, communication included."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click
from click.core import ParameterSource

from knee.base.errors import InputError
from knee.commands.options.job_options import SITE, job_options, wide
from knee.commands.options.output import check_targets, print_result, say, write_page
from knee.commands.options.plan_options import knob_options
from knee.commands.options.sections import Sectioned, as_json, option, options
from knee.specs.defaults import DEFAULT_BATCH_LAW, DEFAULT_FAMILY, DEFAULT_LAW, DEFAULT_SEQ_LEN


@click.command("budget", cls=Sectioned)
@job_options("cluster")
@options(
    "Limits",
    {
        ("--gpus N", int): "Maximum number of GPUs; knee uses fewer if that is better. Default: 16,384.",
        ("--days D", float): "Maximum number of days.",
        ("--usd U", str): "Maximum rent in dollars at the cluster's price, for example 2M, 1,000,000 or 2e6.",
        ("--mwh E", str): "Maximum energy of GPUs and site, in MWh.",
        ("--tokens-max T", str): "Number of training tokens that exist, for example 15T, 300B or 1.4e12.",
        ("--batch-max T", str): "Maximum tokens per step, for example 16M; default: the critical batch size.",
    },
)
@options(
    "Job",
    {
        ("--family NAME", str, DEFAULT_FAMILY): "Model family whose shapes are tried, about four sizes per doubling "
        "of the parameters.",
        ("--model NAME", str): "Consider only this model: a name from `knee catalog`, or the path of a TOML file.",
        ("--params N", str): "Consider only this size of the family, for example 8B or 350M.",
        ("--tokens-per-param R", float): "Train every size on this many tokens per parameter (Chinchilla: 20; Llama 3 "
        "8B: 1,875).",
        ("--law NAME", str, DEFAULT_LAW): "Scaling law: besiroglu-2024, hoffmann-2022 or kaplan-2020.",
        ("--batch-law NAME", str, DEFAULT_BATCH_LAW): "Law of the critical batch size: kaplan-2020 or merrill-2025.",
        ("--mfu FRAC", float): "MFU that the FLOP-only estimate assumes; default: 0.4, as reported for Llama 3.",
        ("--seq-len S", int, DEFAULT_SEQ_LEN): "Tokens per sequence.",
    },
)
@job_options("profile", overrides="Override one value of the cluster or profile. May be repeated.")
@options("Site", SITE)
@option(
    "--sync-every H",
    int,
    "Also find the best run whose replicas exchange only every H steps (DiLoCo): more tokens in the same time, "
    "and a change of the loss by a published law.",
    default=1,
    show_default=False,
    section="Output",
)
@knob_options(("sync_fragments", "sync_dtype"), section="Output", defaults={"sync_dtype": "fp32"})
@options(
    "Output",
    {
        ("--frontier", bool): "Also show loss against days, dollars, MWh and CO2e with their knees, and curves of "
        "equal loss. Takes some seconds more.",
        ("--check", bool): "Only compare knee with training runs whose cost was published, and show the errors.",
    },
)
@as_json()
@wide
@options(
    "Output",
    {
        ("--plot FILE", str): "Also draw a chart: a .svg, .png, .html or .json (Vega-Lite) file.",
        ("--html FILE", str): "Also write an HTML page with every chart and its values.",
    },
)
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
    if check:
        _refuse_beside_check(ctx)
        from knee.commands.budget.api import budget_check
        from knee.commands.budget.text import print_checked

        print_result(budget_check(), as_json, print_checked)
        return
    check_targets(plot=plot, html=html)
    from knee.commands.budget.api import budget
    from knee.commands.budget.text import print_answer
    from knee.show.figures.vega import drawing_beside
    from knee.show.terminal.progress_bar import Steady

    options = {name: value for name, value in options.items() if value is not None}
    drawn = plot is not None or html is not None
    with drawing_beside() if html is not None else nullcontext():
        answer = budget(frontier=frontier or drawn, progress=Steady(), **options)
        print_result(answer, as_json, print_answer)
        if plot is not None:
            answer.plot(plot)
            say(f"wrote {plot}")
        write_page(answer, html)


def _refuse_beside_check(ctx: click.Context) -> None:
    """``--check`` asks about published runs, and nothing of a budget of one's own."""
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name not in ("check", "as_json", None)
        and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        text = f"--check cannot be combined with {', '.join(given)}"
        hint = "leave out --check, or combine it only with --json"
        raise InputError(text, hint=hint, code="contradiction", field="check")
