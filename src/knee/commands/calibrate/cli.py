"""``knee calibrate``: a user's own runs -> a software profile."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from knee.commands.options.output import print_result, say
from knee.commands.options.sections import PATH, options
from knee.specs.defaults import HOLD_OUT_FRAC


@click.command("calibrate")
@click.argument("files", nargs=-1, metavar="RUNS...", type=click.Path(path_type=Path, allow_dash=True))
@options(
    "Options",
    {
        ("-o --out PROFILE.toml", PATH): "Write the profile to this file; without it, the profile is only shown.",
        ("--profile NAME", str): "Profile to start from: a name from `knee catalog`, or a TOML file; default: the "
        "profile that fits the runs' software stack.",
        ("--cluster NAME", str): "Cluster of all runs: a name from `knee catalog`, or a TOML file such as the output "
        "of `knee probe`; default: what each run states. A row's own node size and network rate still apply.",
        ("--only NAMES", (str,)): "Fit only these parameters, for example launch_s,gemm_scale. May be repeated.",
        ("--fix NAMES", (str,)): "Do not fit these parameters. May be repeated.",
        ("--hold-out FRAC", float, HOLD_OUT_FRAC): "Share of the runs that are held out of a first fit to test it; 0 "
        "means none.",
        ("--anyway", bool): "Keep the fitted values even if they do not improve the predictions of held-out runs.",
        ("--suggest", bool): "Also suggest the three runs that would reduce the uncertainty most.",
        ("--json as_json", bool): "Print JSON; the name of each key ends in its unit.",
    },
)
def command(files: tuple[Path, ...], out: Path | None, as_json: bool, **options: Any) -> None:
    """Fit a software profile to your own measured RUNS, and report which parameters the runs determine.

    RUNS are files or folders, in any combination: CSV files as for `knee validate`, one training run per row; JSON
    records of knee, in the format of `knee simulate --json`, with the measured step_s, tokens_per_s or memory_bytes;
    readings of `knee probe steps`; folders of `knee sweep` or `knee train`. Runs that ended out of memory also count:
    if a profile predicts that such a run fits, the predicted free memory counts as its error.

    All runs should use one software stack. Models, GPUs, plans and kernels may differ: each run keeps its own kernels,
    and all runs share the fitted values. Each parameter starts at the profile's value and moves only as far as the
    runs support, within the range known from other stacks. Parameters that the runs do not determine keep their values
    and are not written.

    With 8 or more runs, knee tests the fit on runs that were held out: one at a time, or, from 24 runs on, a share of
    them, where all runs of one model and GPU count are held out together. If the held-out runs are not predicted
    better by more than one standard error, the profile's own values are kept. With fewer than 8 runs there is no such
    test.

    \b
        knee calibrate runs.csv -o mine.toml
        knee simulate llama2-7b --cluster dgx-h100 --gpus 256 --local-batch 2 --profile mine.toml
    """
    from knee.commands.calibrate.api import NothingUsable, calibrate
    from knee.commands.calibrate.text import print_profile

    try:
        answer = calibrate(files, out=out, progress=lambda sentence, *_: say(sentence), **options)
    except NothingUsable as error:
        if as_json:
            click.echo(json.dumps(error.to_dict(), indent=2))
        raise
    print_result(answer, as_json, print_profile)
    if out is not None and not as_json:
        say(f"try: knee simulate llama2-7b --cluster dgx-h100 --gpus 8 --local-batch 2 --profile {quote(str(out))}")
