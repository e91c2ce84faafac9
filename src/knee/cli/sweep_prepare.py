"""From what stands on the command line to a sweep that is checked, estimated, told, and written down."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from knee.errors import InputError

if TYPE_CHECKING:
    from knee.launch.site import Site
    from knee.launch.sweep_folder import Sweep
    from knee.specs import Job
    from knee.sweeps.preflight import Planned, Wanted


T = TypeVar("T")
MANY = 500
"""Runs above which a bar is shown while they are planned."""


def check_options(options: dict[str, Any]) -> None:
    """Refuse numbers that cannot be."""
    for name, least in (("steps", 1), ("warmup", 0), ("trace_steps", 0), ("pack", 1)):
        if options[name] is not None and options[name] < least:
            raise InputError(f"--{name.replace('_', '-')} is {options[name]}; it must be at least {least}")
    if not 0 < options["timeout_s"] <= 1e6:
        raise InputError(f"--timeout is {options['timeout_s']:g}; it must be positive and at most 1,000,000")
    most = options["max_gpu_hours"]
    if most is not None and not most >= 0:
        raise InputError(f"--max-gpu-hours is {most:g}; it {'cannot be negative' if most < 0 else 'must be a number'}")
    _check_launcher(options)


SLURMS = ("partition", "account", "qos", "exclusive", "exclude", "cpus_per_node", "max_queued", "max_running", "wait")


def _check_launcher(options: dict[str, Any]) -> None:
    """Refuse options that the launcher would leave unread; a site file may have them, for other launchers."""
    launcher = options["launcher"]
    given = [name for name in SLURMS if options[name]] + (["pack"] if options["pack"] != 1 else [])
    if given and launcher != "slurm":
        raise InputError(f"--{given[0].replace('_', '-')} is Slurm's", hint="add --launcher slurm")
    given = [name for name in ("hosts", "via") if options[name]]
    if given and launcher != "torchrun":
        raise InputError(f"--{given[0]} is torchrun's", hint="add --launcher torchrun")
    if options["gpus_per_node"] and launcher == "local":
        raise InputError(
            "--gpus-per-node is for nodes: all processes of --launcher local are on this machine", hint="leave it out"
        )


def program_of(text: str | None) -> list[str]:
    """The words of --program; files that it names are looked up here, because runs start in folders of their own."""
    from knee.launch.site import in_folder

    if text is None:
        return []
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"--program {text!r} cannot be taken apart: {str(error).lower()}", hint="quote it as a shell wants it"
        ) from None
    if not words:
        raise InputError("--program is empty", hint="name a command, or leave it out")
    return [in_folder(word, Path(), bare=at > 0) if Path(word).is_file() else word for at, word in enumerate(words)]


def site_from(options: dict[str, Any]) -> Site:
    """The site file and what the command line says instead."""
    from knee.launch.site import load_site

    env: dict[str, str] = {}
    for text in options["env"]:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--env {text!r} is not NAME=VALUE")
        env[key] = value
    hosts = tuple(host.strip() for host in (options["hosts"] or "").split(",") if host.strip())
    names = (
        "partition",
        "account",
        "qos",
        "time",
        "exclusive",
        "exclude",
        "gpus_per_node",
        "cpus_per_node",
        "max_queued",
        "max_running",
        "via",
        "container",
        "container_runtime",
        "setup",
        "python",
    )
    site = load_site(options["site_file"], {name: options[name] for name in names} | {"env": env, "hosts": hosts})
    if site.container_runtime == "pyxis" and options["launcher"] != "slurm":
        raise InputError(
            f"pyxis is a part of Slurm: --launcher {options['launcher']} starts no containers with it",
            hint="--container-runtime apptainer, or --launcher slurm",
        )
    return site


def need_launcher(site: Site, options: dict[str, Any]) -> None:
    """Refuse where what starts the runs is not here."""
    from knee.sweeps.local import check

    launcher = options["launcher"]
    if launcher == "slurm":
        from knee.sweeps.slurm import need_slurm

        need_slurm()
    else:
        check(launcher, site)
    if launcher == "local":
        _need_commands(site, options["program"])
    if launcher == "local" and not (options["program"] or site.python or site.container):
        from knee.probe.machine_facts import need_torch

        need_torch("knee sweep --launcher local")


def _need_commands(site: Site, program: Sequence[str]) -> None:
    """Refuse what is not here; a container has its own, and a set-up may put more into the PATH."""
    named = {"--program": program[0]} if program else {"--python": site.python} if site.python else {}
    for option, word in named.items():
        if not site.container and not (site.setup and "/" not in word) and shutil.which(word) is None:
            there = "cannot be run" if Path(word).is_file() else "is not here"
            raise InputError(f"{option} {word!r} {there}", hint="name a file that can be run, or a command of the PATH")


def wanted_of(grid: str, sets: Sequence[str], commands: Sequence[str]) -> list[Wanted]:
    """The points of a grid with their jobs."""
    from knee.cli import nearest
    from knee.cli.overrides import parse_sets
    from knee.errors import SpecError
    from knee.limits import MOST_RUNS
    from knee.studies.answers import job_of
    from knee.studies.grid_changes import changes_of
    from knee.studies.questions import all_points, check_count
    from knee.studies.study_file import load_study
    from knee.sweeps.preflight import Wanted

    try:
        study = load_study(grid)
    except InputError as error:
        close = nearest(grid, commands) if not grid.endswith(".toml") else None
        raise InputError(error.message, hint=close or error.hint) from None
    changes = changes_of(parse_sets(sets))
    check_count([study], changes, most=MOST_RUNS)
    points = list(all_points(study, changes))
    if not points:
        raise InputError(f"{grid} has no grid of training steps", hint="`knee study list` has studies with runs")
    # what a series keeps while its GPUs grow: the batch of each of them, or the batch of all
    given = {name for name in ("local_batch", "global_batch") if name in changes}
    weak = "global_batch" not in given and bool(given or any(grid.local_batch is not None for grid in study.grid))
    found = []
    for point in watched(points, "checking"):
        question = point.question
        asked = {"study": point.study, "series": point.series, **asdict(question)}
        batch = f"{question.global_batch / question.gpus:.12g} a GPU" if weak else f"{question.global_batch} in all"
        series = (
            f"{point.series} ({question.model}, {question.cluster}, {question.profile}, {question.seq_len}, "
            f"batch {batch}{''.join(f', {key} {value}' for key, value in question.sets)})"
        )
        one = Wanted(name=point.name, series=series, model=question.model, gpus=question.gpus, asked=asked)
        try:
            found.append(replace(one, job=job_of(question)))
        except SpecError as error:
            found.append(replace(one, why=error.message))
    return found


def watched(items: Sequence[T], label: str) -> Iterable[T]:
    """The items, with a bar where they are many."""
    from knee.cli.render.progress import progress

    return progress(items, label, len(items)) if len(items) > MANY else items


def planned_of(wanted: Sequence[Wanted], site: Site, options: dict[str, Any]) -> list[Planned]:
    """Every run, checked and estimated for the launcher."""
    from knee.sweeps.job_for_trainer import Length
    from knee.sweeps.local_devices import LocalDevices
    from knee.sweeps.preflight import plan_runs

    length = Length(
        steps=options["steps"],
        warmup=options["warmup"],
        trace_steps=options["trace_steps"],
        device=options["device"],
        timeout_s=options["timeout_s"],
    )
    per_node, launcher = site.gpus_per_node, options["launcher"]
    refuses: Callable[[Job], str | None] = _nothing
    if launcher == "local":
        machine = LocalDevices.here() if not options["program"] else None
        per_node = max(one.gpus for one in wanted)  # all on this machine

        def refuses(job: Job) -> str | None:
            return None if machine is None else machine.refuses(job.cluster, job.gpus)
    elif launcher == "torchrun":

        def refuses(job: Job) -> str | None:
            nodes = -(-job.gpus // (per_node or job.cluster.node.gpus))
            return None if nodes <= len(site.hosts) else f"it needs {nodes} hosts, and {len(site.hosts)} are given"
    elif not options["dry_run"]:
        from knee.sweeps.slurm import nodes_there

        there = nodes_there(site)

        def refuses(job: Job) -> str | None:
            nodes = -(-job.gpus // (per_node or job.cluster.node.gpus))
            return None if there is None or nodes <= there else f"it needs {nodes} nodes, and Slurm has {there}"

    planned = plan_runs(
        wanted, length, gpus_per_node=per_node, anyway=options["anyway"], command=command_line(), refuses=refuses
    )
    same = len(wanted) - len(planned)
    if same:
        click.echo(f"{same:,} point{'s are' if same > 1 else ' is'} the same run as another", err=True)
    return planned


def command_line() -> list[str]:
    """What was typed, as it is written down: values of variables may be secret."""
    from knee.launch.environment import hidden

    return ["knee", *hidden(sys.argv[1:])]


def _nothing(_job: Job) -> str | None:
    """What a launcher has to say of a job that it can start."""
    return None


def sweep_of(grid: str, out: Path, planned: Sequence[Planned], site: Site, options: dict[str, Any]) -> Sweep:
    """What sweep.json will say."""
    from knee.launch.sweep_folder import Sweep

    kept = {name: options[name] for name in ("until_knee", "pack", "timeout_s")}
    kept |= {"site": site.plain(), "program": options["program"]}
    return Sweep(
        folder=out,
        name=grid,
        entries=tuple(one.entry for one in planned),
        launcher=options["launcher"],
        options=kept,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(command_line()),
    )


def tell_plan(sweep: Sweep, options: dict[str, Any]) -> None:
    """What will be started and what it takes; refuse what takes too much."""
    from knee.cli.render.sweep import estimate, print_plan
    from knee.errors import DoesNotFit

    if options["as_json"]:
        if options["dry_run"]:
            click.echo(json.dumps(estimate(sweep) | {"runs": [asdict(entry) for entry in sweep.entries]}, indent=2))
    else:
        print_plan(sweep, whole=options["dry_run"])
    most, total = options["max_gpu_hours"], _gpu_h_to_start(sweep)
    if most is not None and total > most:
        raise InputError(
            f"what is to be started is estimated to take {total:,.2f} GPU-hours, and --max-gpu-hours is {most:g}",
            hint="make the grid or --steps smaller, or allow more",
        )
    if all(entry.refused for entry in sweep.entries) and not options["dry_run"]:
        raise DoesNotFit(
            "none of the runs can be started: " + sweep.entries[0].refused, hint="--dry-run lists the reason of each"
        )


def _gpu_h_to_start(sweep: Sweep) -> float:
    """Of runs that are not there yet, or go on; what the folder has finished is not counted again."""
    statuses = sweep.statuses()
    left = [
        entry
        for entry in sweep.entries
        if not entry.refused
        and ((status := statuses[entry.id]).missing or (status.cause == "spec" and not status.attempts))
    ]
    return sum(entry.gpu_h or 0.0 for entry in left)


def prepare(sweep: Sweep, planned: Sequence[Planned], site: Site) -> None:
    """A new folder is filled; of one that has a sweep it must be this one."""
    from knee.launch.environment import link_knee, write_env
    from knee.launch.sweep_folder import SWEEP, read_sweep
    from knee.sweeps.preflight import renew, write_plan

    check_same(sweep)
    known = (sweep.folder / SWEEP).exists()
    before = read_sweep(sweep.folder) if known else sweep
    if before.launcher == "slurm" != sweep.launcher:
        from knee.sweeps.slurm_queue import refuse_while_queued

        refuse_while_queued(before)
    link_knee(sweep.folder)
    write_env(sweep.folder, site.env)
    if not known:
        write_plan(sweep, watched(planned, "writing"))
        return
    renew(sweep)
    replace(sweep, made=before.made).write()


def check_same(sweep: Sweep) -> None:
    """Refuse a folder that has another sweep."""
    from knee.launch.sweep_folder import SWEEP, read_sweep

    if not (sweep.folder / SWEEP).exists():
        return
    before = read_sweep(sweep.folder)
    mine, theirs = [entry.id for entry in sweep.entries], [entry.id for entry in before.entries]
    if mine != theirs:
        differ = len(set(mine) ^ set(theirs))
        raise InputError(
            f"{sweep.folder} has another sweep, {before.name} of {len(theirs):,} runs: {differ:,} runs are not in both",
            hint="give another --out, or the grid and --steps that it was made with",
        )
