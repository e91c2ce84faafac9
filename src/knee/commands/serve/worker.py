"""A process that answers questions one at a time: ``python -m knee.commands.serve.worker``.

A question is the name of an answer, a zero byte and the body as it came; the process parses it, so that whatever a body
does to it, the server goes on. It ends with the server: its input is then closed.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

from knee.commands.serve.frames import ANSWER, EVENT, READY, frame, next_frame

NICE = 5
"""Searches leave the processors to the answers that somebody waits for."""


def main() -> None:
    """Answer until the input ends. Arguments: the address space in bytes, and ``search`` where it searches."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    space, role = int(sys.argv[1]), sys.argv[2]
    with suppress(ValueError, OSError):  # where the system has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
    if role == "search":
        os.nice(NICE)
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what anything prints is not part of an answer
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    from knee.commands.serve.answers.dispatch import answer, warm_up

    warm_up(role)
    output.write(frame(READY))
    while True:
        name, _, body = questions.get().partition(b"\0")
        status, data = answer(name.decode(), body, lambda event: _write(output, frame(EVENT, event)))
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        _write(output, frame(ANSWER, f"{status:03d} {used:015d} ".encode() + data))


def _write(output: BinaryIO, data: bytes) -> None:
    """All of it: a raw write to a pipe may take a part."""
    view = memoryview(data)
    while view:
        view = view[output.write(view) :]


def _listen(stream: BinaryIO, questions: queue.SimpleQueue[bytes]) -> None:
    """Reads in a thread of its own, so that a process in the middle of a search ends with the server."""
    while (found := next_frame(stream)) is not None:
        questions.put(found[1])
    os._exit(0)


if __name__ == "__main__":
    main()
