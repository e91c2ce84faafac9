"""Jobs of a sweep in Slurm's queue. Plain sbatch: its scripts can be read, and submitted again without knee.

A submission is two files in DIR/slurm: the script, written first, and the job that sbatch made of it. Runs write their
own statuses; Slurm is only asked for what they could not write: that they wait, or were ended before they could.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knee.base.errors import InputError, KneeError, MissingExtra
from knee.base.files import make_folder, write_text
from knee.base.signals import StopSignal
from knee.training.launch.environment import environment_lines, path_line
from knee.training.launch.failures import Diagnosis, diagnose
from knee.training.launch.log_patterns import last_error_line
from knee.training.launch.run_status import Cause, Status, cancelled, left_out, read_status, write_status
from knee.training.launch.site import Site
from knee.training.launch.slurm_job import query_slurm, slurm_output, unreachable_nodes
from knee.training.launch.sweep_folder import Sweep, SweepRun, is_cancel_requested, read_record, with_usage
from knee.training.launch.torchrun import interpreter_outside, on_slurm
from knee.training.run.run_record import JOB, read_object
from knee.training.sweeps.run_local import adopt_running, missing
from knee.training.sweeps.stop_rule import StopRule, start_order

# What Slurm knows of a sweep's runs: why they wait, and how those ended that did not write their own end.

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
