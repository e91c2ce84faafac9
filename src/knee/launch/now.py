"""How a sweep stands now, and what can be done about it from outside: cancel, put back."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from knee.files import write_text
from knee.launch.folder import CANCEL, LOCK, Sweep
from knee.launch.processes import alive
from knee.launch.status import Status, read_status, write_status


def statuses_now(sweep: Sweep) -> dict[str, Status]:
    """Statuses as files have them, with what Slurm knows besides; nothing is written."""
    statuses = sweep.statuses()
    if sweep.launcher == "slurm":
        from knee.launch.slurm import with_queue

        return with_queue(sweep, statuses)
    for name, status in statuses.items():
        gone = status.state == "running" and status.pids and status.host == socket.gethostname() and not any(
            map(alive, status.pids))
        if gone and (again := read_status(sweep.run(name))).state == "running" and not _kept(sweep):
            statuses[name] = replace(again, words="what had started it was ended; `knee sweep` goes on")
    return statuses


def cancel_all(sweep: Sweep) -> tuple[int, int]:
    """Mark all that run or wait; how many did. Whoever keeps a run sees the mark within a second or two."""
    statuses = sweep.statuses()
    running = waiting = 0
    working = _kept(sweep)
    for name, status in statuses.items():
        if status.over:
            continue
        run = sweep.run(name)
        write_text(run / CANCEL, "")
        running += status.state == "running"
        waiting += status.state == "pending"
        if status.state == "pending" and not working:
            write_status(run, replace(status, state="cancelled", cause="cancelled",
                                      words="cancelled by `knee sweep cancel`"))
    if sweep.launcher == "slurm":
        from knee.launch.slurm import cancel_jobs

        cancel_jobs(sweep)
    return running, waiting


def put_back(sweep: Sweep, states: Sequence[str], ids: Sequence[str] = ()) -> int:
    """Make runs pending again; how many. What was refused before it was started stays so."""
    count = 0
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if status.state in states and status.over and not entry.refused and (not ids or entry.id in ids):
            (run / CANCEL).unlink(missing_ok=True)
            write_status(run, replace(status, state="pending", cause="", words="to be tried again", node="", job=""))
            count += 1
    return count


def _kept(sweep: Sweep) -> bool:
    """Whether some process holds the sweep's lock."""
    import fcntl

    try:
        with (sweep.folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
