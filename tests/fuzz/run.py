"""One case in this process: under limits, with everything that it says or leaves caught."""

from __future__ import annotations

import gc
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.case import Case
from fuzz.guard import GUARD, Started, guarded
from knee.specs.load import forget_files

CPU_S = 20.0
"""Of one case. Files have a few kilobytes, and arguments ask about a few GPUs; a search that is asked about many may
take seconds."""
MEMORY_BYTES = 1 << 30
"""That a case may add to the process at its peak."""
STARTED = -1
"""Stands for an exit code where the work was about to begin."""


class TooLong(BaseException):
    """The case has used its CPU time. No Exception, because programs catch those."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a case ended."""

    code: int | None = None
    """None where it ended by an exception."""
    out: str = ""
    err: str = ""
    error: BaseException | None = None
    trace: str = ""
    complaints: list[str] = field(default_factory=list)
    """Warnings, and exceptions that nobody could raise."""
    violations: list[str] = field(default_factory=list)
    late: float = 0.0
    """The limit of CPU time that was passed."""
    cpu_s: float = 0.0
    peak_bytes: int = 0


def run_case(case: Case, folder: Path, *, cpu_s: float = CPU_S) -> Outcome:
    """Run ``knee`` with the case's words in a folder of its own, which is removed."""
    home = folder / "home"
    shutil.rmtree(folder, ignore_errors=True)
    inside = folder / "a" / "case"  # ".." stays among what is removed
    inside.mkdir(parents=True)
    case.write(inside)
    os.chdir(inside)
    os.environ |= {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TMPDIR": str(folder),
        "COLUMNS": "100",
        "KNEE_TRACEBACK": "1",
    }
    tempfile.tempdir = str(folder)  # Python remembers the one that it found first
    outcome = Outcome()
    before = _reset_peak()
    began = _cpu_s()
    try:
        with (
            _watched(outcome),
            _streams(case, outcome),
            guarded(folder, case.words) as outcome.violations,
            _limited(cpu_s, outcome),
        ):
            _call(case, outcome)
    except TooLong as error:  # in the middle of cleaning up
        outcome.error = error
    outcome.cpu_s = _cpu_s() - began
    outcome.peak_bytes = max(0, _peak_bytes() - before)
    tempfile.tempdir = None
    os.chdir(folder)
    forget_files()
    return outcome


def _call(case: Case, outcome: Outcome) -> None:
    from knee.commands.main import main

    try:
        main(list(case.words), prog_name="knee")
        outcome.code = 0
    except SystemExit as end:
        outcome.code = 0 if end.code is None else int(end.code) if isinstance(end.code, int) else 1
    except Started:
        outcome.code = STARTED
    except BaseException as error:
        # a MemoryError has no room for a traceback of thousands of frames
        outcome.error, outcome.trace = error, "".join(traceback.format_exception(error, limit=-30))[-8000:]
    # whoever catches everything at the top has not seen what these were
    if GUARD.started:
        outcome.code, outcome.error = STARTED, None
    if outcome.late:
        outcome.error, outcome.trace = TooLong(f"more than {outcome.late:g} s of CPU time"), outcome.trace


@contextmanager
def _limited(cpu_s: float, outcome: Outcome) -> Iterator[None]:
    """TooLong after that much CPU time, and again each second, should someone swallow it."""

    def late(_: int, frame: FrameType | None) -> None:
        if not outcome.late:
            outcome.late, outcome.trace = cpu_s, "".join(traceback.format_stack(frame, limit=30))
        raise TooLong(f"more than {cpu_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, cpu_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _streams(case: Case, outcome: Outcome) -> Iterator[None]:
    """Standard streams as a program has them: stdout refuses lone surrogates, stderr writes them as escapes."""
    before = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(case.stdin), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", newline="")
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):
                stream.flush()
        outcome.out, outcome.err = (pipe.getvalue().decode("utf-8", "replace") for pipe in (out, err))
        sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def _watched(outcome: Outcome) -> Iterator[None]:
    """Python's own complaints, which would go to stderr."""

    def warned(message: Any, category: type, filename: str, line: int, *_: object) -> None:
        outcome.complaints.append(f"{category.__name__} at {_short(filename)}:{line}: {message}")

    def unraised(told: Any) -> None:
        outcome.complaints.append(f"unraisable {type(told.exc_value).__name__}: {told.exc_value}")

    def in_thread(told: Any) -> None:
        outcome.complaints.append(f"in a thread {told.exc_type.__name__}: {told.exc_value}")

    hooks: tuple[tuple[Any, str, Callable[..., None]], ...] = (
        (warnings, "showwarning", warned),
        (sys, "unraisablehook", unraised),
        (threading, "excepthook", in_thread),
    )
    before = [getattr(where, name) for where, name, _ in hooks]
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)  # as Python does by itself
        for where, name, hook in hooks:
            setattr(where, name, hook)
        try:
            yield
        finally:
            for (where, name, _), old in zip(hooks, before, strict=True):
                setattr(where, name, old)


def _short(filename: str) -> str:
    return filename.rpartition("/site-packages/")[2].rpartition("/src/")[2] or filename


def limit_memory(bytes_in_all: int = 3 << 30) -> None:
    """No case may take the machine's memory: beyond this an allocation fails. Call once in a worker.

    Of data, not of addresses: what draws the figures reserves many gigabytes of those.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_in_all, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    gc.freeze()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _reset_peak() -> int:
    """Forget the process' peak of memory; how much it has now."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM"):
                return int(line.split()[1]) * 1024
    return 0
