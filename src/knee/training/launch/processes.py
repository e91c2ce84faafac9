"""Processes by their id and the moment they began: an id alone may have been given to another since."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

ProcessKey = tuple[int, int]
"""Id and start, in the kernel's ticks since it booted."""


def process_key(pid: int) -> ProcessKey | None:
    """A process that lives now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] in ("Z", "X") else (pid, int(stat[19]))


def alive(process: ProcessKey) -> bool:
    """Whether it is still that process."""
    return process_key(process[0]) == tuple(process)


def works_in(process: ProcessKey, folder: Path) -> bool:
    """Whether its working directory is that folder, wherever the folder was moved since."""
    with suppress(OSError):
        return Path(f"/proc/{process[0]}/cwd").samefile(folder)
    return False


def send(process: ProcessKey, number: int) -> None:
    """A signal to the process and those it leads, if it is still there."""
    if not alive(process):
        return
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process[0]) == process[0]:
            os.killpg(process[0], number)
        else:
            os.kill(process[0], number)


def kill_group(leader: int) -> None:
    """End what is left of a group after its leader."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
