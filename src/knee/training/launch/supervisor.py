"""Supervises one run: starts it, watches it, ends it when it hangs, finds out why it ended, and writes that down.

All that is known of the run is in its folder, so nothing is lost when the supervisor itself is ended.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from knee.base.errors import KneeError
from knee.base.processes import POLL_S, ProcessGroup, ProcessKey
from knee.base.signals import StopSignal
from knee.specs.defaults import TIMEOUT_S
from knee.training.launch.failures import Diagnosis, StopReason, diagnose, with_diagnosis
from knee.training.launch.run_status import Status, read_status, write_status
from knee.training.launch.sweep_folder import (
    ENVIRONMENT,
    SweepRun,
    is_cancel_requested,
    new_attempt,
    read_record,
    with_usage,
)
from knee.training.launch.terminate import end_ranks
from knee.training.run.run_record import HEARTBEATS, LOGS, PIECES, RECORD, TRACES, files_of_ranks

HEARTBEAT_POLL_S = 1.0
"""Between looks at heartbeats and at whether the run was cancelled; longer with many ranks."""
PEER_GRACE_S = 15.0
"""How long other nodes may take to notice that one has failed, before they are asked to end."""
TERMINATE_GRACE_S = 25.0
"""How long what is asked to end may take; Slurm itself waits for 30 s by default."""
LATE_SIGNAL_S = 3.0
"""How much later than a job's steps its supervisor may receive Slurm's signal to end."""
TIMEOUT_MARGIN_S = 15.0
"""Beyond the timeout after which ranks end themselves."""


@dataclass(slots=True, kw_only=True)
class SupervisedRun:
    """A run to supervise: its commands, limits and nodes."""

    run: Path
    entry: SweepRun
    commands: Sequence[Sequence[str]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    """A run of which nothing moves for so long, and a little, is ended."""
    time_s: float | None = None
    """A run that takes longer is ended."""
    nodes: tuple[str, ...] = ()
    job: str = ""
    signal_ranks: Callable[[signal.Signals], object] | None = None
    """Sends the ranks a signal, where one to what was started would not reach them, or kill them at once."""
    unreachable: Callable[[], list[str]] = list
    """Nodes that do not answer."""
    adopted: tuple[ProcessKey, ...] = ()
    """Processes of a run that somebody else has started."""
    stop: StopSignal = field(default_factory=StopSignal)


def supervise(what: SupervisedRun) -> Status:
    """Start the run, or adopt it, and wait for its end; returns its last status."""
    return _Supervisor(what).run()


class _Supervisor:
    def __init__(self, what: SupervisedRun) -> None:
        self.what = what
        self.before = read_status(what.run)
        self.group = ProcessGroup(
            what.stop,
            peer_grace_s=PEER_GRACE_S,
            end_grace_s=TERMINATE_GRACE_S,
            adopted=what.adopted,
            ask=None if what.signal_ranks is None else self._ask,
        )
        self.stop_reason: StopReason = ""
        self.moved_s = self.began_s = time.monotonic()
        self.looked_s, self.waited_s = float("-inf"), 0.0
        self.seen: object = None
        self.killed_before = _memory_kills()

    def run(self) -> Status:
        what = self.what
        if what.adopted:
            status = self.before
        else:
            before = self.before
            if before.state == "running":  # its supervisor was killed, with its node or by hand
                before = with_usage(before, what.entry, what.run)
            new_attempt(what.run, before.attempts)
            status = Status(
                state="running",
                attempts=before.attempts + 1,
                started_s=time.time(),
                gpu_h=before.gpu_h,
                energy_j=before.energy_j,
                nodes=what.nodes,
                job=what.job,
                host=socket.gethostname(),
                command=tuple(word for words in what.commands for word in words),
            )
            write_status(what.run, status)
        trouble = None if what.adopted else self._start()
        status = write_status(what.run, replace(status, pids=tuple(self.group.keys)))
        if trouble is None:
            self.stop_reason = self.group.wait(self._reason_to_stop)
            self._await_late_signal()
        return self._over(status, trouble)

    def _start(self) -> str | None:
        """Start all commands; returns the reason where one cannot be started."""
        what = self.what
        for number, words in enumerate(what.commands):
            with (what.run / LOGS / f"start{number}.log").open("ab") as log:
                try:
                    self.group.start(words, cwd=what.run, env=os.environ | dict(what.environment), output=log)
                except OSError as error:
                    self.group.end()
                    return f"{words[0]} could not be started: {error.strerror}"
        return None

    def _ask(self, number: signal.Signals) -> None:
        """Send the ranks a signal. Slurm's own has reached them as well, and it may be too busy to pass one on."""
        if number == signal.SIGKILL or not (self.what.job and self.what.stop.signal is not None):
            assert self.what.signal_ranks is not None
            self.what.signal_ranks(number)

    def _await_late_signal(self) -> None:
        """Whether a run that ended by itself did so: a signal to all may have reached it before its supervisor."""
        if self.stop_reason or read_record(self.what.run).get("status") == "done":
            return
        began_s = time.monotonic()
        while self.what.job and self.what.stop.signal is None and time.monotonic() - began_s < LATE_SIGNAL_S:
            time.sleep(POLL_S)
        if self.what.stop.signal is not None:
            self.stop_reason = "signal"

    def _reason_to_stop(self, now: float) -> StopReason:
        what = self.what
        if now - self.looked_s < HEARTBEAT_POLL_S * (1 + what.entry.gpus / 200):
            return ""
        self.looked_s = now
        if is_cancel_requested(what.run):
            return "cancel"
        if what.time_s is not None and now - self.began_s > what.time_s:
            return "time"
        state = _progress(what.run)
        if state != self.seen:
            self.seen, self.moved_s = state, now
        self.waited_s = now - self.moved_s
        return "hang" if self.waited_s > what.timeout_s + TIMEOUT_MARGIN_S else ""

    def _over(self, status: Status, trouble: str | None) -> Status:
        what = self.what
        self.group.kill()
        end_ranks(what.run, signal.SIGKILL)  # torchrun starts each in a new session: they may outlive it
        codes = self.group.codes
        if trouble is not None:
            found = Diagnosis(state="failed", cause="software", words=trouble)
        else:
            # nodes are asked only where something went wrong: it takes a while
            asks = read_record(what.run).get("status") != "done" and not self.stop_reason
            unreachable = what.unreachable() if asks else []
            found = diagnose(
                what.run,
                codes,
                stop_reason=self.stop_reason,
                unreachable=unreachable,
                killed_for_memory=_memory_kills() > self.killed_before,
                waited_s=self.waited_s,
            )
        if found.state == "oom":
            _record_memory(what.run, found)
        status = with_usage(status, what.entry, what.run, ended_s=time.time())
        return write_status(what.run, replace(with_diagnosis(status, found), codes=tuple(codes)))


def _progress(run: Path) -> object:
    """Anything that changes while a run makes progress: heartbeats of its ranks, but for their time.

    Where no rank beats yet, or the program has no heartbeats, it is the size of its logs; where there are heartbeats,
    logs do not count, because libraries write into them whether the run moves or not.
    """
    beats = {
        rank: {key: value for key, value in plain.items() if key != "time_s"}
        for rank, plain in files_of_ranks(run / HEARTBEATS)
    }
    sizes = []
    for folder in (PIECES, TRACES) if beats else (LOGS, ENVIRONMENT):
        for path in (run / folder).glob("*"):
            with suppress(OSError):
                sizes.append(path.stat().st_size)
    return beats, len(sizes), sum(sizes), (run / RECORD).exists()


def _record_memory(run: Path, found: Diagnosis) -> None:
    """A run that was killed for want of memory is evidence, also where the trainer could not record it.

    Evidence is what the job's own device had too little of: a host, a limit on it, or /dev/shm say nothing of what a
    GPU holds. Such a run has failed, and its record does not say whether the plan fits.
    """
    from knee.training.run.run_record import Status as RecordStatus
    from knee.training.run.run_record import compose, read_pieces, write_record
    from knee.training.run.worker import read_job

    record: dict[str, Any] = read_record(run)
    if record.get("status") == "oom":
        return
    with suppress(KneeError, OSError, KeyError, TypeError, ValueError):
        job = read_job(run / "job.json")
        certain = found.memory == ("host" if job.device == "cpu" else "device")
        status: RecordStatus = "oom" if certain else "failed"
        record = record or compose(job, read_pieces(run), status=status, error=found.words, rank=found.rank)
        fits = False if certain else None
        write_record(run, {**record, "status": status, "error": found.words, "fits": fits})


def _memory_kills() -> int:
    """Processes of this one's control group that the kernel has killed for want of memory, so far.

    Others may be in that group too: the count is evidence on a run only where a rank of it was killed.
    """
    with suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("::")[2]
        events = Path("/sys/fs/cgroup", own.lstrip("/"), "memory.events").read_text(encoding="utf-8")
        return sum(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
    return 0
