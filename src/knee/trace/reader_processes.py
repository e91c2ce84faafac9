"""Several traces read at the same time, by processes that import nothing of the caller's program.

multiprocessing would run the caller's main module again, or fork its threads; a library may do neither.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from knee.errors import InputError, RunFailed
from knee.signals import clean_up
from knee.trace.kernel_classes import Classes
from knee.trace.read_trace import Trace, read_trace

WORKER = "from knee.trace.reader_processes import serve; serve()"


def read_parallel(
    files: Sequence[Path],
    classes: Classes,
    *,
    axes: Any,
    cache: bool,
    workers: int,
    done: Callable[[Trace | InputError], None],
) -> list[Trace | InputError]:
    """Read all, the largest first, each with its trace or why there is none; ``done`` is called after each."""
    order = sorted(range(len(files)), key=lambda i: -files[i].stat().st_size)
    found: dict[int, Trace | InputError] = {}
    processes = [_start() for _ in range(workers)]
    todo = iter(order)  # next() of a list's iterator is atomic

    def feed(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        for i in todo:
            try:
                pickle.dump((files[i], classes, axes, cache), process.stdin)
                process.stdin.flush()
                answer = pickle.load(process.stdout)
            except (EOFError, OSError, pickle.UnpicklingError):
                raise RunFailed(
                    f"{files[i]}: the process that read it was killed", hint="the machine may have run out of memory"
                ) from None
            if isinstance(answer, Exception) and not isinstance(answer, InputError):
                raise answer
            found[i] = answer
            done(answer)

    pool = ThreadPoolExecutor(workers)
    try:
        for future in [pool.submit(feed, process) for process in processes]:
            future.result()
    finally:
        # the pool's threads wait for the processes: those end first, or Ctrl-C would wait for whole traces
        for process in processes:
            process.terminate()
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()
    return [found[i] for i in range(len(files))]


def _start() -> subprocess.Popen[bytes]:
    """A worker. It imports what this process would and nothing of the current folder (-P), and Ctrl-C on the terminal
    is not for it: it ends with its pipe."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def serve() -> None:
    """Read what is asked for. Ends with whoever asks, in the middle of a trace too, and leaves no half of a file."""
    asked: SimpleQueue[Any] = SimpleQueue()
    answers = sys.stdout.buffer

    def hear() -> None:
        try:
            while True:
                asked.put(pickle.load(sys.stdin.buffer))
        except (EOFError, pickle.UnpicklingError):
            _leave()

    signal.signal(signal.SIGTERM, lambda *_: _leave())
    threading.Thread(target=hear, daemon=True).start()
    while True:
        path, classes, axes, cache = asked.get()
        try:
            answer: Trace | Exception = read_trace(path, classes, axes=axes, cache=cache)
        except Exception as error:  # raised again where it was asked for
            answer = error
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            _leave()


def _leave() -> NoReturn:
    clean_up()
    os._exit(0)
