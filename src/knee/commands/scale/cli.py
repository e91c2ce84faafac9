"""``knee scale``: what more GPUs bring, and where adding GPUs stops paying off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from knee.base.errors import InputError
from knee.commands.options.job_options import flop_convention, job_options, training, wide
from knee.commands.options.output import print_result, say
from knee.commands.options.plan_options import plan_options
from knee.commands.options.sections import Sectioned, Word, as_json, option, options
from knee.show.terminal.progress_bar import Patience
from knee.specs.choices import OBJECTIVES
from knee.specs.defaults import KEEP_FRAC, THRESHOLD


@click.command("scale", cls=Sectioned)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@options(
    "Job",
    {
        ("--cluster clusters NAME", (str,)): "Cluster: a name from `knee catalog`, or the path of a TOML file. May be "
        "repeated, or be a list such as dgx-a100,dgx-h100.",
        ("--gpus COUNTS", str): "Numbers of GPUs: 8..2048 (doublings), 8,16,24 (a list), or both.",
    },
)
@job_options(
    "local_batch global_batch seq_len profile overrides",
    local_batch="Weak scaling: sequences per step divided by the number of GPUs; may be a fraction.",
    global_batch="Strong scaling: sequences per step over all GPUs, the same at every GPU count.",
)
@options(
    "Job",
    {
        ("--best", bool): "Search for the best plan at every GPU count. Plan options that you give stay fixed.",
        ("--objective", Word(OBJECTIVES), OBJECTIVES[0]): "What --best optimizes.",
    },
)
@options(
    "Knee",
    {
        ("--threshold X", float, THRESHOLD): "Smallest speed-up per doubling of the GPUs that counts as paying off; "
        "above 1, at most 2.",
        ("--keep FRAC", float, KEEP_FRAC): "Share of the highest tokens per joule (or per dollar) that must remain at "
        "the energy (or cost) knee.",
    },
)
@training
@plan_options
@flop_convention
@as_json()
@wide
@option(
    "--plot FILE",
    str,
    "Also draw a chart: a .svg, .png, .html or .json (Vega-Lite) file, or - for the terminal.",
    section="Output",
)
def command(
    models: tuple[str, ...], clusters: tuple[str, ...], as_json: bool, plot: str | None, **options: Any
) -> None:
    """Show what more GPUs bring, and where adding GPUs stops paying off.

    MODEL is the same as for `knee simulate`. Several models or clusters are compared. With --local-batch the batch
    grows with the number of GPUs (weak scaling). With --global-batch it stays the same (strong scaling). All GPU
    counts use the same plan, and data parallelism fills the GPUs; with --best, each count uses its own best plan. If
    the plan is impossible or does not fit at a count, the table shows the reason.

    \b
    The knee is the largest GPU count that still pays off:
      throughput  max N2: (T(N2) / T(N1))^(1 / log2(N2 / N1)) >= threshold
                  T is tokens/s; N1 is the count before N2. With a threshold of 1.5, doubling the
                  GPUs must give at least 1.5 times the tokens/s.
      energy      max N: E(N) >= keep * max E        E is tokens/J
      cost        max N: C(N) >= keep * max C        C is tokens/USD

    The range of the knee comes from pairs of published runs that differ only in GPUs and batch: in 90% of these pairs,
    the error of the predicted speed-up lay within the band used here.

    If nothing fits at any count, knee suggests what would fit and exits with code 3.
    """
    from knee.commands.scale.api import scale
    from knee.commands.scale.chart import bars
    from knee.commands.scale.text import print_answer
    from knee.show.figures.vega import check_picture

    if plot is not None and plot != "-":
        check_picture(plot, hint="for example --plot scale.svg, or --plot - for the terminal")
    elif plot is not None and as_json:
        hint = "give --plot a file, or leave one out"
        raise InputError("--plot - draws on stdout, where --json is", hint=hint, code="contradiction", field="plot")
    answer = scale(_split_names(models), cluster=_split_names(clusters) or None, progress=Patience(), **options)
    print_result(answer, as_json, print_answer)
    series = answer.series() if plot is not None else []
    if series and plot == "-":
        click.echo("\n".join(bars(series)))
    elif series and plot is not None:
        answer.plot(plot)
        say(f"wrote {plot}")
    answer.check_usable()


def _split_names(texts: Sequence[str]) -> list[str]:
    """Each name once, in order; commas separate names."""
    return list(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))
