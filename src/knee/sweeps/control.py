"""How a sweep stands now, and what can be done about it from outside: cancel, put back."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from knee.files import write_text
from knee.launch.run_status import CANCELLED, Status, read_status, write_status
from knee.launch.supervisor import hearing
from knee.launch.sweep_folder import CANCEL, LOCK, Sweep, held
from knee.launch.usage import last_sign_s
from knee.sweeps.local import living, not_started, settle


def statuses_now(sweep: Sweep) -> dict[str, Status]:
    """Statuses as files have them, with what Slurm knows besides; nothing is written."""
    statuses = sweep.statuses()
    if sweep.launcher == "slurm":
        from knee.sweeps.slurm_queue import NoAnswer, with_queue

        try:
            return with_queue(sweep, statuses)
        except NoAnswer as error:
            said = f"{error.message}; this is what was last written down"
            return {name: status if status.over else replace(status, words=said) for name, status in statuses.items()}
    for name, status in statuses.items():
        run = sweep.run(name)
        gone = status.state == "running" and status.host == socket.gethostname() and not living(run, status)
        if gone and (again := read_status(run)).state == "running" and not _kept(sweep):
            statuses[name] = replace(
                again, words="what had started it was ended; `knee sweep` goes on", ended_s=last_sign_s(run)
            )
    return statuses


def cancel_all(sweep: Sweep) -> tuple[int, int]:
    """Mark all that run or wait, and see to it; how many did. Whoever keeps a run sees the mark within seconds."""
    before = [status.state for status in sweep.statuses().values()]
    for name, status in sweep.statuses().items():
        if not status.over:
            write_text(sweep.run(name) / CANCEL, "")
    if sweep.launcher == "slurm":
        from knee.sweeps.slurm import cancel_jobs

        cancel_jobs(sweep)
    elif not _kept(sweep):  # nobody is there to see the marks
        with held(sweep.folder), hearing() as told:
            settle(sweep, float(sweep.options.get("timeout_s", 0.0)), told)
            for name, status in sweep.statuses().items():
                if not status.over:
                    write_status(sweep.run(name), not_started(status, "cancelled", CANCELLED))
    return before.count("running"), before.count("pending")


def put_back(sweep: Sweep, states: Sequence[str], ids: Sequence[str] = ()) -> int:
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
                    words="to be tried again",
                    node="",
                    job="",
                    put_back_s=time.time(),
                ),
            )
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
