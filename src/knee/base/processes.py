"""Processes: how they are started, watched, ended and known. The package starts them here and nowhere else.

``ProcessGroup`` holds processes that work together, such as the ranks of a run. ``process_pool`` spreads function calls
over worker processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, NoReturn, TypeVar

from knee.base.signals import StopSignal, clean_up

ProcessKey = tuple[int, int]
"""Id and start, in the kernel's ticks since it booted: an id alone may have been given to another process since."""
Reason = TypeVar("Reason", bound=str)
POLL_S = 0.05
ASK_AGAIN_S = 5.0
REAP_S = 10.0
WORKER_GRACE_S = 5.0
"""How long a worker of a pool may take to end."""


class ProcessGroup:
    """Processes that work together: they are started one by one, and ended together."""

    def __init__(
        self,
        stop: StopSignal | None = None,
        *,
        peer_grace_s: float,
        end_grace_s: float,
        adopted: Sequence[ProcessKey] = (),
        ask: Callable[[signal.Signals], object] | None = None,
    ) -> None:
        self.stop = stop or StopSignal()
        self.peer_grace_s = peer_grace_s
        """How long the others may take to notice that one has failed, before all are ended."""
        self.end_grace_s = end_grace_s
        """How long what is asked to end may take, before it is killed."""
        self.ask = ask
        """Sends all a signal, where one to what was started would not reach them, or too many."""
        self.children: list[subprocess.Popen[bytes]] = []
        self.adopted = tuple(adopted)
        """Processes that somebody else has started."""
        self.keys: list[ProcessKey] = list(adopted)
        self.killed: set[int] = set()
        """Children that did not end when they were asked to, by the order of their start."""

    def start(
        self, words: Sequence[str], *, output: int | IO[bytes], env: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, with no input; ``OSError`` where that cannot be."""
        stdin = subprocess.DEVNULL
        child = subprocess.Popen(
            words, cwd=cwd, env=env, stdin=stdin, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.children.append(child)
        if (key := process_key(child.pid)) is not None:
            self.keys.append(key)
        return child

    @property
    def codes(self) -> list[int | None]:
        """Exit codes of the children; None for those that run."""
        return [child.poll() for child in self.children]

    @property
    def is_running(self) -> bool:
        """Whether any has not ended."""
        return any(code is None for code in self.codes) or any(map(alive, self.adopted))

    def wait(self, reason_to_end: Callable[[float], Reason]) -> Reason | Literal["signal", ""]:
        """Wait until all have ended. The reason for which they were ended; empty where they ended by themselves, or
        after one of them had failed.

        All are ended when a signal was caught ("signal"), when ``reason_to_end``, which is called with the monotonic
        time, gives a reason, or some time after one has failed.
        """
        failed_s = None
        while self.is_running:
            now = time.monotonic()
            if failed_s is None and any(self.codes):
                failed_s = now
            reason: Reason | Literal["signal"] = "signal" if self.stop.signal is not None else reason_to_end(now)
            if reason or (failed_s is not None and now - failed_s > self.peer_grace_s):
                self.end()
                return reason
            time.sleep(POLL_S)
        return ""

    def end(self) -> None:
        """Ask all to end, wait, and kill what is left."""
        asked_s, began_s = None, time.monotonic()
        while self.is_running and (now := time.monotonic()) - began_s < self.end_grace_s:
            if asked_s is None or (self.ask is not None and now - asked_s > ASK_AGAIN_S):
                asked_s = now
                self._send(signal.SIGTERM)
            time.sleep(POLL_S)
        if self.is_running:
            self.killed |= {at for at, code in enumerate(self.codes) if code is None}
            self._send(signal.SIGKILL)
        self.kill()

    def kill(self) -> None:
        """Kill and reap all, and what they have left behind in their sessions."""
        for key in self.keys:
            send(key, signal.SIGKILL)
        for child in self.children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=REAP_S)

    def _send(self, number: signal.Signals) -> None:
        if self.ask is not None:
            self.ask(number)
            return
        for key in self.keys:
            send(key, number)


def process_key(pid: int) -> ProcessKey | None:
    """The key of a process that lives; None where none does."""
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
    """Send a signal to a process and to those of its group, if it leads one; nothing where it has ended."""
    if not alive(process):
        return
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process[0]) == process[0]:
            os.killpg(process[0], number)
        else:
            os.kill(process[0], number)


class _Worker(SpawnProcess):
    """A process of a pool. Unlike others of multiprocessing it does not run the caller's main module again, which a
    library must not ask for, finds no modules in the current folder, and is not ended by Ctrl-C: its parent ends it."""

    def start(self) -> None:
        """Start, and only then hear a signal: a worker that is half started could not be ended in silence."""
        with _later_signals():
            super().start()

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        from multiprocessing.popen_spawn_posix import Popen

        main, safe = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH", "")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits what is blocked
        sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = ModuleType("__main__"), "1"
        try:
            return Popen(process_obj)
        finally:
            sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = main, safe
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _later_signals() -> Iterator[None]:
    """Signals that arrive in the block are raised after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, lambda number, _: caught.append(number)) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        for number in caught:
            signal.raise_signal(number)


@contextmanager
def process_pool(
    workers: int, initializer: Callable[..., object] | None = None, *given: Any
) -> Iterator[ProcessPoolExecutor]:
    """Worker processes for function calls; ``initializer`` is called in each with what is ``given``.

    At the end of the block the workers are ended, also in the middle of a call, and so they are with this process.
    """
    started: list[_Worker] = []

    class Context(SpawnContext):
        @staticmethod
        def Process(*words: Any, **more: Any) -> _Worker:  # type: ignore[override]
            started.append(_Worker(*words, **more))
            return started[-1]

    pool = ProcessPoolExecutor(workers, Context(), _begin_worker, (initializer, given))
    try:
        yield pool
    finally:
        deadline_s = time.monotonic() + WORKER_GRACE_S
        while alive := [worker for worker in started if worker.is_alive()]:
            for worker in alive:
                worker.terminate() if time.monotonic() < deadline_s else worker.kill()
            time.sleep(POLL_S)
        pool.shutdown()


def _begin_worker(initializer: Callable[..., object] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*given)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        with suppress(Exception):
            parent.join()
    _leave()


def _leave() -> NoReturn:
    """End at once, and leave no half of a file."""
    clean_up()
    os._exit(0)


def output_of(words: Sequence[str], *, timeout_s: float) -> str | None:
    """What a short command prints; None where it fails, takes too long or cannot be started."""
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def free_port() -> int:
    """A TCP port that nobody has now; somebody may, a moment later, and what needs it then fails."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def core_count() -> int:
    """Return the number of cores that this process may use; 1 in a daemonic process, which may start no others."""
    if multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
