"""``knee sweep``: a grid of real runs on this machine, on hosts, or on a Slurm cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.base.errors import InputError
from knee.base.signals import BY_SIGNAL
from knee.commands.main import unknown_command
from knee.commands.options.output import print_result, say
from knee.commands.options.sections import KEY_VALUE, PATH, RunsByDefault, Sectioned, Word, as_json, option, options
from knee.commands.options.sweep_options import program_words, run_options, site_options, take_site
from knee.specs.catalog import nearest
from knee.specs.choices import LAUNCHERS

if TYPE_CHECKING:
    from knee.commands.sweep.result import SweepStatus
    from knee.training.launch.run_status import Status
    from knee.training.launch.sweep_folder import SweepRun

MANY = 500
"""Runs above which a bar is shown while they are checked and written."""
DIR = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
JSON = option("--json as_json", bool, "Print JSON; the name of each key ends in its unit.")


class Sweeps(RunsByDefault):
    """A group whose first word may be a grid."""

    def check_first(self, word: str) -> None:
        """Refuse a word that is neither a study nor a file, and is close to a subcommand."""
        from knee.commands.study.study_file import study_names

        names = list(self.commands)
        if not word.endswith(".toml") and (close := nearest(word, names)) and word not in study_names():
            raise unknown_command(word, names, close)


@click.group("sweep", cls=Sweeps, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Train every point of a grid on real hardware: this machine, other hosts, or a Slurm cluster.

    \b
        knee sweep fig6 --launcher slurm --partition gpu --time 0:30:00 --out DIR
        knee sweep grid.toml --out DIR            # run it again to start the missing runs
        knee sweep status DIR --watch
        knee sweep cancel DIR
        knee sweep retry DIR --status failed

    `knee sweep GRID` is short for `knee sweep run GRID`; see `knee sweep run --help` for the options. DIR contains one
    folder per run with its job (job.toml), status.json, the logs of each rank, and record.json. `knee calibrate DIR`,
    `knee study run --records DIR` and `knee compare` read these folders.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("run", cls=Sectioned)
@click.argument("grid", metavar="STUDY|GRID.toml")
@options(
    "Sweep",
    {
        ("--out DIR", PATH, ...): "Folder of the sweep. If it already contains this sweep, only the missing runs are "
        "started.",
        ("--launcher", Word(LAUNCHERS), "local"): "local: run one after another on this machine. torchrun: run on "
        "--hosts. slurm: submit jobs with sbatch; each job starts torchrun on its nodes with srun.",
        ("--set overrides KEY=VALUES", (KEY_VALUE,)): "Override a key of the grid: model, cluster, profile, gpus, "
        "local_batch, global_batch or seq_len. Separate values by commas. May be repeated.",
        ("--max-gpu-hours H", float): "Refuse to start if the runs that remain are estimated to take more GPU-hours "
        "than this.",
        ("--until-knee", bool): "Start with the fewest GPUs, and stop each series once the measured speed-up of a "
        "doubling is below 1.5x with 95% confidence.",
        ("--anyway", bool): "Also start runs that do not fit in memory according to the simulator. Runs that end out "
        "of memory help to calibrate the memory model.",
        ("--pack N", int, 1): "Slurm only: number of runs per job; they share one allocation and run one after "
        "another.",
        ("--wait", bool): "Slurm only: wait until all runs have ended, and submit the jobs that did not fit into the "
        "queue at first.",
        ("--dry-run", bool): "Only check and estimate the runs; start and write nothing.",
    },
)
@option("--steps N", int, "Number of steps per run; default: the default of `knee train`.", section="Runs")
@run_options
@option(
    "--checkpoint-every N",
    int,
    "Save a checkpoint every N steps. A run that is started again goes on from its newest one. 0 means none.",
    default=0,
    section="Runs",
)
@site_options
@as_json()
def run(grid: str, out: Path, **options: Any) -> None:
    """Expand a grid into runs, check and estimate all of them, and start the missing ones.

    GRID is a name from `knee study list`, or a TOML file with the same [[grid]] tables. A file with a single grid
    needs no table header:

    \b
        model = "llama2-7b"
        cluster = "dgx-h100"
        profile = "knee"
        gpus = [8, 16, 32]
        local_batch = 2
        plan = { tp = [1, 2, 4] }

    knee first checks that each plan is valid, fits in memory by simulation, and fills whole nodes. Runs that fail a
    check are listed with the reason and are not started. The simulator estimates GPU-hours, energy and cost from the
    steps plus one minute of start-up per run. Cheap runs start first. If you repeat the command on the same folder, it
    restarts runs that were cancelled, were preempted or lost their node. It does not restart runs that failed; use
    `knee sweep retry` for those.
    """
    from knee.commands.sweep.api import prepare_sweep, run_sweep
    from knee.commands.sweep.text import print_plan
    from knee.show.terminal.progress_bar import Bars
    from knee.training.sweeps.checks import refuse_unread

    as_json, dry_run, wait = (options.pop(name) for name in ("as_json", "dry_run", "wait"))
    given = {name for name, value in options.items() if value and (name != "pack" or value > 1)}
    refuse_unread(options["launcher"], given | ({"wait"} if wait else set()))
    site, program = take_site(options), program_words(options.pop("program"))
    with Bars(least=MANY) as bars:
        plan = prepare_sweep(
            grid,
            out=out,
            site=site,
            program=program,
            check_launcher=not dry_run,
            command=["knee", *sys.argv[1:]],
            progress=bars,
            **options,
        )
    if plan.duplicates:
        say(f"{plan.duplicates:,} point{'s repeat' if plan.duplicates > 1 else ' repeats'} another run")
    if not as_json:
        print_plan(plan, whole=dry_run)
    elif dry_run:
        click.echo(json.dumps(plan.to_dict(), indent=2))
    if dry_run:
        plan.check()
        return
    with Bars(least=MANY) as bars:
        answer = run_sweep(plan, wait=wait, on_run=_print_run, say=say, progress=bars)
    _finish(answer, as_json=as_json)


@command.command("status")
@DIR
@option("--watch", bool, "Refresh the table until all runs have ended.")
@JSON
def show_status(folder: Path, watch: bool, as_json: bool) -> None:
    """Show the state of the runs of a sweep, and the GPU-hours and energy used so far."""
    from knee.commands.sweep.api import sweep_status
    from knee.commands.sweep.text import watch_status

    if watch and as_json:
        text = "--watch and --json cannot be combined: --json prints once"
        raise InputError(text, hint="leave one out", code="contradiction", field="watch")
    if watch:
        watch_status(lambda: sweep_status(folder))
    else:
        _print_answer(sweep_status(folder), as_json=as_json)


@command.command("cancel")
@DIR
def cancel(folder: Path) -> None:
    """Stop all running and waiting runs of a sweep. `knee sweep run` on the same folder starts them again."""
    from knee.commands.sweep.api import cancel_sweep

    running, waiting = cancel_sweep(folder)
    say(f"{running} running and {waiting} waiting runs were cancelled")


@command.command("retry")
@DIR
@option(
    "--status states STATES",
    str,
    "States of the runs to restart, separated by commas: failed, oom, timeout, cancelled, done.",
    default="failed",
)
@option("--run ids ID", str, "Restart only this run. May be repeated.", multiple=True)
@option("--wait", bool, "Slurm only: wait until all runs have ended.")
@JSON
def retry(folder: Path, states: str, ids: tuple[str, ...], wait: bool, as_json: bool) -> None:
    """Restart runs that have ended, with the options that the sweep was started with."""
    from knee.commands.sweep.api import retry_sweep

    answer = retry_sweep(
        folder,
        states=[name.strip() for name in states.split(",") if name.strip()],
        runs=ids,
        wait=wait,
        on_requeued=lambda count: say(f"{count} run{'s' if count != 1 else ''} to restart"),
        on_run=_print_run,
        say=say,
    )
    if answer.requeued:
        _finish(answer, as_json=as_json)
    elif as_json:
        _print_answer(answer, as_json=True)


def _print_run(number: int, count: int, entry: SweepRun, status: Status) -> None:
    from knee.commands.sweep.text import run_line

    say(run_line(number, count, entry, status))


def _print_answer(answer: SweepStatus, *, as_json: bool) -> None:
    from knee.commands.sweep.text import print_status

    print_result(answer, as_json, print_status)


def _finish(answer: SweepStatus, *, as_json: bool) -> None:
    _print_answer(answer, as_json=as_json)
    if answer.signal is not None:
        say("interrupted: the same command continues the sweep")
        sys.exit(BY_SIGNAL + answer.signal)
    answer.check_done()
