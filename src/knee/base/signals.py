"""The one place that handles signals: a command ends on them, and whoever supervises processes notes them.

``listen`` makes SIGINT, SIGTERM and SIGHUP end a command at any moment: once with its clean-up, twice at once.
``catch_signals`` notes them for a while instead, because what was started has to be ended first.

In a command the first signal is raised in the main thread as ``KeyboardInterrupt``, so that ``with`` and ``finally`` do
their work. That alone does not always arrive: Python's handlers wait for a library's call to return, an exception that
is raised inside a destructor is dropped, and a shell's background jobs inherit that SIGINT is ignored. So handlers are
installed whatever was inherited, a process whose exception is dropped ends there, and a thread that hears of signals at
once ends one that has not ended by itself. SIGHUP is heard unless it is ignored: that is what ``nohup`` sets.

Imports are few, because a signal must not meet a process that is still importing what it needs to hear it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

GRACE_S = 5.0
"""How long the clean-up may take after a signal, before the process is ended as it is."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_SIGNAL = 128
"""Shells add this to a signal's number."""
SHOW_CURSOR = b"\x1b[?25h"

_heard: list[int] = []
_code: list[int] = []
_last: list[Callable[[], None]] = []


class Interrupted(KeyboardInterrupt):
    """SIGINT. A class of its own: CPython remembers that a plain KeyboardInterrupt has left an ``exec``, say that of a
    dataclass that was being imported, and at its end kills itself although the exception was caught."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP. Whoever cleans up after Ctrl-C does the same for it."""


class StopSignal:
    """The first signal that asked this process to end; None while none has."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal: int | None = None


@contextmanager
def catch_signals(*, wakeup: int | None = None, second_ends: bool = False) -> Iterator[StopSignal]:
    """Note the first signal to end while the block runs, instead of being ended by it.

    With ``second_ends`` the same signal ends the process when it comes again.
    ``wakeup`` is a file descriptor that gets the number of each signal as a byte at once, also while the main thread is
    in a library's call. Only the main thread can catch signals; in another one nothing is ever noted. SIGHUP stays
    ignored where it is.
    """
    stop = StopSignal()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form that signal calls
        stop.signal = stop.signal or number
        if second_ends:
            signal.signal(number, signal.SIG_DFL)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, note) for number in _heeded()}
    woken = None if wakeup is None else signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        if woken is not None:
            signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded() -> list[signal.Signals]:
    """The signals that end a process; ``nohup`` has it ignore SIGHUP."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]


def before_the_end(work: Callable[[], None]) -> Callable[[], None]:
    """Have this done also where a process is ended without unwinding. It may be done twice, and at any moment."""
    _last.append(work)
    return work


def listen() -> None:
    """Hear signals from now on, in the main thread of a process that is a command."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)  # else a child's signals would be written to its parent's pipe
    for number in _heeded():
        signal.signal(number, _hear)
    sys.unraisablehook = _dropped
    threading.Thread(target=_watch, args=(reader,), name="knee-signals", daemon=True).start()


def heard() -> int | None:
    """The exit code of the first signal that was heard; None where none was."""
    return BY_SIGNAL + _heard[0] if _heard else None


def ending(code: int) -> None:
    """All is said and written: a signal from now on only makes the process end sooner, with this code."""
    _code.append(code)


def _hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form that signal calls
    _heard.append(number)
    if len(_heard) > 1 or _code:
        _end()
    raise Interrupted if number == signal.SIGINT else Terminated


def _dropped(what: sys.UnraisableHookArgs) -> None:
    """Python tells here of an exception that nobody can catch, in a destructor or a callback of an import."""
    if isinstance(what.exc_value, Interrupted | Terminated):
        _end()
    sys.__unraisablehook__(what)


def _watch(reader: int) -> None:
    """Sees to it that a process ends that a signal was sent to, unless another handler has taken the signal over."""
    while True:
        numbers = os.read(reader, 64)
        for number in numbers:
            if number in SIGNALS and signal.getsignal(number) is _hear:
                time.sleep(GRACE_S)
                _heard.append(number)
                _end()


def clean_up() -> None:
    """Do what was registered for the end."""
    for work in _last:
        with suppress(Exception):  # nothing may keep the process from ending
            work()


def _end() -> NoReturn:
    clean_up()
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)  # a bar may have hidden it
    os._exit(_code[0] if _code else BY_SIGNAL + _heard[0])


def _forget() -> None:
    signal.set_wakeup_fd(-1)
