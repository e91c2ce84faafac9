"""``knee tune``: the best plan of a real cluster, found in a few short runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from knee.base.errors import InputError
from knee.base.signals import BY_SIGNAL
from knee.commands.options.job_options import job_options
from knee.commands.options.output import check_targets, print_result, say, write_page
from knee.commands.options.plan_options import knob_options, space_limits
from knee.commands.options.sections import RunsByDefault, Sectioned, Word, as_json, option, options
from knee.commands.options.sweep_options import program_words, run_options, site_options, take_site
from knee.show.terminal.progress_bar import Patience
from knee.specs.choices import LAUNCHERS

if TYPE_CHECKING:
    from knee.commands.tune.result import Tuned
    from knee.training.launch.run_status import Status
    from knee.training.launch.sweep_folder import SweepRun

USUAL_KNOBS = ("micro_batch", "recompute", "prefetch", "compile")
ALL_KNOBS = (*USUAL_KNOBS, "reduce_dtype", "precision", "nccl")
REPLAY_OPTIONS = ("replay", "within", "least_plans", "as_json")
"""Options that --replay reads; the others belong to runs."""


@click.group("tune", cls=RunsByDefault, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Find the fastest plan of a job on the real cluster with a few short runs.

    \b
        knee tune llama2-7b --cluster dgx-h100 --gpus 64 --global-batch 128 --launcher slurm --out DIR
        knee tune status DIR
        knee tune --replay published              # how many runs it needs on published sweeps

    `knee tune JOB` is short for `knee tune run JOB`; see `knee tune run --help` for the options. DIR is the folder of a
    sweep: `knee sweep status DIR` and `knee calibrate DIR` read it, too. If the command is interrupted, repeat it.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("run", cls=Sectioned)
@click.argument("model", required=False, metavar="JOB")
@job_options(
    "cluster gpus global_batch local_batch seq_len",
    profile="Software profile: a name from `knee catalog`, or the path of a TOML file; default: `knee` if knee's "
    "trainer runs on GPUs, else `eager`.",
    overrides="Override one value of the model, cluster or profile. May be repeated.",
)
@knob_options(("precision", "reduce_dtype", "state_dtype"), section="Job")
@space_limits
@options(
    "Tuning",
    {
        ("--out DIR", str): "Folder of the tuning. If it already contains this tuning, the command continues it.",
        ("--within SHARE", str, "2%"): "Stop when no untried plan is expected to be faster than the best one by more "
        "than this; 0 runs every candidate.",
        ("--max-gpu-hours H", float): "Stop before a run that would take more GPU-hours than this in total, by "
        "estimate.",
        ("--max-runs N", int): "Stop after this many runs.",
        ("--at-once N", int, 1): "Number of runs side by side, if there is room: each on its own GPUs, hosts or Slurm "
        "jobs.",
        ("--smaller-gpus N", int): "Run each plan on this many GPUs, with fewer replicas, and transfer the result to "
        "--gpus.",
        ("--smaller-layers L", int): "Run each plan with this many layers, and transfer the result to the whole model.",
        ("--knobs NAMES", str, ",".join(USUAL_KNOBS)): "Settings to vary after the plan, one at a time, separated by "
        "commas: micro_batch, recompute, prefetch, compile, reduce_dtype and precision (bf16 or fp8; both change the "
        "numerics), nccl (a few variables of NCCL); none skips this stage.",
        ("--launcher", Word(LAUNCHERS), "local"): "local: run on this machine. torchrun: run on --hosts. slurm: "
        "submit jobs with sbatch and wait for them.",
        ("--replay RUNS.csv", str): "Start nothing: play the loop on measured runs, as if each were a run to be made. "
        "A CSV file as for `knee validate`, or `published` for the runs that knee ships.",
        ("--least-plans N", int): "Play only jobs with at least this many measured plans; default: 8. Only with "
        "--replay.",
    },
)
@option("--steps N", int, "Steps per run; default: 60 on GPUs, 30 on a CPU.", section="Runs")
@run_options
@site_options
@option("--html FILE", str, "Also write an HTML page with the search in pictures.", section="Output")
@as_json()
@click.pass_context
def run(
    ctx: click.Context,
    /,
    model: str | None,
    replay: str | None,
    least_plans: int | None,
    html: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the fastest plan of JOB on the real cluster with a few short runs.

    JOB is a model or a job file, as for `knee plan`. The search lists the best plans by simulation. Each run trains one
    of them for some steps. The plan with the largest expected gain per GPU-hour comes next. A run tells about all plans
    that share a mechanism with it: its throughput corrects their predictions, and a run out of memory makes similar
    plans less likely to fit. A run that loses its node is repeated and tells nothing about its plan.

    The answer is the fastest measured plan, and a bound: with 90% probability, no untried candidate is faster by more.
    """
    check_targets(html=html)
    options["within"] = _share_of(options["within"])
    if replay is not None:
        _refuse_unplayed(ctx, replay)
        _replay(replay, within=options["within"], least_plans=least_plans, as_json=as_json)
        return
    if least_plans is not None:
        text = "--least-plans applies only to --replay"
        raise InputError(text, hint="leave it out", code="contradiction", field="least_plans")
    missing = [name for name in ("model", "out") if (model if name == "model" else options[name]) is None]
    if missing:
        what = "JOB" if missing[0] == "model" else "--out"
        hint = "knee tune llama2-7b --cluster dgx-h100 --gpus 64 --global-batch 128 --out tuned"
        raise InputError(f"{what} is missing", hint=hint, code="missing-argument", field=missing[0])
    from knee.commands.tune.api import tune
    from knee.commands.tune.text import print_step, print_tuned
    from knee.training.sweeps.checks import refuse_unread

    refuse_unread(options["launcher"], {name for name, value in options.items() if value})
    assert model is not None
    site, program = take_site(options), program_words(options.pop("program"))
    answer = tune(
        model,
        site=site,
        program=program,
        knobs=_knobs(options.pop("knobs")),
        command=["knee", *sys.argv[1:]],
        on_run=_print_run,
        on_step=print_step,
        say=say,
        progress=Patience(),
        **options,
    )
    print_result(answer, as_json, print_tuned, indent=1)
    write_page(answer, html)
    _finish(answer)


@command.command("status")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@option("--html FILE", str, "Also write an HTML page with the search in pictures.")
@as_json()
def show_status(folder: Path, html: str | None, as_json: bool) -> None:
    """Show what a tuning knows, what runs now, and what is next."""
    from knee.commands.tune.api import tune_status
    from knee.commands.tune.text import print_tuned

    check_targets(html=html)
    answer = tune_status(folder)
    print_result(answer, as_json, print_tuned, indent=1)
    write_page(answer, html)


def _refuse_unplayed(ctx: click.Context, file: str) -> None:
    for one in ctx.command.params:
        if one.name in REPLAY_OPTIONS or ctx.get_parameter_source(one.name or "") != ParameterSource.COMMANDLINE:
            continue
        word = "JOB" if isinstance(one, click.Argument) else one.opts[0]
        if isinstance(one, click.Argument) and ctx.params[one.name or ""] is None:
            continue
        text = f"--replay starts no run, so {word} cannot be used with it"
        raise InputError(text, hint=f"knee tune --replay {shlex.quote(file)}", code="contradiction", field="replay")


def _replay(file: str, *, within: float, least_plans: int | None, as_json: bool) -> None:
    from knee.commands.tune.replay import replay_tuning
    from knee.commands.tune.text import print_replay
    from knee.show.terminal.progress_bar import Bars

    more = {} if least_plans is None else {"least_plans": least_plans}
    with Bars(least=0) as bars:
        answer = replay_tuning(file, within=within, progress=bars, **more)
    print_result(answer, as_json, print_replay, indent=1)


def _share_of(text: str) -> float:
    """A share, as 0.02 or 2%."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        hint = "use --within 2% or --within 0.02"
        raise InputError(f"--within {text!r} is not a share", hint=hint, code="invalid-value", field="within") from None


def _knobs(text: str) -> list[Any]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return []
    wrong = [name for name in names if name not in ALL_KNOBS]
    if wrong or not names:
        raise InputError(
            f"--knobs {text!r}: {wrong[0] if wrong else ''!r} is not one of {', '.join(ALL_KNOBS)}",
            hint="--knobs none varies no setting",
            code="unknown-choice",
            field="knobs",
        )
    return names


def _print_run(entry: SweepRun, status: Status) -> None:
    from knee.commands.tune.text import run_words

    say(run_words(entry, status))


def _finish(answer: Tuned) -> None:
    if answer.signal is not None:
        say("interrupted: the same command continues the tuning")
        sys.exit(BY_SIGNAL + answer.signal)
    answer.check_found()
