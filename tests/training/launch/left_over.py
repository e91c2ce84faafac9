"""Ends what a test run has started, once that run is over, however it ended: ``python left_over.py TOKEN``.

It waits for the end of its standard input, whose other end the test run holds: the kernel closes that even where the
run is killed. Everything that was started from tests has the token among its variables, daemons and their jobs too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "KNEE_TESTS"


def processes_of(token: str) -> list[int]:
    """Ids of all processes with the token, but this one."""
    found, word = [], f"{VARIABLE}={token}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(path.name) != os.getpid() and word in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def end_all(token: str) -> None:
    """Kill again and again, because what is killed may have started more."""
    while pids := processes_of(token):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def remove_hosts(token: str) -> None:
    """Network namespaces, and their files of names."""
    for path in Path("/run/netns").glob(f"knee-{token}-*"):
        subprocess.run(["ip", "netns", "delete", path.name], check=False, capture_output=True)
    for path in Path("/etc/netns").glob(f"knee-{token}-*"):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    end_all(sys.argv[1])
    remove_hosts(sys.argv[1])
