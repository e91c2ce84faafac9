"""``knee budget``: the best model that a budget can train, communication included."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned
from knee.cli.plan_options import option
from knee.errors import InputError

if TYPE_CHECKING:
    from knee.cli.budget_answer import Answer
    from knee.fidelity.trust import Trust
    from knee.search.budget import Limits, Problem, Run
    from knee.specs.hardware import Cluster
    from knee.specs.load import Loaded
    from knee.specs.model import Model
    from knee.specs.profile import Profile

_EXAMPLE = "knee budget --cluster dgx-h100 --gpus 2048 --days 30"
MOST_GPUS = 16_384
"""Where --gpus is left out."""
EVERY_S = 2.0
"""Between two lines of progress."""


@click.command("budget", cls=Sectioned)
@option("--cluster", section="What", metavar="NAME", help="Cluster: a name of `knee catalog`, or a TOML file.")
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
    default="llama",
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
    default="besiroglu-2024",
    show_default=True,
    help="Scaling law: besiroglu-2024, hoffmann-2022 or kaplan-2020.",
)
@option(
    "--batch-law",
    section="What",
    metavar="NAME",
    default="kaplan-2020",
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
@option("--seq-len", section="What", type=int, metavar="S", default=4096, show_default=True, help="Tokens a sequence.")
@option(
    "--profile",
    section="What",
    metavar="NAME",
    help="Software profile: a name of `knee catalog`, or a TOML file; `eager` if left out.",
)
@option(
    "--set",
    "sets",
    section="What",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the cluster or profile. May be repeated.",
)
@option(
    "--grid",
    section="Site",
    metavar="NAME",
    default="world",
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
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
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
    from knee.cli.budget_options import check_files, refuse_beside_check

    if check:
        refuse_beside_check(ctx)
        _check(as_json)
        return
    check_files(plot, html)
    from knee.cli.budget_answer import as_data
    from knee.cli.budget_print import print_answer

    answer = _answer(options, frontier=frontier or plot is not None or html is not None)
    if as_json:
        click.echo(json.dumps(as_data(answer), indent=2, allow_nan=False))
    else:
        print_answer(answer)
    if plot is not None:
        from knee.figures.budget import write_plot

        write_plot(as_data(answer), plot)
        click.echo(f"wrote {plot}", err=True)
    if html is not None:
        from knee.files import write_text
        from knee.report.budget import budget_page

        write_text(Path(html), budget_page(as_data(answer), command=shlex.join(["knee", *sys.argv[1:]])))
        click.echo(f"wrote {html}", err=True)


def _answer(options: Mapping[str, Any], *, frontier: bool) -> Answer:
    from knee.cli.budget_answer import Answer
    from knee.cli.budget_options import pue_source
    from knee.energy.grid import grid
    from knee.search import frontier as fr
    from knee.search.flop_counting import flop_choice
    from knee.search.laws import assumed_mfu
    from knee.search.limits import refuse_nothing
    from knee.search.near_best import even_sizes

    cluster, profile = _specs(options)
    limits = _limits(options, cluster.spec)
    mfu = options["mfu"] if options["mfu"] is not None else assumed_mfu()[0]
    if not 0 < mfu <= 1:
        raise InputError(f"--mfu is {mfu:g}; it is a share above 0, at most 1", hint="for example 0.4")
    site = grid(options["grid"])
    problem = _problem(options, cluster.spec, profile.spec)
    # first, as the best is found sooner beside a good candidate
    flop = flop_choice(problem, limits, mfu)
    by_count = problem.by_count(limits)
    if not by_count:
        refuse_nothing(problem, limits, problem.counts(limits))
    best = min(by_count.values(), key=lambda run: run.loss)
    trust = _trust(best, cluster, profile, options["seq_len"])
    axes = [axis for axis in fr.AXES if axis != "usd" or best.cost_usd is not None] if frontier else []
    cells = fr.grid_of(problem, limits, best) if frontier else {}
    return Answer(
        options=dict(options),
        limits=limits,
        problem=problem,
        grid=site,
        best=best,
        by_count=by_count,
        sizes=tuple(fr.sizes_around(problem, limits, best)),
        between=problem.between(limits, best) if problem.model is None else float(best.params),
        even=even_sizes(problem, limits, best),
        flop=flop,
        lost=None if flop.run is None else fr.lost_by(problem, limits, best, flop.run),
        marginals=tuple(fr.marginals(problem, limits, best, cluster.spec.max_gpus)),
        trust=trust,
        bands=fr.bands_of(problem, limits, best, trust.low_frac, trust.high_frac),
        frontiers=tuple(fr.frontier_of(problem, limits, best, axis, site.kg_co2e_per_j) for axis in axes),
        cells=cells,
        iso=tuple(fr.iso_losses(cells, best)),
        notes=_notes(options, limits),
        price=cluster.sources.get("usd_per_gpu_h") if cluster.spec.usd_per_gpu_h is not None else None,
        pue=pue_source(options["pue"]),
    )


def _specs(options: Mapping[str, Any]) -> tuple[Loaded[Cluster], Loaded[Profile]]:
    from knee.cli.overrides import parse_sets
    from knee.specs.load import load_cluster, load_profile, split_overrides

    if options["cluster"] is None:
        raise InputError("missing: --cluster", hint=f"for example {_EXAMPLE}")
    pairs = parse_sets(options["sets"])
    for pair in pairs:
        for_model, _, _, for_plan = split_overrides([pair])
        if for_model or for_plan:
            raise InputError(
                f"--set {pair[0]}: shapes and plans are what is searched",
                hint="set values of the cluster or the profile; --model and --params fix the size",
            )
    _, for_cluster, for_profile, _ = split_overrides(pairs)
    return load_cluster(options["cluster"], for_cluster), load_profile(options["profile"] or "eager", for_profile)


def _limits(options: Mapping[str, Any], cluster: Cluster) -> Limits:
    from knee.cli.budget_options import amount_of, count_of
    from knee.search.budget import Limits
    from knee.search.limits import check_limits

    gpus = min(MOST_GPUS, cluster.max_gpus) if options["gpus"] is None else options["gpus"]
    limits = Limits(
        gpus=gpus,
        days=options["days"],
        usd=amount_of("--usd", options["usd"]),
        mwh=amount_of("--mwh", options["mwh"]),
        tokens_max=count_of("--tokens-max", options["tokens_max"]),
    )
    check_limits(limits, priced=bool(cluster.usd_per_gpu_h), max_gpus=cluster.max_gpus, cluster=cluster.name)
    return limits


def _trust(best: Run, cluster: Loaded[Cluster], profile: Loaded[Profile], seq_len: int) -> Trust:
    from knee.fidelity.trust import trust_of
    from knee.specs.job import Job

    rate = best.rate
    job = Job(
        model=best.model,
        cluster=cluster.spec,
        profile=profile.spec,
        plan=rate.plan,
        gpus=rate.gpus,
        global_batch=rate.global_batch,
        seq_len=seq_len,
    )
    sources = {"cluster": cluster.sources, "profile": profile.sources}
    given = [f"{kind}.{path}" for kind, own in sources.items() for path, one in own.items() if one.kind == "user"]
    return trust_of(job, given)


def _problem(options: Mapping[str, Any], cluster: Cluster, profile: Profile) -> Problem:
    from knee.cli.budget_options import batch_max_of
    from knee.search.budget import Problem
    from knee.search.family import family_of
    from knee.search.laws import batch_law, law_of
    from knee.search.rates import Rates
    from knee.search.training_bill import checked_pue
    from knee.specs.load import make_job

    law, family = law_of(options["law"]), family_of(options["family"])
    model = _model(options, family)
    ratio = options["tokens_per_param"]
    # also false for nan
    if ratio is not None and not 0 < ratio < 1e9:
        raise InputError(
            f"--tokens-per-param is {ratio:g}; it must be above 0 and below 1e9", hint="20 is Chinchilla's"
        )
    first = model or family.ladder()[0]
    # a job that every model has, to refuse what cannot be simulated in words
    fixed = make_job(first, cluster, profile, gpus=1, global_batch=1, seq_len=options["seq_len"])[0].plan
    return Problem(
        rates=Rates(cluster=cluster, profile=profile, seq_len=options["seq_len"], fixed=fixed),
        law=law,
        batch_law=batch_law(options["batch_law"]),
        family=family,
        pue=checked_pue(options["pue"]),
        batch_max_tokens=batch_max_of(options["batch_max"], options["seq_len"]),
        model=model,
        tokens_per_param=ratio,
        progress=_steady(),
    )


def _model(options: Mapping[str, Any], family: Any) -> Model | None:
    from knee.api.request import named_model
    from knee.cli.budget_options import count_of
    from knee.search.family import LEAST_PARAMS, MOST_PARAMS
    from knee.units import short

    if options["model"] is not None and options["params"] is not None:
        raise InputError("--model and --params are both given", hint="each fixes the size: give one")
    if options["model"] is not None:
        return named_model(options["model"]).spec
    params = count_of("--params", options["params"])
    if params is None:
        return None
    if not LEAST_PARAMS <= params <= MOST_PARAMS:
        raise InputError(
            f"--params is {options['params']}; the family has {short(LEAST_PARAMS)} to {short(MOST_PARAMS)}",
            hint="for example --params 8B",
        )
    shape: Model = family.shape(params)
    return shape


def _notes(options: Mapping[str, Any], limits: Limits) -> list[str]:
    notes = [] if options["profile"] else ["profile eager was not given: a faster stack trains more in the same time"]
    return notes + ([] if options["gpus"] is not None else [f"gpus was not given: up to {limits.gpus:,}"])


def _steady() -> Callable[[str, float], None]:
    """Lines of progress, one every few seconds."""
    last_s = [time.monotonic()]

    def say(what: str, _: float) -> None:
        now = time.monotonic()
        if now - last_s[0] > EVERY_S:
            last_s[0] = now
            click.echo(f"looking at {what}", err=True)

    return say


def _check(as_json: bool) -> None:
    from knee.cli.budget_check import checked_data, print_checked
    from knee.search.published_runs import published_runs

    runs = published_runs()
    if as_json:
        click.echo(json.dumps(checked_data(runs), indent=2, allow_nan=False))
    else:
        print_checked(runs)
