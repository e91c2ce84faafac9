"""What Slurm's queue says of a sweep's runs: that they wait and why, and how those ended that could not say so."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from knee.errors import KneeError
from knee.launch.failures import verdict
from knee.launch.folder import Sweep, read_record, wants_cancel
from knee.launch.slurm_job import asked, heard
from knee.launch.status import Cause, State, Status, read_status, write_status

FOLDER = "slurm"
"""Of a sweep: scripts, the runs that each starts, and the job that sbatch made of it."""
ENDS: dict[str, tuple[State, Cause, str]] = {
    "CANCELLED": ("cancelled", "cancelled", "cancelled by scancel"),
    "NODE_FAIL": ("failed", "lost_node", "a node failed, says Slurm"),
    "BOOT_FAIL": ("failed", "lost_node", "a node did not start, says Slurm"),
    "PREEMPTED": ("cancelled", "preempted", "preempted, and not put back into the queue"),
    "TIMEOUT": ("timeout", "time_limit", "Slurm's time limit was over"),
    "DEADLINE": ("timeout", "time_limit", "Slurm's deadline was over"),
    "OUT_OF_MEMORY": ("oom", "memory", "out of memory, says Slurm"),
}
"""Slurm's word for the end of a job whose run could not write its own -> state, cause, words."""


class NoAnswer(KneeError):
    """Slurm's controller does not answer: whether a job waits, runs or is gone cannot be told."""

    def __init__(self) -> None:
        super().__init__("Slurm does not answer", hint="nothing is lost: runs go on by themselves; the same command "
                         "goes on once it answers again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job as squeue has it."""

    state: str
    reason: str = ""
    nodes: str = ""


def jobs_of_runs(sweep: Sweep, *, alive_only: bool = False) -> dict[str, tuple[str, Queued | None]]:
    """Run -> its job and how that stands in the queue; the last one it was submitted in, None where it has left it."""
    found: dict[str, tuple[str, Queued | None]] = {}
    queue = read_queue(sweep)
    for packs, job in submissions(sweep):
        for task, ids in enumerate(packs):
            name = f"{job}_{task}"
            for run in ids:
                found[run] = name, queue.get(name)
    return {run: pair for run, pair in found.items() if pair[1] is not None} if alive_only else found


def submissions(sweep: Sweep) -> Iterator[tuple[list[list[str]], str]]:
    """Packs of runs and job of each, in order. One whose job was never written down is known by its name."""
    for path in sorted((sweep.folder / FOLDER).glob("[0-9]*.runs.json")):
        number = int(path.name.partition(".")[0])
        try:
            packs = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        note = path.with_name(f"{number:04d}.job.json")
        try:
            job = str(json.loads(note.read_text(encoding="utf-8"))["job"])
        except (OSError, ValueError, KeyError):
            lines = _queue("--noheader", f"--name={job_name(sweep, number)}", "--format=%F").split()
            if not lines:
                continue  # never submitted, or over: its runs have their own word for it
            job = lines[0]
        yield packs, job


def read_queue(sweep: Sweep) -> dict[str, Queued]:
    """Jobs of the sweep that wait or run, tasks of arrays each by itself."""
    names = {path.name.partition(".")[0] for path in (sweep.folder / FOLDER).glob("[0-9]*.sbatch")}
    if not names:
        return {}
    listed = ",".join(job_name(sweep, int(name)) for name in sorted(names))
    found = {}
    for line in _queue("--noheader", "--array", f"--name={listed}", "--format=%F_%K|%T|%r|%N").splitlines():
        parts = line.strip().split("|")
        if len(parts) == 4:
            found[parts[0]] = Queued(state=parts[1], reason=parts[2], nodes=parts[3])
    return found


def _queue(*words: str) -> str:
    """What squeue says. A controller that is away for a minute must not look like a queue that is empty."""
    text = heard("squeue", *words)
    if text is None:
        raise NoAnswer
    return text


def with_queue(sweep: Sweep, statuses: Mapping[str, Status]) -> dict[str, Status]:
    """Statuses with what Slurm knows: why a run waits, and how one ended that could not say so itself."""
    found = dict(statuses)
    jobs = jobs_of_runs(sweep)
    for run, status in statuses.items():
        if run not in jobs or (status.over and not status.missing):
            continue
        job, queued = jobs[run]
        status = read_status(sweep.run(run))  # it may have ended since, and then has its own word
        if status.over and (queued is None or not status.missing or wants_cancel(sweep.run(run))):
            found[run] = status
        elif queued is not None and queued.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD"):
            words = f"waits in Slurm's queue: {queued.reason}"
            words += f"; put back after: {status.words}" if status.attempts and status.words else ""
            found[run] = replace(status, state="pending", job=job, words=words)
        elif queued is None:
            found[run] = _ended(sweep, run, status, job)
        else:
            found[run] = replace(status, job=job)
    return found


def settle(sweep: Sweep) -> dict[str, Status]:
    """Write down how runs ended whose jobs have left the queue without a word; statuses of all."""
    before = sweep.statuses()
    after = with_queue(sweep, before)
    for run, status in after.items():
        if status.over and not before[run].over and not read_status(sweep.run(run)).over:
            write_status(sweep.run(run), status)
    return after


def _ended(sweep: Sweep, run: str, status: Status, job: str) -> Status:
    """A run whose job has left the queue, and which did not say how it ended."""
    state = _final_state(job)
    folder = sweep.run(run)
    words: tuple[State, Cause, str]
    if status.state == "pending" and not status.attempts and state in ("", "COMPLETED", "FAILED"):
        return replace(status, words="its job ended before it began")
    if read_record(folder).get("status") == "done":
        words = "done", "", ""
    elif state in ENDS:
        words = ENDS[state]
    elif status.state == "pending":
        return status
    else:
        found = verdict(folder, ())
        words = (found.state, found.cause, found.words) if found.state in ("oom", "timeout") else (
            "failed", "lost_node", f"its job {job} is gone" + (f" ({state})" if state else "") + " without a word")
    return replace(status, state=words[0], cause=words[1], words=words[2], job=job, ended_s=time.time())


def _final_state(job: str) -> str:
    """Slurm's last word on a job: from its records where there are any, or from the controller while it remembers."""
    words = asked("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State").split()
    if not words:
        found = re.search(r"JobState=(\S+)", asked("scontrol", "--oneliner", "show", "job", job))
        words = [found[1]] if found else []
    return words[0].strip("+") if words else ""


def job_name(sweep: Sweep, number: int) -> str:
    """One that no other sweep has: the queue is asked by it."""
    return f"knee-{sha256(str(sweep.folder).encode()).hexdigest()[:10]}-{number:04d}"
