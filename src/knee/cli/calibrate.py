"""``knee calibrate``: a user's own runs -> a software profile."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

import click

from knee.specs.defaults import HOLD_OUT_FRAC


@click.command("calibrate")
@click.argument("files", nargs=-1, metavar="RUNS...", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-o",
    "--out",
    metavar="PROFILE.toml",
    type=click.Path(path_type=Path),
    help="Write the profile here; if left out it is only shown.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Profile to start from, a name of `knee catalog` or a TOML file; what the runs tell if left out.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Cluster of all runs, a name of `knee catalog` or a TOML file, such as one of `knee probe`; what "
    "the runs tell if left out. Nodes and rates that a row states stay its own.",
)
@click.option(
    "--only",
    metavar="NAMES",
    multiple=True,
    help="Fit only these parameters, for example launch_s,gemm_scale. May be repeated.",
)
@click.option("--fix", metavar="NAMES", multiple=True, help="Leave these parameters as they are. May be repeated.")
@click.option(
    "--hold-out",
    metavar="FRAC",
    type=float,
    default=HOLD_OUT_FRAC,
    show_default=True,
    help="Share of the runs that a first fit does not see and is tried on; 0 is none.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Take the fitted values even where runs that were held back are predicted no better with them.",
)
@click.option("--suggest", is_flag=True, help="Also name the next three runs that would tell most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
def command(
    files: tuple[Path, ...],
    out: Path | None,
    profile: str | None,
    cluster: str | None,
    only: tuple[str, ...],
    fix: tuple[str, ...],
    hold_out: float,
    anyway: bool,
    suggest: bool,
    as_json: bool,
) -> None:
    """Fit a software profile on your own measured RUNS, and say what they can and cannot tell.

    RUNS are files of three kinds, in any mix: CSV as for `knee validate`, one training run a row; records of knee's
    own, as `knee simulate --json` prints them, one after another or in a list, with the step_s, tokens_per_s or
    memory_bytes that were measured; readings of `knee probe steps`. Or folders, of a `knee sweep` or a `knee train`.
    Runs that were out of memory count as well: what would let them fit is off by what it leaves free.

    All runs should be of one software stack; models, GPUs, plans and kernels (compiled, the attention) may differ:
    each run keeps the kernels that it states, and all share the fitted values. Each parameter starts from the
    profile's value and moves as far as the runs have evidence for, within what stacks are known to differ by. What
    they cannot determine stays, and is not written. From 8 runs on the fit is tried on runs that it does not see: each
    left out in turn, and from 24 on a share of them, all of one model on one number of GPUs. Where those are not
    predicted better by more than one standard error the profile's own values stay. With fewer than 8 runs nothing is
    checked.

    \b
        knee calibrate runs.csv -o mine.toml
        knee simulate llama2-7b --cluster dgx-h100 --gpus 256 --local-batch 2 --profile mine.toml
    """
    from knee.api.calibrate import NothingUsable, calibrate
    from knee.cli.render.calibrate import print_profile

    try:
        answer = calibrate(
            files,
            profile=profile,
            cluster=cluster,
            only=only,
            fix=fix,
            hold_out=hold_out,
            anyway=anyway,
            suggest=suggest,
            out=out,
            progress=lambda sentence, *_: click.echo(sentence, err=True),
        )
    except NothingUsable as error:
        if as_json:
            click.echo(json.dumps(error.to_dict(), indent=2))
        raise
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
        return
    print_profile(answer)
    if out is not None:
        click.echo(
            f"try: knee simulate llama2-7b --cluster dgx-h100 --gpus 8 --local-batch 2 --profile {quote(str(out))}",
            err=True,
        )
