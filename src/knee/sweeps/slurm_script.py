"""The scripts that sbatch is given: short enough to read, and to submit again by hand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from knee.launch.environment import environment_lines, path_line
from knee.launch.site import Site
from knee.launch.sweep_folder import Sweep, SweepRun
from knee.launch.torchrun import interpreter_outside, on_slurm
from knee.sweeps.slurm_queue import FOLDER

HEAD = """#!/bin/bash
# {about}
# Submit it again with: cd {folder} && sbatch {name}
"""
BODY = """
stopped= knee_why=
trap 'stopped=1' TERM  # Slurm tells all processes of a job to end; what has not begun then is not begun
supervise() {{  # each run has a supervisor, which writes its status, also where the set-up failed
  [ -z "$stopped" ] || return
  [ -z "$knee_why" ] || set -- "$1" -- bash -c 'echo "$0" >&2; exit 1' "$knee_why"
  {python} -m knee.launch.supervisor "$@"
}}
runs() {{
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac
}}

# The set-up first, then variables, then the runs of this task.
{environment}
runs
"""


def script(
    sweep: Sweep, site: Site, packs: Sequence[Sequence[SweepRun]], *, name: str, job_name: str, on_gpus: bool
) -> str:
    """An array of jobs of one shape: as many nodes each, one task a pack of runs."""
    folder = sweep.folder / FOLDER
    head = HEAD.format(
        about=f"{len(packs)} jobs of the sweep {sweep.name!a}, {sum(map(len, packs))} runs",
        folder=shlex.quote(str(folder)),
        name=name,
    )
    options = {
        "job-name": job_name,
        "array": f"0-{len(packs) - 1}" + (f"%{site.max_running}" if site.max_running else ""),
        "output": "%A_%a.log",
        "open-mode": "append",
        "requeue": None,
        **_shape(site, packs[0][0], on_gpus=on_gpus),
        **_named(site),
    }
    lines = [f"#SBATCH --{key}" + ("" if value is None else f"={value}") for key, value in options.items()]
    lines += [f"#SBATCH {option}" for option in site.sbatch]
    return (
        head
        + "\n".join(lines)
        + "\n"
        + BODY.format(
            environment="\n".join(
                environment_lines(site, sweep.folder, failed=f"{path_line(sweep.folder)}; runs; exit 1")
            ),
            python=shlex.quote(interpreter_outside(site)),
            cases="\n".join(_case(sweep, site, number, pack) for number, pack in enumerate(packs)),
        )
    )


def _shape(site: Site, entry: SweepRun, *, on_gpus: bool) -> Mapping[str, object]:
    found: dict[str, object] = {"nodes": entry.nodes, "ntasks-per-node": 1}
    if on_gpus and site.gres:
        found["gpus-per-node"] = entry.per_node
    if site.cpus_per_node:
        found["cpus-per-task"] = site.cpus_per_node
    if site.exclusive:
        found["exclusive"] = None
    return found


def _named(site: Site) -> Mapping[str, object]:
    return {
        name: value for name in ("partition", "account", "qos", "time", "exclude") if (value := getattr(site, name))
    }


def _case(sweep: Sweep, site: Site, number: int, pack: Sequence[SweepRun]) -> str:
    return "\n".join([f"{number})", *(f"  {line(sweep, site, entry)}" for entry in pack), "  ;;"])


def line(sweep: Sweep, site: Site, entry: SweepRun) -> str:
    """How a run is started."""
    run: Path = sweep.run(entry)
    words = on_slurm(site, entry, run, timeout_s=sweep.options["timeout_s"], program=sweep.options["program"])
    return f"supervise {shlex.join([str(run), '--', *words])}"
