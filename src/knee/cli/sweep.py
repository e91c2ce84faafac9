"""``knee sweep``: a grid of real runs on this machine, on hosts, or on a Slurm cluster."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli import nearest, unknown_command
from knee.cli.options import job_options
from knee.cli.options.plan_options import option
from knee.cli.options.sections import Sectioned, Word
from knee.cli.options.sweep_options import site_options, take_site
from knee.errors import InputError
from knee.signals import BY_SIGNAL
from knee.specs.choices import DEVICES, LAUNCHERS
from knee.specs.defaults import TIMEOUT_S, TRACE_STEPS

if TYPE_CHECKING:
    from knee.launch.run_status import Status
    from knee.launch.sweep_folder import SweepRun
    from knee.results.sweep_result import SweepStatus

MANY = 500
"""Runs above which a bar is shown while they are checked and written."""
RUN = "run"
DIR = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")


class Sweeps(click.Group):
    """A group whose first word may be a grid: then it is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``knee sweep fig6 ...`` is ``knee sweep run fig6 ...``."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            _refuse_misspelt_command(args[0])
            args = [RUN, *args]
        return super().parse_args(ctx, args)


@click.group("sweep", cls=Sweeps, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Train every point of a grid for real: on this machine, on hosts, or on a Slurm cluster.

    \b
        knee sweep fig6 --launcher slurm --partition gpu --time 0:30:00 --out DIR
        knee sweep grid.toml --out DIR            # the same again goes on with what is missing
        knee sweep status DIR --watch
        knee sweep cancel DIR
        knee sweep retry DIR --status failed

    `knee sweep GRID` is `knee sweep run GRID`; `knee sweep run --help` has its options. All state is in DIR, a folder a
    run: spec (job.toml), status.json, logs of each rank, record.json. `knee calibrate DIR`, `knee study run --records
    DIR` and `knee compare` take it as it is.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command(RUN, cls=Sectioned)
@click.argument("grid", metavar="STUDY|GRID.toml")
@option(
    "--out",
    section="Sweep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="The sweep's folder; one that has this sweep already goes on with what is missing.",
)
@option(
    "--launcher",
    section="Sweep",
    type=Word(LAUNCHERS),
    default="local",
    show_default=True,
    help="local: one run after another on this machine. torchrun: on --hosts. slurm: jobs for sbatch, each with "
    "srun and torchrun a node.",
)
@option(
    "--set",
    "sets",
    section="Sweep",
    multiple=True,
    metavar="KEY=VALUES",
    help="Change the grid: model, cluster, profile, gpus, local_batch, global_batch or seq_len, values by commas. "
    "May be repeated.",
)
@option(
    "--max-gpu-hours",
    section="Sweep",
    type=float,
    metavar="H",
    help="Refuse a sweep whose runs that are still to be started are estimated to take more.",
)
@option(
    "--until-knee",
    section="Sweep",
    is_flag=True,
    help="Few GPUs first; a series ends once the measured return of a doubling is below 1.5x at 95%.",
)
@option(
    "--anyway",
    section="Sweep",
    is_flag=True,
    help="Start also what does not fit by simulation: runs out of memory are evidence for the memory model.",
)
@option(
    "--pack",
    section="Sweep",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="With Slurm: runs a job; they share an allocation, one after another.",
)
@option(
    "--wait",
    section="Sweep",
    is_flag=True,
    help="With Slurm: stay until all runs have ended, and submit what the queue did not take at first.",
)
@option("--dry-run", section="Sweep", is_flag=True, help="Check and estimate; start and write nothing.")
@option("--steps", section="Runs", type=int, metavar="N", help="Steps of each run, if other than `knee train`'s own.")
@option("--warmup", section="Runs", type=int, metavar="N", help="First steps that are not measured.")
@option(
    "--trace-steps",
    section="Runs",
    type=int,
    default=TRACE_STEPS,
    show_default=True,
    metavar="N",
    help="Steps under the profiler after the measured ones; 0 for none.",
)
@option(
    "--device",
    section="Runs",
    type=Word(DEVICES),
    help="The processor where the cluster is one, the GPUs elsewhere, if left out.",
)
@option(
    "--timeout",
    "timeout_s",
    section="Runs",
    type=float,
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="A run of which nothing moves for so long is ended.",
)
@option(
    "--program",
    section="Runs",
    metavar="COMMAND",
    help="Start this instead of torchrun and the trainer, with the run's folder as its last word; it leaves a "
    "record.json there. Files that it names are looked up where this command is given.",
)
@site_options
@job_options.as_json()
def run(grid: str, out: Path, **options: Any) -> None:
    """Expand a grid into runs, check and estimate all of them, and start what is missing.

    GRID is a study of `knee study list`, or a TOML file with the same [[grid]] tables; a file of one grid needs no
    table:

    \b
        model = "llama2-7b"
        cluster = "dgx-h100"
        profile = "knee"
        gpus = [8, 16, 32]
        local_batch = 2
        plan = { tp = [1, 2, 4] }

    Every run is checked first: its plan, whether it fits by simulation, whether it fills nodes. What cannot be is
    listed with the reason and not started. GPU-hours, energy and cost are the simulator's: steps, and a minute's start
    for each run. Cheap runs come first. The command again on the same folder goes on: runs that were cancelled,
    preempted or lost their node are started again, runs that failed by themselves are not (`knee sweep retry`).
    """
    from knee.api.sweep import prepare_sweep, run_sweep
    from knee.cli.overrides import parse_sets
    from knee.cli.render.progress import Bars
    from knee.cli.render.sweep import print_plan
    from knee.sweeps.launchers import refuse_unread

    as_json, dry_run, wait = (options.pop(name) for name in ("as_json", "dry_run", "wait"))
    given = {name for name, value in options.items() if value and (name != "pack" or value > 1)}
    refuse_unread(options["launcher"], given | ({"wait"} if wait else set()))
    site, program = take_site(options), _words(options.pop("program"))
    with Bars(least=MANY) as bars:
        plan = prepare_sweep(
            grid,
            out=out,
            site=site,
            program=program,
            overrides=parse_sets(options.pop("sets")),
            check_launcher=not dry_run,
            command=["knee", *sys.argv[1:]],
            progress=bars,
            **options,
        )
    if plan.duplicates:
        click.echo(
            f"{plan.duplicates:,} point{'s are' if plan.duplicates > 1 else ' is'} the same run as another", err=True
        )
    if not as_json:
        print_plan(plan, whole=dry_run)
    elif dry_run:
        click.echo(json.dumps(plan.to_dict(), indent=2))
    if dry_run:
        plan.check()
        return
    with Bars(least=MANY) as bars:
        answer = run_sweep(plan, wait=wait, on_run=_print_run, say=_say, progress=bars)
    _finish(answer, as_json=as_json)


@command.command("status")
@DIR
@click.option("--watch", is_flag=True, help="Show it again and again, until all runs have ended.")
@JSON
def show_status(folder: Path, watch: bool, as_json: bool) -> None:
    """How the runs of a sweep stand: a table, and the GPU-hours and energy spent so far."""
    from knee.api.sweep import sweep_status
    from knee.cli.render.sweep import watch_status

    if watch and as_json:
        text = "--watch shows a table again and again, and --json is printed once"
        raise InputError(text, hint="leave one out", code="contradiction", field="watch")
    if watch:
        watch_status(lambda: sweep_status(folder))
    else:
        _print_answer(sweep_status(folder), as_json=as_json)


@command.command("cancel")
@DIR
def cancel(folder: Path) -> None:
    """End the runs of a sweep that run or wait. `knee sweep` on the folder starts them again."""
    from knee.api.sweep import cancel_sweep

    running, waiting = cancel_sweep(folder)
    click.echo(f"{running} running and {waiting} waiting runs are cancelled", err=True)


@command.command("retry")
@DIR
@click.option(
    "--status",
    "states",
    default="failed",
    show_default=True,
    metavar="STATES",
    help="Of which runs, by commas: failed, oom, timeout, cancelled, done.",
)
@click.option("--run", "ids", multiple=True, metavar="ID", help="Only this run. May be repeated.")
@click.option("--wait", is_flag=True, help="With Slurm: stay until all runs have ended.")
@JSON
def retry(folder: Path, states: str, ids: tuple[str, ...], wait: bool, as_json: bool) -> None:
    """Start runs again that have ended, with the options that the sweep was started with."""
    from knee.api.sweep import retry_sweep

    answer = retry_sweep(
        folder,
        states=[name.strip() for name in states.split(",") if name.strip()],
        runs=ids,
        wait=wait,
        on_requeued=lambda count: _say(f"{count} run{'s' if count != 1 else ''} to start again"),
        on_run=_print_run,
        say=_say,
    )
    if answer.requeued:
        _finish(answer, as_json=as_json)
    elif as_json:
        _print_answer(answer, as_json=True)


def _refuse_misspelt_command(word: str) -> None:
    """A first word that is neither a study nor a file may be a misspelt subcommand."""
    from knee.studies.study_file import study_names

    if not word.endswith(".toml") and (close := nearest(word, list(command.commands))) and word not in study_names():
        raise unknown_command(word, list(command.commands), close)


def _words(program: str | None) -> list[str]:
    """The words of --program."""
    if program is None:
        return []
    try:
        words = shlex.split(program)
    except ValueError as error:
        text, hint = (
            f"--program {program!r} cannot be taken apart: {str(error).lower()}",
            "quote it as a shell wants it",
        )
        raise InputError(text, hint=hint, code="invalid-value", field="program") from None
    if not words:
        raise InputError(
            "--program is empty", hint="name a command, or leave it out", code="missing-argument", field="program"
        )
    return words


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def _print_run(number: int, count: int, entry: SweepRun, status: Status) -> None:
    from knee.cli.render.sweep import run_line

    _say(run_line(number, count, entry, status))


def _print_answer(answer: SweepStatus, *, as_json: bool) -> None:
    from knee.cli.render.sweep import print_status

    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2))
    else:
        print_status(answer)


def _finish(answer: SweepStatus, *, as_json: bool) -> None:
    """Print how the sweep stands, and end with the code for it."""
    _print_answer(answer, as_json=as_json)
    if answer.signal is not None:
        _say("interrupted: the same command goes on")
        sys.exit(BY_SIGNAL + answer.signal)
    answer.check_done()
