"""A second process beside this one: it works from the other end, or answers what it is asked.

``second_process`` does the same work from the other end, into the same folder, until the two meet. What is made lies in
files that are whole or not there, so that neither has to know of the other: each makes what it does not find.
``answering_process`` starts while this one computes, and answers once there is something to ask. Whatever ends the
second process, the first makes the rest and says what is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

GRACE_S = 5.0
"""How long it may take to end."""


@contextlib.contextmanager
def second_process(module: str, asked: dict[str, Any]) -> Iterator[None]:
    """Run a module beside the block, where there is a second core; it reads what is asked as JSON from its input."""
    helper = _started(module, subprocess.DEVNULL)
    if helper is not None:
        assert helper.stdin is not None
        with contextlib.suppress(OSError), helper.stdin as pipe:
            pipe.write(json.dumps(asked))
    try:
        yield
    finally:
        if helper is not None:
            _end(helper)


@contextlib.contextmanager
def answering_process(module: str) -> Iterator[Callable[[Any], Any]]:
    """Run a module beside the block that answers each line of its input by a line, both JSON. None is the answer where
    there is no second core, or the module has failed."""
    helper = _started(module, subprocess.PIPE)

    def ask(question: Any) -> Any:
        if helper is None or helper.poll() is not None:
            return None
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            helper.stdin.write(json.dumps(question) + "\n")
            helper.stdin.flush()
            return json.loads(helper.stdout.readline())
        except (OSError, ValueError):  # it has ended, perhaps in the middle of a line
            return None

    try:
        yield ask
    finally:
        if helper is not None:
            _end(helper)
            for pipe in (helper.stdin, helper.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def answer_lines(answer: Callable[[Any], Any]) -> None:
    """In the second process: an answer for each line."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


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


def _started(module: str, output: int) -> subprocess.Popen[str] | None:
    if _cores() < 2 or not sys.executable:
        return None
    # modules are found where this process finds them
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", module]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL, env=environment, text=True
        )
    except OSError:  # no more processes, say
        return None


def _end(helper: subprocess.Popen[str]) -> None:
    helper.terminate()
    try:
        helper.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
