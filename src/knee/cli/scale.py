"""``knee scale``: what more GPUs buy, and where they stop to pay."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned, Word
from knee.cli.plan_options import option, plan_of, plan_options
from knee.cli.progress import Patience
from knee.errors import DoesNotFit, InputError

if TYPE_CHECKING:
    from knee.api.request import Pairs, Request
    from knee.cli.scale_answer import Answer, Scaled
    from knee.search.scale import Curve, Point
    from knee.search.space import Space
    from knee.specs import Job

_EXAMPLE = "knee scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2"
OBJECTIVES = ("tokens_per_s", "tokens_per_j", "usd_per_mtoken")
EVERYWHERE = ("precision", "prefetch", "reduce_dtype", "state_dtype", "tp_overlap_frac", "placement")
"""Options that all plans of a search have; the others limit it."""
FREED = ("tp", "pp", "cp", "dp_shard", "dp_replicate", "virtual_stages", "micro_batch", "recompute_frac")
"""Options that a hint at a plan that fits may change: the sizes, not the kinds."""


@click.command("scale", cls=Sectioned)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@option(
    "--cluster",
    "clusters",
    section="What",
    metavar="NAME",
    multiple=True,
    help="Cluster: a name of `knee catalog`, or a TOML file. May be repeated, or be a list: dgx-a100,dgx-h100.",
)
@option(
    "--gpus", section="What", metavar="COUNTS", help="Counts of GPUs: 8..2048 (doublings), 8,16,24 (a list), or both."
)
@option(
    "--local-batch",
    section="What",
    type=float,
    metavar="B",
    help="Weak scaling: sequences a step over all GPUs, divided by all GPUs; may be a fraction.",
)
@option(
    "--global-batch",
    section="What",
    type=int,
    metavar="G",
    help="Strong scaling: sequences a step over all GPUs, at every count.",
)
@option(
    "--seq-len",
    section="What",
    type=int,
    metavar="S",
    help="Tokens a sequence; 4,096 or the model's longest if left out.",
)
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
    help="Change one value of the model, cluster, profile or plan. May be repeated.",
)
@option(
    "--best",
    section="What",
    is_flag=True,
    help="The best plan at every count, of the whole space; options of the plan that are given stay as they are.",
)
@option(
    "--objective",
    section="What",
    type=Word(OBJECTIVES),
    default=OBJECTIVES[0],
    show_default=True,
    help="What the best plan is best at (with --best).",
)
@option(
    "--threshold",
    section="Knee",
    type=float,
    metavar="X",
    default=1.5,
    show_default=True,
    help="Speed-up from which a doubling pays, above 1 and at most 2.",
)
@option(
    "--keep",
    section="Knee",
    type=float,
    metavar="FRAC",
    default=0.9,
    show_default=True,
    help="Share of the best tokens per joule, and per dollar, that is kept up to their knees.",
)
@option(
    "--tokens",
    section="Training",
    metavar="T",
    help="Also say what training on so many tokens takes: 2T, 300B, 1.4e12.",
)
@option(
    "--grid",
    section="Training",
    metavar="NAME",
    default="world",
    show_default=True,
    help="Where the electricity comes from: world, us, eu, france, ..., or grams of CO2e per kWh.",
)
@option(
    "--pue",
    section="Training",
    type=float,
    metavar="X",
    help="Power of the site over that of its machines; 1.56, the mean of a survey, if left out.",
)
@plan_options
@option(
    "--flop-convention",
    section="Output",
    metavar="NAME",
    default="palm",
    show_default=True,
    help="How the model's FLOP are counted for the MFU: palm, 6n, causal or torchtitan.",
)
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
@option(
    "--plot",
    section="Output",
    metavar="FILE",
    help="Also draw it: a file .svg, .png, .html or .json (Vega-Lite), or - for the terminal.",
)
def command(
    models: tuple[str, ...],
    clusters: tuple[str, ...],
    gpus: str | None,
    sets: tuple[str, ...],
    best: bool,
    as_json: bool,
    plot: str | None,
    **options: Any,
) -> None:
    """Say what more GPUs buy, and where they stop to pay.

    MODEL is what `knee simulate` takes; several models or clusters are compared. With --local-batch the batch grows
    with the GPUs (weak scaling), with --global-batch it stays (strong scaling). One plan is asked at every count,
    its data-parallel ranks filling the GPUs, or with --best the best of all plans. Counts at which the plan cannot
    be or does not fit say why.

    \b
    The knee is the largest count that still pays:
      throughput  max N2: (T(N2) / T(N1))^(1 / log2(N2 / N1)) >= threshold
                  T tokens/s; N1 the count before N2: a doubling to N2 still buys 1.5x
      energy      max N: E(N) >= keep * max E        E tokens/J
      cost        max N: C(N) >= keep * max C        C tokens/USD

    Its range says where it may lie if doublings are as much better or worse than predicted as in nine of ten pairs of
    published runs that are alike but for their GPUs and batch.

    Nothing fits at any count: exit 3, with what would.
    """
    from knee.cli.overrides import parse_sets
    from knee.cli.scale_answer import as_data, print_answer

    if plot is not None:
        _check_plot(plot, as_json)
    counts, pairs = _checked(gpus, best, options), parse_sets(sets)
    # a job file names its own cluster
    places: list[str | None] = [*_listed(clusters)] or [None]
    scaled = [
        _scaled(model, place, counts, best=best, options=options, sets=pairs)
        for model in _listed(models)
        for place in places
    ]
    answer = _answer(scaled, options)
    if all(point.job is None for one in scaled for point in one.curve.points):
        _refuse_what_never_is([point for one in scaled for point in one.curve.points])
    if as_json:
        import json

        click.echo(json.dumps(as_data(answer), indent=2, allow_nan=False))
    else:
        print_answer(answer)
    if plot is not None:
        _draw(answer, plot)
    if not any(one.curve.usable for one in scaled):
        raise _nothing_fits(answer, best)


def _listed(texts: Sequence[str]) -> list[str]:
    """Each name once, in order; commas separate names."""
    return list(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))


def _checked(gpus: str | None, best: bool, options: Mapping[str, Any]) -> list[int]:
    """The counts, once all that can be said without a model is right."""
    from knee.search.scale import check_batch, parse_counts

    batches = [name for name in ("local_batch", "global_batch") if options[name] is not None]
    if len(batches) == 2:
        raise InputError(
            "--local-batch and --global-batch are both given",
            hint="--local-batch grows the batch with the GPUs, --global-batch keeps it: give one",
        )
    if gpus is None or not batches:
        missing = [*(["--gpus"] if gpus is None else []), *([] if batches else ["--local-batch (or --global-batch)"])]
        raise InputError(f"missing: {', '.join(missing)}", hint=f"for example {_EXAMPLE}")
    if not 1 < options["threshold"] <= 2:
        raise InputError(
            f"--threshold is {options['threshold']:g}; a doubling buys more than 1 and at most 2",
            hint="1.5 asks each added GPU for half of a first one's work, 1.9 for nine tenths",
        )
    if not 0 < options["keep"] <= 1:
        raise InputError(f"--keep is {options['keep']:g}; it is a share above 0, at most 1", hint="for example 0.9")
    if not best and options["objective"] != OBJECTIVES[0]:
        raise InputError("--objective is for the best plan", hint="add --best")
    if best and options["recompute_frac"] is not None:
        raise InputError("--recompute-frac is no part of the searched space", hint="leave it out, or leave --best out")
    counts = parse_counts(gpus)
    check_batch(options["local_batch"], options["global_batch"], counts[-1])
    return counts


def _scaled(
    model: str, cluster: str | None, counts: Sequence[int], *, best: bool, options: Mapping[str, Any], sets: Pairs
) -> Scaled:
    """One model on one cluster."""
    from knee.api.request import is_job_file, request
    from knee.cli.scale_answer import Scaled
    from knee.search.scale import curve_of
    from knee.specs.load import make_job, split_overrides

    names = {"cluster": cluster, "profile": options["profile"]}
    plan = {name: value for name, value in plan_of(options).items() if value is not None}
    sizes = {name: options[name] for name in ("local_batch", "global_batch", "seq_len")}
    convention = options["flop_convention"]
    if is_job_file(model):
        if best:
            raise InputError(f"--best searches plans, and {model} is a job with one", hint="name its model and cluster")
        asked: dict[int, Request] = {}

        def of_file(gpus: int) -> Job:
            asked[gpus] = request(model, **names, sizes=sizes | {"gpus": gpus}, plan=plan, overrides=sets)
            return asked[gpus].job

        curve = curve_of(counts, of_file, convention=convention)
        first = next(iter(asked.values()), None)
        return Scaled(asked=first, curve=curve, best=False, names=(model, cluster or ""))
    if cluster is None:
        raise InputError("missing: --cluster", hint=f"for example {_EXAMPLE}")
    for_plan = split_overrides(sets)[3]
    of_plan = [key for key, _ in for_plan if key in plan]
    if of_plan or (best and for_plan):
        raise InputError(
            f"--set {(of_plan or [key for key, _ in for_plan])[0]} is an option of the plan",
            hint="give it once, as that option",
        )
    # a job that every model has, to load and check the specs once
    base = request(
        model,
        **names,
        sizes={"gpus": 1, "global_batch": 1, "seq_len": sizes["seq_len"]},
        plan={},
        overrides=[pair for pair in sets if pair not in for_plan],
    )
    spec = base.job

    def of_names(gpus: int) -> Job:
        return make_job(
            spec.model,
            spec.cluster,
            spec.profile,
            gpus=gpus,
            **(sizes | {"seq_len": spec.seq_len}),
            plan_options=plan | dict(for_plan),
        )[0]

    curve = (
        _best_curve(base, counts, plan, options)
        if best
        else curve_of(counts, of_names, cut="micro_batch" not in plan | dict(for_plan), convention=convention)
    )
    return Scaled(asked=base, curve=curve, best=best, names=(spec.model.name, spec.cluster.name))


def _best_curve(base: Request, counts: Sequence[int], plan: Mapping[str, Any], options: Mapping[str, Any]) -> Curve:
    from knee.errors import SpecError
    from knee.search.scale import Curve, Point, best_point, global_batch_of

    points: list[Point] = []
    progress = Patience()
    for gpus in counts:
        try:
            batch = global_batch_of(gpus, options["local_batch"], options["global_batch"])
            space, only = _space(base, gpus, batch, plan)
        except SpecError as error:
            points.append(Point(gpus=gpus, reason=error.message, hint=error.hint))
            continue
        points.append(
            best_point(
                space,
                base.job.cluster,
                base.job.profile,
                objective=options["objective"],
                only=only,
                convention=options["flop_convention"],
                progress=progress.of(f"{gpus:,} GPUs: "),
                grows=options["global_batch"] is None,
            )
        )
    return Curve(points=tuple(points))


def _space(base: Request, gpus: int, batch: int, plan: Mapping[str, Any]) -> tuple[Space, str | None]:
    """All plans of a count, and the condition that given degrees make."""
    from knee.search.space import Space
    from knee.specs.load import make_job

    job = base.job
    every = {name: plan[name] for name in EVERYWHERE if name in plan}
    fixed = make_job(
        job.model, job.cluster, job.profile, gpus=1, global_batch=1, seq_len=job.seq_len, plan_options=every
    )[0].plan
    words = {"cp_method": "cp == 1 or cp_method == {!r}", "sequence_parallel": "tp == 1 or sequence_parallel == {:d}"}
    numbers = ("tp", "pp", "cp", "dp_shard", "dp_replicate", "virtual_stages")
    only = [f"({name} == {plan[name]})" for name in numbers if name in plan]
    only += [f"({text.format(plan[name])})" for name, text in words.items() if name in plan]

    def limit(name: str) -> tuple[Any, ...]:
        return (plan[name],) if name in plan else ()

    space = Space(
        model=job.model,
        gpus=gpus,
        global_batch=batch,
        seq_len=job.seq_len,
        fixed=fixed,
        max_tp=plan.get("tp"),
        max_pp=plan.get("pp"),
        max_cp=plan.get("cp"),
        shardings=limit("sharding"),
        schedules=limit("schedule"),
        recomputes=limit("recompute"),
        micro_batches=limit("micro_batch"),
        sync_every=plan.get("sync_every", 1),
        selective=job.profile.attention == "unfused" or plan.get("recompute") == "selective",
    )
    return space, " and ".join(only) or None


def _answer(scaled: Sequence[Scaled], options: Mapping[str, Any]) -> Answer:
    """Bands, knees and bills."""
    from knee.cli.scale_answer import Answer
    from knee.energy.grid import grid
    from knee.fidelity.doublings import doubling_band
    from knee.fidelity.trust import trust_of
    from knee.search.knee import knees_of
    from knee.search.training_bill import bill_of, checked_pue, parse_tokens

    tokens = None if options["tokens"] is None else parse_tokens(options["tokens"])
    site, pue, band = grid(options["grid"]), checked_pue(options["pue"]), doubling_band()
    done = []
    for one in scaled:
        given = one.asked.given if one.asked else []
        trusts = {p.gpus: trust_of(p.job, given) for p in one.curve.points if p.job is not None}
        known = all(trust.low_frac is not None for trust in trusts.values())
        bills = {}
        for gpus, measured in one.curve.usable if tokens is not None else []:
            low, high = trusts[gpus].low_frac, trusts[gpus].high_frac
            ends = None if low is None or high is None else (low, high)
            bills[gpus] = bill_of(measured, tokens or 0.0, grid=site, pue=pue, band=ends)
        knees = knees_of(
            one.curve, threshold=options["threshold"], keep_frac=options["keep"], band=band if known else None
        )
        done.append(replace(one, trusts=trusts, bills=bills, knees=knees, band=band if known else None))
    return Answer(scaled=tuple(done), options=dict(options), tokens=tokens, grid=site, pue=pue)


def _refuse_what_never_is(points: Sequence[Point]) -> None:
    """The same mistake at every count is one of the question, not of a count."""
    if len(points) > 1 and len({point.reason for point in points}) == 1:
        raise InputError(str(points[0].reason), hint=points[0].hint or f"for example {_EXAMPLE}")


def _nothing_fits(answer: Answer, best: bool) -> DoesNotFit:
    """With what would: another plan, or more GPUs."""
    from knee.cli.scale_answer import options_of
    from knee.errors import SpecError
    from knee.search.scale import best_point, global_batch_of

    options, progress = answer.options, Patience()
    kept = {name: value for name, value in plan_of(options).items() if value is not None and name not in FREED}
    points = [point for one in answer.scaled for point in one.curve.points]
    hints = [point.hint for point in points if point.hint]
    if best:
        split = all("not a whole number of sequences" in str(point.reason) for point in points)
        hints += [_whole_batch(options["local_batch"])] if split else []
        hint = hints[-1] if hints else "use more GPUs, or shorter sequences"
        return DoesNotFit("no plan fits at any of these counts", hint=hint)
    for one in answer.scaled:
        for point in reversed(one.curve.points):
            asked = one.asked
            if asked is None:
                continue
            try:
                batch = global_batch_of(point.gpus, options["local_batch"], options["global_batch"])
            except SpecError:
                hints.append(_whole_batch(options["local_batch"]))
                continue
            space, only = _space(asked, point.gpus, batch, kept)
            found = best_point(
                space,
                asked.job.cluster,
                asked.job.profile,
                only=only,
                progress=progress.of(f"{point.gpus:,} GPUs: "),
                grows=options["global_batch"] is None,
            )
            if found.usable and found.job is not None:
                return DoesNotFit(
                    "the plan is of no use at any of these counts",
                    hint=f"on {point.gpus:,} GPUs it would be with {options_of(found.job)}; "
                    "--best finds the best plan at every count",
                )
            hints += [found.hint] if found.hint else []
            break
    return DoesNotFit(
        "the plan is of no use at any of these counts",
        hint=hints[-1] if hints else "use more GPUs, or shorter sequences",
    )


def _whole_batch(local_batch: float) -> str:
    """A batch and counts of whole sequences."""
    fewest = next((n for n in range(1, 1025) if n * local_batch >= 1 and (n * local_batch).is_integer()), None)
    count = f", or a multiple of {fewest:,} GPUs" if fewest else ""
    return f"use --local-batch {max(1, round(local_batch))}{count}"


def _check_plot(plot: str, as_json: bool) -> None:
    from knee.figures.scale import ENDINGS

    if plot == "-" and as_json:
        raise InputError("--plot - draws on stdout, where --json is", hint="give --plot a file, or leave one out")
    if plot != "-" and not plot.endswith(ENDINGS):
        raise InputError(
            f"--plot {plot!r}: the ending says what is drawn, and is none of {', '.join(ENDINGS)}",
            hint="for example --plot scale.svg, or --plot - for the terminal",
        )
    if plot != "-":
        path = Path(plot)
        why = (
            "it is a folder"
            if path.is_dir()
            else f"there is no folder {path.parent}"
            if not path.parent.is_dir()
            else None
            if os.access(path if path.exists() else path.parent, os.W_OK)
            else "permission denied"
        )
        if why is not None:
            raise InputError(f"{plot} cannot be written: {why}", hint="give --plot another path")


def _draw(answer: Answer, plot: str) -> None:
    from knee.cli.scale_answer import series_of
    from knee.figures.scale import bars, write

    series = series_of(answer)
    if not series:
        return
    if plot == "-":
        click.echo("\n".join(bars(series)))
        return
    write(series, plot)
    click.echo(f"wrote {plot}", err=True)
