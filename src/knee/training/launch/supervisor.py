"""Sees one run through: starts it, watches it, ends it when it hangs, reads why it ended, and writes that down.

In a Slurm job it is a separate process, ``python -m knee.training.launch.supervisor RUN -- srun ... torchrun ...``.
What it knows is in the run's folder, so nothing is lost when whoever submitted the job is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from knee.base.errors import KneeError
from knee.specs.defaults import TIMEOUT_S
from knee.training.launch.failures import Diagnosis, StopReason, diagnose, diagnosed
from knee.training.launch.processes import ProcessKey, alive, kill_group, process_key, send
from knee.training.launch.run_files import files_of_ranks
from knee.training.launch.run_status import Status, read_status, write_status
from knee.training.launch.sweep_folder import ENVIRONMENT, SweepRun, is_cancel_requested, new_attempt, read_record
from knee.training.launch.terminate import end_ranks
from knee.training.launch.usage import with_usage
from knee.training.run.run_record import HEARTBEATS, LOGS, PIECES, RECORD, TRACES

POLL_S = 0.1
HEARTBEAT_POLL_S = 1.0
"""Between looks at heartbeats and at whether the run was cancelled; longer with many ranks."""
PEER_GRACE_S = 15.0
"""How long other nodes may take to notice that one has failed, before they are asked to end."""
TERMINATE_GRACE_S = 25.0
"""How long what is asked to end may take; Slurm itself waits for 30 s by default."""
ASK_AGAIN_S = 5.0
LATE_SIGNAL_S = 3.0
"""How much later than a job's steps its supervisor may receive Slurm's signal to end."""
TIMEOUT_MARGIN_S = 15.0
"""Beyond the timeout after which ranks end themselves."""


@dataclass(slots=True)
class StopSignal:
    """The signal that this process received; it ends the run, and not its supervisor."""

    signal: int | None = None


@contextmanager
def catch_signals() -> Iterator[StopSignal]:
    """Note the first signal to end instead of being ended by it, while the block runs."""
    stop = StopSignal()

    def note(number: int, frame: Any) -> None:  # noqa: ARG001 - the form that signal calls
        stop.signal = stop.signal or number

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True, kw_only=True)
class SupervisedRun:
    """A run that is to be supervised, and how."""

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
    """See the run through; how it stands then."""
    return _Supervisor(what).run()


class _Supervisor:
    def __init__(self, what: SupervisedRun) -> None:
        self.what = what
        self.before = read_status(what.run)
        self.children: list[subprocess.Popen[bytes]] = []
        self.pids: list[ProcessKey] = list(what.adopted)
        self.stop_reason: StopReason = ""
        self.moved_s = self.began_s = time.monotonic()
        self.seen: object = None
        self.waited_s = 0.0
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
            status = replace(
                Status(),
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
        status = write_status(what.run, replace(status, pids=tuple(self.pids)))
        if trouble is None:
            self._wait()
            self._await_late_signal()
        return self._over(status, trouble)

    def _start(self) -> str | None:
        """Start all; why that could not be, where it could not."""
        what = self.what
        for number, words in enumerate(what.commands):
            with (what.run / LOGS / f"start{number}.log").open("ab") as log:
                try:
                    child = subprocess.Popen(
                        words,
                        cwd=what.run,
                        env=os.environ | dict(what.environment),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                except OSError as error:
                    self._end("")
                    return f"{words[0]} could not be started: {error.strerror}"
            self.children.append(child)
            process = process_key(child.pid)
            if process is not None:
                self.pids.append(process)
        return None

    def _codes(self) -> list[int | None]:
        return [child.poll() for child in self.children]

    def _running(self) -> bool:
        if self.what.adopted:
            return any(map(alive, self.what.adopted))
        return any(code is None for code in self._codes())

    def _wait(self) -> None:
        failed_s = looked_s = None
        while self._running():
            now = time.monotonic()
            if failed_s is None and any(self._codes()):
                failed_s = now
            if looked_s is None or now - looked_s > HEARTBEAT_POLL_S * (1 + self.what.entry.gpus / 200):
                looked_s = now
                why = self._reason_to_stop(now)
                if why or (failed_s is not None and now - failed_s > PEER_GRACE_S):
                    self._end(why)
                    return
            if self.what.stop.signal is not None:
                self._end("signal")
                return
            time.sleep(POLL_S)

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
        if is_cancel_requested(what.run):
            return "cancel"
        if what.time_s is not None and now - self.began_s > what.time_s:
            return "time"
        state = _progress(what.run)
        if state != self.seen:
            self.seen, self.moved_s = state, now
        return "hang" if now - self.moved_s > what.timeout_s + TIMEOUT_MARGIN_S else ""

    def _end(self, why: StopReason) -> None:
        """Ask, wait, kill."""
        self.stop_reason, self.waited_s = why, time.monotonic() - self.moved_s
        signal_ranks = self.what.signal_ranks
        if signal_ranks is None:
            for process in self.pids:
                send(process, signal.SIGTERM)
        asked_s, began_s = None, time.monotonic()
        while self._running() and (now := time.monotonic()) - began_s < TERMINATE_GRACE_S:
            # a signal from Slurm has reached the ranks as well; and it may be too busy to pass one on
            by_slurm = why == "signal" and self.what.job
            if signal_ranks is not None and not by_slurm and (asked_s is None or now - asked_s > ASK_AGAIN_S):
                asked_s = now
                signal_ranks(signal.SIGTERM)
            time.sleep(POLL_S)
        if signal_ranks is not None and self._running():
            signal_ranks(signal.SIGKILL)
        for process in self.pids:
            send(process, signal.SIGKILL)
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=10)

    def _over(self, status: Status, trouble: str | None) -> Status:
        what = self.what
        for child in self.children:
            kill_group(child.pid)
        end_ranks(what.run, signal.SIGKILL)  # torchrun starts each in a new session: they may outlive it
        codes = self._codes()
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
        return write_status(what.run, replace(diagnosed(status, found), codes=tuple(codes)))


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
    from knee.training.run.run_record import compose, read_pieces, write_record
    from knee.training.run.worker import read_job

    record: dict[str, Any] = read_record(run)
    if record.get("status") == "oom":
        return
    with suppress(KneeError, OSError, KeyError, TypeError, ValueError):
        job = read_job(run / "job.json")
        certain = found.memory == ("host" if job.device == "cpu" else "device")
        if not record:
            record = compose(
                job, read_pieces(run), status="oom" if certain else "failed", error=found.words, rank=found.rank
            )
        write_record(
            run,
            {
                **record,
                "status": "oom" if certain else "failed",
                "error": found.words,
                "fits": False if certain else None,
            },
        )


def _memory_kills() -> int:
    """Processes of this one's control group that the kernel has killed for want of memory, so far.

    Others may be in that group too: the count is evidence on a run only where a rank of it was killed.
    """
    with suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("::")[2]
        events = Path("/sys/fs/cgroup", own.lstrip("/"), "memory.events").read_text(encoding="utf-8")
        return sum(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Supervise a run of a Slurm job; 0 where it is done."""
    from knee.training.launch.slurm_job import supervised_run

    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) < 3 or arguments[1] != "--":
        print("usage: python -m knee.training.launch.supervisor RUN -- COMMAND...", file=sys.stderr)
        return 2
    try:
        with catch_signals() as stop:
            what = supervised_run(Path(arguments[0]), arguments[2:])
            if what is None:
                return 0
            what.stop = stop
            return 0 if supervise(what).state == "done" else 1
    except KneeError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
