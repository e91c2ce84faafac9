"""A sweep as a whole: its folder is prepared, its state is read, and its runs are cancelled and requeued."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from knee.base.errors import InputError, argument
from knee.base.files import make_folder, write_text
from knee.base.signals import catch_signals
from knee.training.export.job_file import job_file
from knee.training.launch.environment import link_knee, write_env
from knee.training.launch.run_status import Status, cancelled, read_status, write_status
from knee.training.launch.site import Site
from knee.training.launch.start_ranks import write_job
from knee.training.launch.sweep_folder import (
    CANCEL,
    JOB_FILE,
    SWEEP,
    Sweep,
    is_locked,
    last_sign_s,
    locked,
    read_sweep,
)
from knee.training.run.run_record import JOB, read_object
from knee.training.sweeps.preflight import PlannedRun
from knee.training.sweeps.run_local import adopt_running, living_processes
from knee.training.sweeps.slurm import NoAnswer, cancel_jobs, refuse_while_queued, with_queue

ASKED = "asked.json"


def prepare_folder(sweep: Sweep, planned: Iterable[PlannedRun], site: Site) -> None:
    """Write all that runs need. The caller holds the folder's lock."""
    before = check_same_sweep(sweep)
    if before is not None and before.launcher == "slurm" != sweep.launcher:
        refuse_while_queued(before)
    link_knee(sweep.folder)
    write_env(sweep.folder, site.env)
    if before is None:
        write_runs(sweep, planned)
        sweep.write()
    else:
        update_runs(sweep)
        replace(sweep, made=before.made).write()


def check_same_sweep(sweep: Sweep) -> Sweep | None:
    """The sweep that the folder has already, None where it has none; refused where it is another one."""
    if not (sweep.folder / SWEEP).exists():
        return None
    before = read_sweep(sweep.folder)
    mine, theirs = [entry.id for entry in sweep.entries], [entry.id for entry in before.entries]
    if mine != theirs:
        differ = len(set(mine) ^ set(theirs))
        raise InputError(
            f"{sweep.folder} already contains another sweep, {before.name} with {len(theirs):,} runs; "
            f"{differ:,} runs are not in both sweeps",
            hint=f"give another {argument('out')}, or the same grid and {argument('steps')} as for that sweep",
            code="another-sweep",
            field="out",
        )
    return before


def write_runs(sweep: Sweep, planned: Iterable[PlannedRun]) -> None:
    """The runs' folders; the sweep's own file is written after them, so that where it is, all are whole."""
    for one in planned:
        run = sweep.run(one.entry)
        if not run.is_dir():
            make_folder(run)
        write_text(run / ASKED, json.dumps(one.requested.question, indent=1, default=str) + "\n")
        if one.requested.job is not None:
            write_text(run / JOB_FILE, job_file(one.requested.job))
        if one.train is not None:
            write_job(run, replace(one.train, out=str(run)))
        if one.entry.refused:
            write_status(run, Status(state="failed", cause="spec", words=one.entry.refused))


def update_runs(sweep: Sweep) -> None:
    """Write what may change from call to call: where the folder is, the timeout, and which runs are refused."""
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if not entry.refused and status.cause == "spec" and not status.attempts:
            write_status(run, Status())
        elif entry.refused and status.missing:
            write_status(run, replace(status, state="failed", cause="spec", words=entry.refused))
        job = read_object(run / JOB)
        now = {"out": str(run), "timeout_s": sweep.options["timeout_s"]}
        if job and any(job.get(key) != value for key, value in now.items()):
            write_text(run / JOB, json.dumps({**job, **now}, indent=1) + "\n")


def current_statuses(sweep: Sweep) -> dict[str, Status]:
    """Statuses as files have them, with what Slurm knows besides; nothing is written."""
    statuses = sweep.statuses()
    if sweep.launcher == "slurm":
        try:
            return with_queue(sweep, statuses)
        except NoAnswer as error:
            words = f"{error.message}; this is the last known state"
            return {name: status if status.over else replace(status, words=words) for name, status in statuses.items()}
    for name, status in statuses.items():
        run = sweep.run(name)
        gone = status.state == "running" and status.host == socket.gethostname() and not living_processes(run, status)
        if gone and (again := read_status(run)).state == "running" and not is_locked(sweep.folder):
            statuses[name] = replace(
                again,
                words="the process that started it has ended; `knee sweep run` continues the sweep",
                ended_s=last_sign_s(run),
            )
    return statuses


def cancel_runs(sweep: Sweep) -> tuple[int, int]:
    """Cancel all runs that run or wait; how many ran, and waited. A run's supervisor sees the request in seconds."""
    before = [status.state for status in sweep.statuses().values()]
    for name, status in sweep.statuses().items():
        if not status.over:
            write_text(sweep.run(name) / CANCEL, "")
    if sweep.launcher == "slurm":
        cancel_jobs(sweep)
    elif not is_locked(sweep.folder):  # no supervisor is there to see the requests
        with locked(sweep.folder), catch_signals() as stop:
            adopt_running(sweep, stop)
            for name, status in sweep.statuses().items():
                if not status.over:
                    write_status(sweep.run(name), cancelled(status))
    return before.count("running"), before.count("pending")


def requeue(sweep: Sweep, states: Sequence[str], ids: Collection[str] = ()) -> int:
    """Make runs pending again; how many. What was refused before it was started stays so."""
    count = 0
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if status.state in states and status.over and not entry.refused and (not ids or entry.id in ids):
            (run / CANCEL).unlink(missing_ok=True)
            again = replace(status, state="pending", cause="", words="waiting to be restarted", node="", job="")
            write_status(run, replace(again, put_back_s=time.time()))
            count += 1
    return count
