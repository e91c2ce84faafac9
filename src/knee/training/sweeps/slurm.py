"""Jobs of a sweep in Slurm's queue. Plain sbatch: its scripts can be read, and submitted again without knee.

A submission is two files in DIR/slurm: the script, written first, and the job that sbatch made of it. Runs write their
own statuses; Slurm is only asked for what they could not write: that they wait, or were ended before they could.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from knee.base.errors import InputError, MissingExtra
from knee.base.files import make_folder, write_text
from knee.base.signals import StopSignal
from knee.training.launch.environment import environment_lines, path_line
from knee.training.launch.run_status import Status, cancelled, left_out, write_status
from knee.training.launch.site import Site
from knee.training.launch.slurm_job import slurm_output
from knee.training.launch.sweep_folder import Sweep, SweepRun, is_cancel_requested
from knee.training.launch.torchrun import interpreter_outside, on_slurm
from knee.training.run.run_record import JOB, read_object
from knee.training.sweeps.run_local import adopt_running, missing
from knee.training.sweeps.slurm_queue import (
    FOLDER,
    NoAnswer,
    QueuedJob,
    job_name,
    jobs_of_runs,
    name_sweep,
    record_ended_jobs,
)
from knee.training.sweeps.stop_rule import StopRule, start_order

# The scripts that sbatch is given: short enough to read, and to submit again by hand.

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
  {python} -m knee.training.launch.slurm_job "$@"
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
    folder, first = sweep.folder / FOLDER, packs[0][0]
    head = HEAD.format(
        about=f"{len(packs)} jobs of the sweep {sweep.name!a}, {sum(map(len, packs))} runs",
        folder=shlex.quote(str(folder)),
        name=name,
    )
    options: dict[str, object] = {  # None: without a value, False: left out
        "job-name": job_name,
        "array": f"0-{len(packs) - 1}" + (f"%{site.max_running}" if site.max_running else ""),
        "output": "%A_%a.log",
        "open-mode": "append",
        "requeue": None,
        "nodes": first.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": on_gpus and site.gres and first.per_node,
        "cpus-per-task": site.cpus_per_node or False,
        "exclusive": None if site.exclusive else False,
        **{name: getattr(site, name) or False for name in ("partition", "account", "qos", "time", "exclude")},
    }
    lines = [
        f"#SBATCH --{key}" + ("" if value is None else f"={value}")
        for key, value in options.items()
        if value is not False
    ]
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
            cases="\n".join(
                "\n".join([f"{number})", *(f"  {line(sweep, site, entry)}" for entry in pack), "  ;;"])
                for number, pack in enumerate(packs)
            ),
        )
    )


def line(sweep: Sweep, site: Site, entry: SweepRun) -> str:
    """How a run is started."""
    run: Path = sweep.run(entry)
    words = on_slurm(site, entry, run, timeout_s=sweep.options["timeout_s"], program=sweep.options["program"])
    return f"supervise {shlex.join([str(run), '--', *words])}"


WAIT_S = 5.0
DEFAULT_ARRAY = 1001
"""Slurm's own default of MaxArraySize: the largest index, and one."""
LIMIT = re.compile(
    r"submit limit|MaxSubmit|MaxJobs|accounting/QOS policy|AssocMax|QOSMax|too many|temporarily", re.IGNORECASE
)
"""What sbatch says where the queue is full for now; some of it also of a job that it would never take."""
Say = Callable[[str], None]
"""Takes a sentence on what happens in the queue."""
NO_REPLY = re.compile(r"[Tt]imed out|[Uu]nable to contact|Connection refused|Communication (connection )?failure")
"""A job may have been submitted all the same: it is looked up in the queue by its name."""


def require_slurm() -> None:
    """Refuse where there is no Slurm."""
    lacking = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]
    if lacking:
        raise MissingExtra(
            f"Slurm's command {lacking[0]} was not found",
            hint="run this on the login node of the cluster; --dry-run, --launcher local and "
            "--launcher torchrun work without Slurm",
        )


def submit_missing(sweep: Sweep, site: Site, *, wait: bool, say: Say, only: Collection[str] | None = None) -> None:
    """Submit what is missing, as far as the queue takes it. The caller holds the folder's lock.

    ``only``: ids of the runs to start, where not all that are missing are meant.
    """
    until_knee = bool(sweep.options["until_knee"])
    stays = wait or until_knee
    make_folder(sweep.folder / FOLDER)
    name_sweep(sweep)
    adopt_running(sweep, StopSignal())  # what another launcher has begun
    record_ended_jobs(sweep)
    to_start = missing(sweep, sweep.statuses(), only=only)
    rule, said = StopRule(sweep) if until_knee else None, ""
    while True:
        try:
            left = _submit_more(sweep, site, to_start, rule, say)
            if not stays:
                if left:
                    say(
                        f"{left:,} runs are not in the queue yet; the same command submits more, and --wait "
                        "submits them automatically"
                    )
                return
            open_ = [
                status
                for run, status in record_ended_jobs(sweep).items()
                if not status.over and (only is None or run in only)
            ]
            if not open_:
                return
            words = f"{sum(s.state == 'running' for s in open_):,} running, {len(open_):,} not finished"
        except NoAnswer as error:
            if not stays:
                raise
            words = f"{error.message}; knee will try again"
        if words != said:  # the queue is asked often, and changes seldom
            say(words)
            said = words
        time.sleep(WAIT_S)


def _submit_more(sweep: Sweep, site: Site, to_start: Iterable[SweepRun], rule: StopRule | None, say: Say) -> int:
    """Submit the runs that the queue has room for now; how many still wait for it."""
    queued = jobs_of_runs(sweep, alive_only=True)
    statuses = sweep.statuses()
    waiting = []
    for entry in to_start:
        if statuses[entry.id].state != "pending" or entry.id in queued:
            continue
        if is_cancel_requested(sweep.run(entry)):
            write_status(sweep.run(entry), cancelled(statuses[entry.id]))
        else:
            waiting.append(entry)
    now = waiting if rule is None else list(_worth_starting(sweep, waiting, statuses, rule, queued))
    taken, trouble = submit(sweep, site, now, room=_room(site, queued, now))
    if trouble and not taken and not queued:  # no job of the sweep will leave the queue and make room
        raise _refused(sweep, trouble)
    if trouble:
        say(f"Slurm accepts no more jobs now: {trouble}")
    return len(waiting) - taken


def submit(sweep: Sweep, site: Site, entries: Sequence[SweepRun], *, room: int | None) -> tuple[int, str]:
    """Hand runs to sbatch as arrays of jobs of one shape; how many runs were taken, and why not more."""
    pack, longest = int(sweep.options["pack"]), max_array()
    shapes: dict[tuple[int, int], list[SweepRun]] = {}
    for entry in entries:
        shapes.setdefault((entry.nodes, entry.per_node), []).append(entry)
    taken = 0
    for members in shapes.values():
        packs = [members[at : at + pack] for at in range(0, len(members), pack)]
        if room is not None:
            packs = packs[:room]
            room -= len(packs)
        for some in (packs[at : at + longest] for at in range(0, len(packs), longest)):
            trouble = _sbatch(sweep, site, some)
            if trouble is not None and LIMIT.search(trouble):
                return taken, trouble
            if trouble is not None:
                raise _refused(sweep, trouble)
            taken += sum(map(len, some))
    return taken, ""


def _refused(sweep: Sweep, trouble: str) -> InputError:
    return InputError(
        f"sbatch refused the job: {trouble}", hint=f"the script is in {sweep.folder / FOLDER}", code="refused-by-slurm"
    )


def _sbatch(sweep: Sweep, site: Site, packs: Sequence[Sequence[SweepRun]]) -> str | None:
    """Submit one job array; returns sbatch's message where it refused."""
    folder = sweep.folder / FOLDER
    number = 1 + max((int(path.stem) for path in folder.glob("*.sbatch") if path.stem.isdigit()), default=0)
    name = f"{number:04d}.sbatch"
    write_text(folder / f"{number:04d}.runs.json", json.dumps([[entry.id for entry in pack] for pack in packs]))
    on_gpus = read_object(sweep.run(packs[0][0]) / JOB).get("device") == "cuda"
    write_text(folder / name, script(sweep, site, packs, name=name, job_name=job_name(sweep, number), on_gpus=on_gpus))
    words = ["sbatch", "--parsable", name]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise MissingExtra(
            f"Slurm's sbatch cannot be started: {error.strerror}",
            hint="run this command on a host of the Slurm cluster",
        ) from None
    if done.returncode and NO_REPLY.search(done.stderr):
        raise NoAnswer
    if done.returncode:
        for path in (folder / name, folder / f"{number:04d}.runs.json"):
            path.rename(path.with_name(f"refused-{path.name}"))
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        return re.sub(r"^(sbatch: )?(error|fatal): ", "", lines[-1].removeprefix("sbatch: "))
    job = done.stdout.strip().partition(";")[0]
    write_text(folder / f"{number:04d}.job.json", json.dumps({"job": job, "submitted_s": time.time()}))
    return None


def cancel_jobs(sweep: Sweep) -> None:
    """End the sweep's jobs; supervisors of runs see the request in their folder first, and write the status."""
    for number in sorted(path.name.partition(".")[0] for path in (sweep.folder / FOLDER).glob("[0-9]*.sbatch")):
        slurm_output("scancel", "--quiet", f"--name={job_name(sweep, int(number))}", "--state=PENDING")
    queued = jobs_of_runs(sweep, alive_only=True)
    for run, status in sweep.statuses().items():
        if status.state == "pending" and run not in queued:
            write_status(sweep.run(run), cancelled(status))


def node_count(site: Site) -> int | None:
    """Nodes of the partition, or of all; None where Slurm does not say."""
    where = [f"--partition={site.partition}"] if site.partition else []
    return len(set(slurm_output("sinfo", "--noheader", "--Node", *where, "--format=%N").split())) or None


def max_array() -> int:
    """Tasks that an array may have here."""
    found = re.search(r"MaxArraySize\s*+=\s*+(\d{1,9})", slurm_output("scontrol", "show", "config"))
    return max(1, int(found[1]) - 1 if found else DEFAULT_ARRAY - 1)


def _worth_starting(
    sweep: Sweep,
    entries: Iterable[SweepRun],
    statuses: Mapping[str, Status],
    rule: StopRule,
    queued: Mapping[str, object],
) -> Iterator[SweepRun]:
    """Until the knee: a count of GPUs is submitted once all fewer ones of its series have ended."""
    open_ = {e.id: e for e in sweep.entries if not e.refused and (not statuses[e.id].over or e.id in queued)}
    for entry in start_order(entries, until_knee=True):
        if any(other.gpus < entry.gpus and other.series == entry.series for other in open_.values()):
            continue
        why = rule.reason_to_stop(entry, statuses)
        if why is None:
            yield entry
        else:
            write_status(sweep.run(entry), left_out(statuses[entry.id], why))


def _room(site: Site, queued: Mapping[str, QueuedJob], entries: Sequence[SweepRun]) -> int | None:
    """Jobs that may be submitted now. An array's own limit holds for that array alone, and a shape has one each."""
    alone = not queued and len({(entry.nodes, entry.per_node) for entry in entries}) <= 1
    limits = [limit for limit in (site.max_queued, None if alone else site.max_running) if limit is not None]
    return max(0, min(limits) - len({job.name for job in queued.values()})) if limits else None
