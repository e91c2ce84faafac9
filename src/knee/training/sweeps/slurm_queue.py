"""What Slurm knows of a sweep's runs: why they wait, and how those ended that did not write their own end."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from knee.base.errors import InputError, KneeError
from knee.base.files import write_text
from knee.training.launch.failures import Diagnosis, diagnose
from knee.training.launch.log_patterns import last_error_line
from knee.training.launch.run_status import Cause, Status, read_status, write_status
from knee.training.launch.slurm_job import query_slurm, slurm_output, unreachable_nodes
from knee.training.launch.sweep_folder import Sweep, SweepRun, is_cancel_requested, read_record, with_usage

FOLDER = "slurm"
"""Of a sweep: scripts, the runs that each starts, and the job that sbatch made of it."""
NAME = "name"
THE_REST = str(2**32 - 2)
"""Slurm's number of no task: of the tasks that were cancelled before they began it keeps one record."""
WAITS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
LIVE = (*WAITS, "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
ENDS = {
    "CANCELLED": Diagnosis(state="cancelled", cause="cancelled", words="cancelled by scancel"),
    "NODE_FAIL": Diagnosis(state="failed", cause="lost_node", words="a node failed, according to Slurm"),
    "BOOT_FAIL": Diagnosis(state="failed", cause="lost_node", words="a node did not start, according to Slurm"),
    "PREEMPTED": Diagnosis(state="cancelled", cause="preempted", words="preempted, and not put back into the queue"),
    "TIMEOUT": Diagnosis(state="timeout", cause="time_limit", words="it reached Slurm's time limit"),
    "DEADLINE": Diagnosis(state="timeout", cause="time_limit", words="it reached Slurm's deadline"),
    "OUT_OF_MEMORY": Diagnosis(state="oom", cause="memory", words="out of memory, according to Slurm"),
}
"""Slurm's state of a job whose run did not write its own end -> how it ended."""


class NoAnswer(KneeError):
    """Slurm's controller does not answer: it is not known whether a job waits, runs or is gone."""

    def __init__(self) -> None:
        super().__init__(
            "Slurm does not respond",
            hint="nothing is lost: the runs continue, and the same command works once Slurm responds again",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """The job or array task that a run is part of."""

    name: str
    submitted_s: float
    state: str = ""
    """As squeue reports it; empty where the job has left the queue."""
    reason: str = ""


def jobs_of_runs(sweep: Sweep, *, alive_only: bool = False) -> dict[str, QueuedJob]:
    """Run -> the job that it was last submitted in, and how that stands in the queue."""
    found: dict[str, QueuedJob] = {}
    queue = read_queue(sweep)
    for packs, job, submitted_s in submissions(sweep):
        for task, ids in enumerate(packs):
            name = f"{job}_{task}"
            for run in ids:
                state, reason = queue.get(name, ("", ""))
                found[run] = QueuedJob(name=name, submitted_s=submitted_s, state=state, reason=reason)
    return {run: job for run, job in found.items() if job.state or not alive_only}


def submissions(sweep: Sweep) -> Iterator[tuple[list[list[str]], str, float]]:
    """Packs of runs, job and time of each, in order. One whose job was never written down is known by its name."""
    for path in sorted((sweep.folder / FOLDER).glob("[0-9]*.runs.json")):
        number = int(path.name.partition(".")[0])
        try:
            packs = json.loads(path.read_text(encoding="utf-8"))
            submitted_s = path.stat().st_mtime
        except (OSError, ValueError, RecursionError):
            continue
        note = path.with_name(f"{number:04d}.job.json")
        try:
            plain = json.loads(note.read_text(encoding="utf-8"))
            job, submitted_s = str(plain["job"]), float(plain["submitted_s"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            lines = _queue("--noheader", f"--name={job_name(sweep, number)}", "--format=%F").split()
            if not lines:
                continue  # never submitted, or over: its runs have written their own statuses
            job = lines[0]
        yield packs, job, submitted_s


def read_queue(sweep: Sweep) -> dict[str, tuple[str, str]]:
    """State and reason of the sweep's jobs that wait or run, tasks of arrays each by itself."""
    names = {path.name.partition(".")[0] for path in (sweep.folder / FOLDER).glob("[0-9]*.sbatch")}
    if not names:
        return {}
    listed = ",".join(job_name(sweep, int(name)) for name in sorted(names))
    text = _queue("--noheader", "--array", f"--name={listed}", "--format=%F_%K|%T|%r|%N")
    rows = (line.strip().split("|") for line in text.splitlines())
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 4}


def _queue(*words: str) -> str:
    """What squeue says. A controller that is away for a minute must not look like a queue that is empty."""
    text = query_slurm("squeue", *words)
    if text is None:
        raise NoAnswer
    return text


def with_queue(sweep: Sweep, statuses: Mapping[str, Status]) -> dict[str, Status]:
    """Statuses with what Slurm knows: why a run waits, and how one ended that did not write its own end."""
    found = dict(statuses)
    left: dict[str, QueuedJob] = {}
    for run, job in jobs_of_runs(sweep).items():
        status = statuses[run]
        if status.over and not status.missing:
            continue
        status = found[run] = read_status(sweep.run(run))  # it may have ended, and written that, since
        if status.over and (not job.state or not status.missing or is_cancel_requested(sweep.run(run))):
            continue
        if not job.state and (status.put_back_s or 0.0) <= job.submitted_s:
            left[run] = job
        elif job.state in WAITS:
            found[run] = _waiting_status(status, job)
        elif job.state:
            found[run] = replace(status, job=job.name)
    states = final_states(job.name for job in left.values())
    entries = {entry.id: entry for entry in sweep.entries}
    for run, job in left.items():
        found[run] = _ended(sweep, entries[run], found[run], job.name, states.get(job.name, ""))
    return found


def _waiting_status(status: Status, job: QueuedJob) -> Status:
    """A run whose job waits: for the first time, or again after Slurm has requeued it."""
    words = f"waits in Slurm's queue: {job.reason}"
    if status.state == "running":  # its supervisor was killed before it could write why
        lost = unreachable_nodes(status.nodes)
        why = f"{' and '.join(lost)} failed" if lost else "it was killed without an error message"
        cause: Cause = "lost_node" if lost else "preempted"
        words += f"; put back into the queue after: {why}"
        return replace(status, state="pending", job=job.name, cause=cause, node=next(iter(lost), ""), words=words)
    words += f"; put back into the queue after: {status.words}" if status.attempts and status.words else ""
    return replace(status, state="pending", job=job.name, words=words)


def refuse_while_queued(sweep: Sweep) -> None:
    """Refuse to start runs elsewhere while Slurm still has to start them."""
    queued = jobs_of_runs(sweep, alive_only=True)
    if queued:
        raise InputError(
            f"{len(queued):,} runs of {sweep.folder} are in Slurm's queue",
            hint=f"`knee sweep cancel {sweep.folder}` removes them; or continue with --launcher slurm",
            code="folder-in-use",
            field="launcher",
        )


def record_ended_jobs(sweep: Sweep) -> dict[str, Status]:
    """Write how runs ended whose jobs have left the queue and wrote no end themselves; statuses of all."""
    before = sweep.statuses()
    after = with_queue(sweep, before)
    for run, status in after.items():
        if status.over and not before[run].over and not read_status(sweep.run(run)).over:
            write_status(sweep.run(run), status)
    return after


def _ended(sweep: Sweep, entry: SweepRun, status: Status, job: str, state: str) -> Status:
    """A run whose job has left the queue, and which did not write how it ended. ``state``: the job's last in Slurm."""
    run = sweep.run(entry)
    if state in LIVE:
        return status
    if read_record(run).get("status") == "done":
        found = Diagnosis(state="done")
    elif state in ENDS:
        found = ENDS[state]
    elif status.state == "pending" and status.cause == "preempted" and state == "FAILED":
        # Slurm requeued the job, so that its supervisor waits for nobody: this is how the second start ended
        words = f"its job {job} was requeued and failed before the run started again"
        found = Diagnosis(state="failed", cause="lost_node", words=words)
    elif status.state == "pending" and status.attempts:
        return status
    elif status.state == "pending":
        found = _never_began(sweep, job)
    else:
        found = diagnose(run, ())
        if found.state not in ("oom", "timeout"):
            after = f" ({state})" if state else ""
            found = Diagnosis(
                state="failed", cause="lost_node", words=f"its job {job} is gone{after} without an error message"
            )
    if status.state == "running":
        status = with_usage(status, entry, run)
    return replace(status, state=found.state, cause=found.cause, words=found.words, job=job, pids=())


def _never_began(sweep: Sweep, job: str) -> Diagnosis:
    """A job that ended before the supervisor of its run was there: what its own log says."""
    try:
        last_line = last_error_line(
            (sweep.folder / FOLDER / f"{job}.log").read_text(encoding="utf-8", errors="replace")
        )
    except OSError:
        return Diagnosis(state="failed", cause="lost_node", words=f"its job {job} left the queue without a log")
    return Diagnosis(
        state="failed",
        cause="software",
        words=f"its job {job} ended before the run started: {last_line or 'without an error message'}",
    )


def final_states(jobs: Iterable[str]) -> dict[str, str]:
    """The last states of tasks of arrays: from its records where there are any, or from the controller's memory."""
    wanted = set(jobs)
    found: dict[str, str] = {}
    for array in sorted({job.partition("_")[0] for job in wanted}):
        text = slurm_output(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={array}", "--format=JobID,State"
        )
        for line in text.splitlines():
            name, _, state = line.partition("|")
            found |= dict.fromkeys(_tasks(array, name.partition("_")[2].strip("[]")), state.split()[0].strip("+"))
        unknown = [job for job in wanted if job.startswith(f"{array}_") and job not in found]
        if unknown:
            rest = ""
            for line in slurm_output("scontrol", "--oneliner", "show", "job", array).splitlines():
                words = dict(word.partition("=")[::2] for word in line.split())
                task, state = words.get("ArrayTaskId", ""), words.get("JobState", "")
                if task == THE_REST:
                    rest = state
                else:
                    found |= dict.fromkeys(_tasks(array, task), state)
            found = dict.fromkeys(unknown, rest) | found if rest else found
    return {job: state for job, state in found.items() if job in wanted}


def _tasks(array: str, listed: str) -> Iterator[str]:
    """Tasks as Slurm lists those that never began together: 4-7,9%2."""
    for part in listed.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from (f"{array}_{task}" for task in range(int(first), int(last if last.isdigit() else first) + 1))


def name_sweep(sweep: Sweep) -> None:
    """Give a sweep's jobs a name that no other's have, and that stays when its folder is moved."""
    path = sweep.folder / FOLDER / NAME
    if not path.exists():
        write_text(path, secrets.token_hex(5))


def job_name(sweep: Sweep, number: int) -> str:
    """The name of a submission's job: the queue is asked by it."""
    try:
        name = (sweep.folder / FOLDER / NAME).read_text(encoding="utf-8").strip()
    except OSError:
        name = sweep.folder.name
    return f"knee-{name}-{number:04d}"
