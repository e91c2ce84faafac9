"""``knee sweep``: a grid of real runs on this machine, on hosts, or on a Slurm cluster."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned, Word
from knee.cli.plan_options import option
from knee.errors import Incomplete, InputError
from knee.signals import BY_SIGNAL

if TYPE_CHECKING:
    from knee.launch.run_status import Status
    from knee.launch.site import Site
    from knee.launch.sweep_folder import Sweep, SweepRun

LAUNCHERS = ("local", "torchrun", "slurm")
RUN = "run"
DIR = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")


class Sweeps(click.Group):
    """A group whose first word may be a grid: then it is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``knee sweep fig6 ...`` is ``knee sweep run fig6 ...``."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
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
    default=3,
    show_default=True,
    metavar="N",
    help="Steps under the profiler after the measured ones; 0 for none.",
)
@option(
    "--device",
    section="Runs",
    type=Word(("cuda", "cpu")),
    help="The processor where the cluster is one, the GPUs elsewhere, if left out.",
)
@option(
    "--timeout",
    "timeout_s",
    section="Runs",
    type=float,
    default=600.0,
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
@option(
    "--site",
    "site_file",
    section="Site",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.toml",
    help="What follows here, as a file: partition, account, time, setup, env ... The command line goes first.",
)
@option("--partition", section="Site", metavar="NAME", help="Of Slurm.")
@option("--account", section="Site", metavar="NAME", help="Of Slurm.")
@option("--qos", section="Site", metavar="NAME", help="Of Slurm.")
@option(
    "--time",
    "time",
    section="Site",
    metavar="TIME",
    help="Wall clock of a job, as Slurm takes it; of a run without Slurm.",
)
@option("--exclusive", section="Site", is_flag=True, help="Whole nodes.")
@option("--exclude", section="Site", metavar="NODES", help="Nodes not to use.")
@option(
    "--gpus-per-node",
    section="Site",
    type=int,
    metavar="N",
    help="Processes a node; as many as the cluster's nodes have GPUs if left out.",
)
@option("--cpus-per-node", section="Site", type=int, metavar="N", help="Cores to ask Slurm for.")
@option(
    "--max-queued",
    section="Site",
    type=int,
    metavar="N",
    help="Jobs in the queue at once; the rest waits for the next call, or for --wait.",
)
@option("--max-running", section="Site", type=int, metavar="N", help="Jobs of this sweep that run at once.")
@option("--hosts", section="Site", metavar="A,B,...", help="For torchrun: names or addresses; ranks meet on the first.")
@option("--via", section="Site", metavar="COMMAND", help='What runs a command on a host, "ssh {host}" if left out.')
@option("--container", section="Site", metavar="IMAGE", help="Ranks run inside of it.")
@option(
    "--container-runtime",
    section="Site",
    type=Word(("apptainer", "singularity", "pyxis")),
    help="What opens the image; apptainer if left out. pyxis is Slurm's.",
)
@option(
    "--setup",
    section="Site",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Shell commands before each run: modules, limits, a virtual environment. --env goes on top. A run whose "
    "set-up fails does not start.",
)
@option(
    "--env",
    "env",
    section="Site",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of all ranks. Values are kept in DIR/env.sh alone, which only its owner can read. May be repeated.",
)
@option(
    "--python",
    section="Site",
    metavar="PATH",
    help="The nodes' interpreter, with knee's requirements. If left out: the python3 that --setup puts into the "
    "PATH, if it does; this one. In a container: its own, python3 if left out.",
)
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
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
    from knee.cli.sweep_prepare import (
        check_options,
        check_same,
        need_launcher,
        planned_of,
        prepare,
        program_of,
        site_from,
        sweep_of,
        tell_plan,
        wanted_of,
    )
    from knee.launch.sweep_folder import held

    check_options(options)
    if any(ord(letter) < 32 for letter in str(out.resolve())):
        raise InputError(f"--out {str(out)!r} has a line break in it", hint="name another folder")
    options["program"] = program_of(options["program"])
    site = site_from(options)
    wanted = wanted_of(grid, options["sets"], list(command.commands))
    if not options["dry_run"]:
        need_launcher(site, options)
    planned = planned_of(wanted, site, options)
    sweep = sweep_of(grid, out.resolve(), planned, site, options)
    tell_plan(sweep, options)
    if options["dry_run"]:
        check_same(sweep)
        return
    with held(sweep.folder):
        prepare(sweep, planned, site)
        _go_on(sweep, site, as_json=options["as_json"], wait=options["wait"])


@command.command("status")
@DIR
@click.option("--watch", is_flag=True, help="Show it again and again, until all runs have ended.")
@JSON
def show_status(folder: Path, watch: bool, as_json: bool) -> None:
    """How the runs of a sweep stand: a table, and the GPU-hours and energy spent so far."""
    from knee.cli.render.sweep import as_data, print_status, watched
    from knee.launch.sweep_folder import read_sweep
    from knee.sweeps.control import statuses_now

    sweep = read_sweep(folder.resolve())
    if watch and as_json:
        raise InputError("--watch shows a table again and again, and --json is printed once", hint="leave one out")
    if watch:
        watched(sweep)
        return
    statuses = statuses_now(sweep)
    if as_json:
        click.echo(json.dumps(as_data(sweep, statuses), indent=2))
    else:
        print_status(sweep, statuses)


@command.command("cancel")
@DIR
def cancel(folder: Path) -> None:
    """End the runs of a sweep that run or wait. `knee sweep` on the folder starts them again."""
    from knee.launch.sweep_folder import read_sweep
    from knee.sweeps.control import cancel_all

    sweep = read_sweep(folder.resolve())
    running, waiting = cancel_all(sweep)
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
    from knee.launch.environment import site_kept
    from knee.launch.sweep_folder import held, read_sweep
    from knee.sweeps.control import put_back

    sweep = read_sweep(folder.resolve())
    names = _states(states)
    known = {entry.id for entry in sweep.entries}
    unknown = [name for name in ids if name not in known]
    if unknown:
        from knee.cli import nearest

        raise InputError(
            f"the sweep has no run {unknown[0]!r}", hint=nearest(unknown[0], [entry.id for entry in sweep.entries])
        )
    site = site_kept(sweep.folder, sweep.options.get("site", {}))
    with held(sweep.folder):
        count = put_back(sweep, names, ids)
        click.echo(f"{count} run{'s' if count != 1 else ''} to start again", err=True)
        if count:
            _go_on(sweep, site, as_json=as_json, wait=wait, only=frozenset(ids) or None)
        elif as_json:
            from knee.cli.render.sweep import as_data
            from knee.sweeps.control import statuses_now

            click.echo(json.dumps(as_data(sweep, statuses_now(sweep)), indent=2))


def _states(text: str) -> list[str]:
    """States of runs that can be tried again."""
    from knee.cli import nearest
    from knee.launch.run_status import STATES

    able = [state for state in STATES if state not in ("pending", "running")]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name in STATES and name not in able:
            raise InputError(
                f"--status {name}: such runs have not ended, and are not to be tried again",
                hint="`knee sweep GRID --out DIR` goes on with what is pending; `knee sweep cancel` ends what runs",
            )
    wrong = [name for name in names if name not in able]
    if wrong or not names:
        raise InputError(
            f"--status {text!r} is not one of {', '.join(able)}", hint=nearest(wrong[0], able) if wrong else None
        )
    return names


def _go_on(sweep: Sweep, site: Site, *, as_json: bool, wait: bool, only: frozenset[str] | None = None) -> None:
    """Start what is missing, tell how it goes, and how it stands. ``only``: of these runs."""
    from knee.cli.render.sweep import as_data, print_status, said
    from knee.sweeps.control import statuses_now

    options = sweep.options
    numbers = {entry.id: number for number, entry in enumerate(sweep.entries, start=1)}

    def tell(entry: SweepRun, status: Status) -> None:
        click.echo(said(numbers[entry.id], len(numbers), entry, status), err=True)

    number = None
    if sweep.launcher == "slurm":
        from knee.sweeps.slurm import go_on_slurm

        go_on_slurm(sweep, site, wait=wait, tell=lambda words: click.echo(words, err=True), only=only)
    else:
        from knee.sweeps.local import go_on

        number = go_on(
            sweep,
            site,
            timeout_s=options["timeout_s"],
            program=options["program"],
            until_knee=options["until_knee"],
            tell=tell,
            only=only,
        )
    statuses = statuses_now(sweep)
    if as_json:
        click.echo(json.dumps(as_data(sweep, statuses), indent=2))
    else:
        print_status(sweep, statuses)
    if number is not None:
        click.echo("interrupted: the same command goes on", err=True)
        sys.exit(BY_SIGNAL + number)
    refused = {entry.id for entry in sweep.entries if entry.refused}
    bad = [
        status
        for name, status in statuses.items()
        if status.over and status.state != "done" and status.cause != "knee" and name not in refused
    ]
    if bad:
        states = ",".join(sorted({status.state for status in bad}))
        raise Incomplete(
            f"{len(bad):,} of {len(statuses):,} runs did not end well: {bad[0].words}",
            hint=f"the table has each; `knee sweep retry {shlex.quote(str(sweep.folder))} --status "
            f"{states}` starts them again",
        )
