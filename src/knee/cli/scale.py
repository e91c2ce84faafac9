"""``knee scale``: what more GPUs buy, and where they stop to pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import job_options
from knee.cli.options.plan_options import PLAN, option, plan_of, plan_options
from knee.cli.options.sections import Sectioned, Word
from knee.cli.render.progress import Patience
from knee.errors import InputError
from knee.specs.choices import OBJECTIVES
from knee.specs.defaults import KEEP_FRAC, THRESHOLD

if TYPE_CHECKING:
    from knee.results.scale_result import Scaling


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
@job_options.local_batch("Weak scaling: sequences a step over all GPUs, divided by all GPUs; may be a fraction.")
@job_options.global_batch("Strong scaling: sequences a step over all GPUs, at every count.")
@job_options.seq_len()
@job_options.profile()
@job_options.sets("Change one value of the model, cluster, profile or plan. May be repeated.")
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
    default=THRESHOLD,
    show_default=True,
    help="Speed-up from which a doubling pays, above 1 and at most 2.",
)
@option(
    "--keep",
    section="Knee",
    type=float,
    metavar="FRAC",
    default=KEEP_FRAC,
    show_default=True,
    help="Share of the best tokens per joule, and per dollar, that is kept up to their knees.",
)
@job_options.training
@plan_options
@job_options.flop_convention()
@job_options.as_json()
@job_options.wide()
@option(
    "--plot",
    section="Output",
    metavar="FILE",
    help="Also draw it: a file .svg, .png, .html or .json (Vega-Lite), or - for the terminal.",
)
def command(
    models: tuple[str, ...],
    clusters: tuple[str, ...],
    sets: tuple[str, ...],
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
    from knee.api.scale import scale
    from knee.cli.overrides import parse_sets
    from knee.cli.render.scale import print_answer

    if plot is not None:
        _check_plot(plot, as_json)
    sizes = {name: value for name, value in options.items() if name not in PLAN}
    answer = scale(
        _listed(models),
        cluster=_listed(clusters) or None,
        overrides=parse_sets(sets),
        progress=Patience(),
        **sizes,
        **plan_of(options),
    )
    if as_json:
        import json

        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    else:
        print_answer(answer)
    if plot is not None:
        _draw(answer, plot)
    answer.check_usable()


def _listed(texts: Sequence[str]) -> list[str]:
    """Each name once, in order; commas separate names."""
    return list(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))


def _check_plot(plot: str, as_json: bool) -> None:
    from knee.figures.vega import check_picture

    if plot != "-":
        check_picture(plot, hint="for example --plot scale.svg, or --plot - for the terminal")
    elif as_json:
        hint = "give --plot a file, or leave one out"
        raise InputError("--plot - draws on stdout, where --json is", hint=hint, code="contradiction", field="plot")


def _draw(answer: Scaling, plot: str) -> None:
    from knee.figures.scale_chart import bars

    if not answer.series():
        return
    if plot == "-":
        click.echo("\n".join(bars(answer.series())))
        return
    answer.plot(plot)
    click.echo(f"wrote {plot}", err=True)
