"""Jobs of a sweep in Slurm's queue. Plain sbatch: its scripts can be read, and submitted again without knee.

A submission is two files in DIR/slurm: the script, written first, and what sbatch said of it. Runs write their own
statuses; Slurm is only asked for what they could not write: that they wait, or were ended before they could.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import TypeVar

from knee.errors import InputError, MissingExtra
from knee.files import make_folder, write_text
from knee.launch.enough import Knees, in_order
from knee.launch.failures import verdict
from knee.launch.folder import CANCEL, Entry, Sweep, read_record, wants_cancel
from knee.launch.here import missing, not_started
from knee.launch.site import Site
from knee.launch.slurm_job import asked
from knee.launch.slurm_script import script
from knee.launch.status import Cause, State, Status, read_status, write_status

FOLDER = "slurm"
WAIT_S = 5.0
DEFAULT_ARRAY = 1001
"""Slurm's own default of MaxArraySize: the largest index, and one."""
LIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STAGE_OUT",
        "SIGNALING", "STOPPED", "RESIZING")
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
LIMIT = re.compile(r"limit|MaxSubmit|MaxJobs|policy|AssocMax|QOSMax|too many", re.IGNORECASE)
Tell = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job as squeue has it."""

    state: str
    reason: str = ""
    nodes: str = ""


def need_slurm() -> None:
    """Refuse where there is no Slurm."""
    lacking = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]
    if lacking:
        raise MissingExtra(f"Slurm's {lacking[0]} is not here", hint="run this on the cluster's login node; --dry-run "
                           "checks and estimates anywhere, --launcher local or torchrun need no Slurm")


def go_on_slurm(sweep: Sweep, site: Site, *, wait: bool, tell: Tell) -> None:
    """Submit what is missing, as far as the queue takes it. The caller holds the folder's lock."""
    until_knee = bool(sweep.options["until_knee"])
    make_folder(sweep.folder / FOLDER)
    settle(sweep)
    statuses = sweep.statuses()
    waiting = missing(sweep, statuses, until_knee=until_knee)
    knees, told = Knees(sweep), ""
    while True:
        queued = jobs_of_runs(sweep, alive_only=True)
        statuses = sweep.statuses()
        waiting = [entry for entry in waiting if statuses[entry.id].state == "pending"
                   and entry.id not in queued and not _is_cancelled(sweep, entry, statuses)]
        now = list(_worth_it(sweep, waiting, statuses, knees, queued) if until_knee else waiting)
        taken = submit(sweep, site, now, room=_room(site, queued), tell=tell)
        if not (wait or until_knee):
            left = len(waiting) - taken
            if left:
                tell(f"{left:,} runs are not in the queue yet: the same command submits more, --wait does so by itself")
            return
        statuses = settle(sweep)
        open_ = [status for status in statuses.values() if not status.over]
        if not open_:
            return
        words = f"{sum(s.state == 'running' for s in open_):,} running, {len(open_):,} to end"
        if words != told:
            tell(words)
            told = words
        time.sleep(WAIT_S)


def submit(sweep: Sweep, site: Site, entries: Sequence[Entry], *, room: int | None, tell: Tell) -> int:
    """Hand runs to sbatch as arrays of jobs of one shape; how many runs were taken."""
    pack, longest = int(sweep.options["pack"]), max_array()
    shapes: dict[tuple[int, int], list[Entry]] = {}
    for entry in entries:
        shapes.setdefault((entry.nodes, entry.per_node), []).append(entry)
    taken = 0
    for members in shapes.values():
        packs = list(_batched(members, pack))
        if room is not None:
            packs = packs[:room]
            room -= len(packs)
        for some in _batched(packs, longest):
            trouble = _sbatch(sweep, site, some)
            if trouble is not None and LIMIT.search(trouble):
                tell(f"Slurm takes no more jobs now: {trouble}")
                return taken
            if trouble is not None:
                raise InputError(f"sbatch refuses: {trouble}", hint=f"the script is in {sweep.folder / FOLDER}")
            taken += sum(map(len, some))
    return taken


def _sbatch(sweep: Sweep, site: Site, packs: Sequence[Sequence[Entry]]) -> str | None:
    """One array; what sbatch had to say where it refused."""
    folder = sweep.folder / FOLDER
    number = 1 + max((int(path.stem) for path in folder.glob("*.sbatch") if path.stem.isdigit()), default=0)
    name = f"{number:04d}.sbatch"
    write_text(folder / f"{number:04d}.runs.json", json.dumps([[entry.id for entry in pack] for pack in packs]))
    write_text(folder / name, script(sweep, site, packs, name=name, job_name=_job_name(sweep, number),
                                     on_gpus=_on_gpus(sweep, packs[0][0])))
    done = subprocess.run(["sbatch", "--parsable", name], cwd=folder, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        for path in (folder / name, folder / f"{number:04d}.runs.json"):
            path.rename(path.with_name(f"refused-{path.name}"))
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        return re.sub(r"^(sbatch: )?(error|fatal): ", "", lines[-1].removeprefix("sbatch: "))
    job = done.stdout.strip().partition(";")[0]
    write_text(folder / f"{number:04d}.job.json", json.dumps({"job": job, "submitted_s": time.time()}))
    return None


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
            lines = asked("squeue", "--noheader", f"--name={_job_name(sweep, number)}", "--format=%F").split()
            if not lines:
                continue  # never submitted, or over: its runs have their own word for it
            job = lines[0]
        yield packs, job


def read_queue(sweep: Sweep) -> dict[str, Queued]:
    """Jobs of the sweep that wait or run, tasks of arrays each by itself."""
    names = {path.name.partition(".")[0] for path in (sweep.folder / FOLDER).glob("[0-9]*.sbatch")}
    if not names:
        return {}
    listed = ",".join(_job_name(sweep, int(name)) for name in sorted(names))
    text = asked("squeue", "--noheader", "--array", f"--name={listed}", "--format=%F_%K|%T|%r|%N")
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 4:
            found[parts[0]] = Queued(state=parts[1], reason=parts[2], nodes=parts[3])
    return found


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


def cancel_jobs(sweep: Sweep) -> None:
    """End the sweep's jobs; those that run see the mark in their folder first, and say so."""
    for number in sorted(path.name.partition(".")[0] for path in (sweep.folder / FOLDER).glob("[0-9]*.sbatch")):
        asked("scancel", "--quiet", f"--name={_job_name(sweep, int(number))}", "--state=PENDING")
    queued = jobs_of_runs(sweep, alive_only=True)
    for run, status in sweep.statuses().items():
        if status.state == "pending" and run not in queued:
            write_status(sweep.run(run), not_started(status, "cancelled", "cancelled by `knee sweep cancel`"))


def nodes_there(site: Site) -> int | None:
    """Nodes of the partition that are not taken out; None where Slurm does not say."""
    where = [f"--partition={site.partition}"] if site.partition else []
    counts = asked("sinfo", "--noheader", *where, "--format=%D").split()
    return sum(int(count) for count in counts if count.isdigit()) or None


def max_array() -> int:
    """Tasks that an array may have here."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", asked("scontrol", "show", "config"))
    return max(1, int(found[1]) - 1 if found else DEFAULT_ARRAY - 1)


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


def _worth_it(sweep: Sweep, entries: Iterable[Entry], statuses: Mapping[str, Status], knees: Knees,
              queued: Mapping[str, object]) -> Iterator[Entry]:
    """Until the knee: a count of GPUs is submitted once all fewer ones of its series have ended."""
    open_ = {e.id: e for e in sweep.entries if not e.refused and (not statuses[e.id].over or e.id in queued)}
    for entry in in_order(entries, until_knee=True):
        if any(other.gpus < entry.gpus and other.series == entry.series for other in open_.values()):
            continue
        why = knees.beyond(entry, statuses)
        if why is None:
            yield entry
        else:
            write_status(sweep.run(entry), not_started(statuses[entry.id], "knee", f"not started: {why}"))


def _room(site: Site, queued: Mapping[str, tuple[str, object]]) -> int | None:
    if site.max_queued is None:
        return None
    return max(0, site.max_queued - len({job for job, _ in queued.values()}))


def _is_cancelled(sweep: Sweep, entry: Entry, statuses: Mapping[str, Status]) -> bool:
    run = sweep.run(entry)
    if not (run / CANCEL).exists():
        return False
    write_status(run, not_started(statuses[entry.id], "cancelled", "cancelled by `knee sweep cancel`"))
    return True


def _on_gpus(sweep: Sweep, entry: Entry) -> bool:
    try:
        plain = json.loads((sweep.run(entry) / "job.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(plain.get("device") == "cuda")


def _job_name(sweep: Sweep, number: int) -> str:
    """One that no other sweep has: the queue is asked by it."""
    return f"knee-{sha256(str(sweep.folder).encode()).hexdigest()[:10]}-{number:04d}"


def _batched(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    rest = iter(items)
    while some := tuple(islice(rest, size)):
        yield some
