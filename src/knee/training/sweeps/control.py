"""How a sweep stands now, and what can be done about it from outside: cancel runs, and requeue them."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from knee.base.files import write_text
from knee.base.signals import catch_signals
from knee.training.launch.run_status import Status, cancelled, read_status, write_status
from knee.training.launch.sweep_folder import CANCEL, Sweep, is_locked, last_sign_s, locked
from knee.training.sweeps.local import adopt_running, living_processes
from knee.training.sweeps.slurm import cancel_jobs
from knee.training.sweeps.slurm_queue import NoAnswer, with_queue


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
            write_status(
                run,
                replace(
                    status,
                    state="pending",
                    cause="",
                    words="waiting to be restarted",
                    node="",
                    job="",
                    put_back_s=time.time(),
                ),
            )
            count += 1
    return count
