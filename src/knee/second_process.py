"""A second process that does the same work from the other end, into the same folder, until the two meet.

What is made lies in files that are whole or not there, so that neither has to know of the other: each makes what it
does not find. Whatever ends the second process, the first makes the rest and says what is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

GRACE_S = 5.0
"""How long it may take to end."""


@contextlib.contextmanager
def second_process(module: str, asked: dict[str, Any]) -> Iterator[None]:
    """Run a module beside the block, where there is a second core; it reads what is asked as JSON from its input."""
    helper = _started(module, json.dumps(asked)) if _cores() > 1 and sys.executable else None
    try:
        yield
    finally:
        if helper is not None:
            _end(helper)


def asked_of_this() -> dict[str, Any]:
    """In the second process: what is asked."""
    found: dict[str, Any] = json.loads(sys.stdin.read())
    return found


def while_wanted(items: Iterable[Item]) -> Iterator[Item]:
    """In the second process: one after the other, as long as the first one lives."""
    first = os.getppid()
    for item in items:
        if os.getppid() != first:
            return
        yield item


def _started(module: str, asked: str) -> subprocess.Popen[str] | None:
    quiet = subprocess.DEVNULL
    # modules are found where this process finds them
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", module]
    try:
        helper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=environment, text=True
        )
        assert helper.stdin is not None
        with contextlib.suppress(OSError), helper.stdin as pipe:
            pipe.write(asked)
    except OSError:  # no more processes, say
        return None
    return helper


def _end(helper: subprocess.Popen[str]) -> None:
    helper.terminate()
    try:
        helper.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
