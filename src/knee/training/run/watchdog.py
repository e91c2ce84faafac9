"""A thread beside the run: it beats, hears signals, and ends a run that has stopped moving.

The main thread of a rank whose peer is gone may sit in a collective for ever, where Python's signal handlers do not
run. This thread still does: it writes down what the rank knows, and ends the process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from knee.base.errors import ExitCode
from knee.base.signals import BY_SIGNAL, SIGNALS, catch_signals

LAUNCHED = "KNEE_LAUNCHED"
"""Environment variable with the process id of a rank's parent, which writes the record of a run that ends early."""
BEAT_S = 1.0
"""Between heartbeats of one rank; a hundred more ranks make it a second longer, to spare a shared file system."""
GRACE_S = 5.0
"""How long the main thread may take to the end of its step once a signal has come."""
EARLY_FRAC = 0.9
"""Of the timeout: NCCL's own watchdog ends the process at the whole of it, without a record."""
POLL_S = 0.2


class RankTerminated(BaseException):
    """Someone asked the run to end. No Exception, so that nothing on the way takes it for a failure of its own."""

    def __init__(self, number: int, *, orphaned: bool = False) -> None:
        super().__init__(
            "the process that started it has ended" if orphaned else f"ended by {signal.Signals(number).name}"
        )
        self.number = number


class Watch:
    """Beats until it is closed. ``progress`` is anything that changes as the run moves on."""

    def __init__(
        self,
        *,
        path: Path | None,
        world: int,
        timeout_s: float,
        progress: Callable[[], Any],
        step: Callable[[], int],
        write_final_record: Callable[[str, str, bool], None],
        parent: int = 0,
    ) -> None:
        self.parent = parent
        """The process that started this one and watches over it; 0 where nobody does."""
        self.path, self.timeout_s = path, timeout_s
        self.progress, self.step, self.write_final_record = progress, step, write_final_record
        self.beat_s = BEAT_S * (1 + world / 100)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._spoken = self._orphaned = False
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._caught = ExitStack()
        self._stop = self._caught.enter_context(catch_signals(wakeup=writer))
        self._thread = threading.Thread(target=self._run, name="knee-watch", daemon=True)
        self._thread.start()

    @property
    def signal(self) -> int | None:
        """The signal that asked this rank to end; None while none has."""
        return self._stop.signal

    def check(self) -> None:
        """Raise ``RankTerminated`` if this rank was asked to end; called between steps."""
        if self.signal is not None:
            raise self.asked(self.signal)

    def asked(self, number: int) -> RankTerminated:
        """Return the exception that says why the run ends."""
        return RankTerminated(number, orphaned=self._orphaned)

    def claim(self) -> bool:
        """Whether the caller is the first to speak for this rank: main thread or watch, never both."""
        with self._lock:
            first, self._spoken = not self._spoken, True
            return first

    def close(self) -> None:
        """Stop watching, and restore the signal handlers."""
        self._over.set()
        self._thread.join(timeout=2 * POLL_S + 1)
        self._caught.close()

    def _run(self) -> None:
        moved_s, seen, next_beat_s, asked_s = time.monotonic(), self.progress(), 0.0, None
        while not self._over.is_set():
            ready, _, _ = select.select([self._reader], [], [], POLL_S)
            if ready:
                heard = [number for number in os.read(self._reader, 64) if number in SIGNALS]
                self._stop.signal = self.signal or next(iter(heard), None)
            if self.parent and os.getppid() != self.parent:
                self._orphaned = self.signal is None or self._orphaned
                self._stop.signal = self.signal or signal.SIGTERM  # nobody else would end this process
            now = time.monotonic()
            if now >= next_beat_s:
                self._beat()
                next_beat_s = now + self.beat_s
            state = self.progress()
            if state != seen:
                moved_s, seen = now, state
            if self.signal is not None:
                asked_s = asked_s or now
                if now - asked_s > min(GRACE_S, self.timeout_s):
                    self._end("terminated", str(self.asked(self.signal)), BY_SIGNAL + self.signal, lost=False)
            elif now - moved_s > EARLY_FRAC * self.timeout_s:
                error = f"no step has finished for {now - moved_s:.0f} s: another rank has stopped or is stuck"
                self._end("failed", error, ExitCode.FAILED, lost=True, stalled_s=round(now - moved_s))

    def _end(self, status: str, error: str, code: int, *, lost: bool, stalled_s: int | None = None) -> None:
        if self._over.is_set() or not self.claim():
            self._over.wait(GRACE_S)  # the main thread is writing
            return
        try:
            if stalled_s is not None:
                self._beat(stalled_s=stalled_s)
            self.write_final_record(status, error, lost)
        finally:
            os._exit(code)

    def _beat(self, **more: int) -> None:
        """Write the heartbeat; errors are ignored, because a full disk must not end the run."""
        if self.path is None:
            return
        with suppress(OSError, RuntimeError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".new")
            state = {"step": self.step(), "progress": str(self.progress()), "time_s": time.time(), "pid": os.getpid()}
            partial.write_text(json.dumps({**state, **more}), encoding="utf-8")
            os.replace(partial, self.path)
