"""Starts a run's processes on this machine, one a rank, and sees them through. Imports no torch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import knee
from knee.base.errors import InputError, KneeError, argument
from knee.base.files import make_folder, write_text
from knee.training.checkpoints.folder import CHECKPOINTS, checkpoints_in, remove_all
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.run.metrics_log import METRICS
from knee.training.run.run_record import HEARTBEATS, JOB, LOGS, PIECES, RECORD, TRACES, compose_from_files, write_record

LAUNCHED = "KNEE_LAUNCHED"
"""Tells a rank that its parent writes the record of a run that ends early; its value is the parent's process id."""
ALONE_S = 2.0
"""How long the others may take to notice that a rank has ended, before they are asked to end."""
ASKED_S = 10.0
"""How long they may take then, before they are killed."""
POLL_S = 0.05


def prepare(out: Path, *, force: bool, resumes: bool = False) -> None:
    """A folder that takes a run: it is there, can be written to, and has no other run's record or checkpoints."""
    saved = bool(checkpoints_in(out / CHECKPOINTS))
    if ((out / RECORD).exists() or saved) and not (force or resumes):
        what = "checkpoints" if saved else "the record"
        to_resume = f"{argument('resume')} {out} to go on with it, " if saved else ""
        raise InputError(
            f"{out} already has {what} of another run",
            hint=f"give {to_resume}another {argument('out')}, or {argument('force')} to replace it",
            code="already-there",
            field="out",
        )
    make_folder(out)


def clear(out: Path, *, resumes: bool = False) -> None:
    """Remove what an earlier run left; a run that goes on keeps its checkpoints, its metrics and the record."""
    if resumes and (out / RECORD).exists():
        os.replace(out / RECORD, out / f"previous-{RECORD}")
    (out / RECORD).unlink(missing_ok=True)
    for name in (PIECES, HEARTBEATS, LOGS, TRACES):
        shutil.rmtree(out / name, ignore_errors=True)
    if not resumes:
        remove_all(out)
        (out / METRICS).unlink(missing_ok=True)


def run_one_rank(job: TrainJob, out: Path, *, force: bool) -> tuple[dict[str, Any], int]:
    """This process as the rank that torchrun says it is; the record on the first rank, and the exit code."""
    from knee.training.run.rank_state import Place
    from knee.training.run.worker import work

    place, resumes = Place.of_environment(), bool(job.resume)
    if place.rank == 0:
        prepare(out, force=force, resumes=resumes)
        clear(out, resumes=resumes)
        write_job(out, job)
    code = work(job, place)
    written = place.rank == 0 and (out / RECORD).exists()
    return json.loads((out / RECORD).read_text(encoding="utf-8")) if written else {}, code


def write_job(out: Path, job: TrainJob) -> Path:
    """Write the job for the workers; return the file."""
    path = out / JOB
    write_text(path, json.dumps(job.as_json(), indent=1) + "\n")
    return path


def launch(job: TrainJob, out: Path, *, tell: IO[str] | None = None) -> tuple[dict[str, Any], int | None]:
    """Run all ranks here; the record, and the signal that ended the run, if one did. ``tell`` gets rank 0's lines."""
    clear(out, resumes=bool(job.resume))
    path = write_job(out, job)
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    ranks = _Ranks()
    with _forwarded(ranks):
        ranks.start(job, path, out, tell)
        ranks.wait()
    if any(ranks.codes.values()) or not (out / RECORD).exists():
        record = compose_from_files(out, job, ranks.how_ended)
        try:
            write_record(out, record)
        except KneeError as error:  # the disk is full, say: the caller still has it
            record["warnings"] = [*record["warnings"], f"this record could not be written to a file: {error.message}"]
        return record, ranks.asked
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    return record, ranks.asked


class _Ranks:
    """The processes of a run, one for each rank."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        """Exit codes of those that have ended, in that order."""
        self.asked: int | None = None
        self.killed: set[int] = set()
        """Ranks that had to be killed, because they did not end when they were asked to."""
        self.pumps: list[threading.Thread] = []
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, job: TrainJob, path: Path, out: Path, tell: IO[str] | None) -> None:
        """Start them; no more of them once a signal has come."""
        environment = _environment(job)
        for rank in range(job.gpus):
            if self.asked is not None:
                self.send(self.asked)  # the last one may have been in the making when it came
                return
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                [sys.executable, "-m", "knee.training.run.worker", str(path)],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.processes[rank] = process
            pump = threading.Thread(
                target=_pump,
                daemon=True,
                args=(process.stdout, out / LOGS / f"rank{rank}.log", tell if rank == 0 else None),
            )
            pump.start()
            self.pumps.append(pump)
        if self.asked is not None:
            self.send(self.asked)

    @property
    def running(self) -> dict[int, subprocess.Popen[bytes]]:
        """Those that have not ended."""
        return {rank: process for rank, process in self.processes.items() if rank not in self.codes}

    def wait(self) -> None:
        """Until all have ended: when one fails, the others are given time, asked, and killed."""
        failed_s: float | None = None
        asked = killed = False
        while self.running:
            for rank, process in self.running.items():
                code = process.poll()
                if code is not None:
                    self.codes[rank] = code
                    if code and failed_s is None:
                        failed_s = time.monotonic()
            waited = 0.0 if failed_s is None else time.monotonic() - failed_s
            if self.asked is not None and failed_s is None:
                failed_s, asked = time.monotonic(), True
            if waited > ALONE_S and not asked:
                asked = True
                self.send(signal.SIGTERM)
            if waited > ALONE_S + ASKED_S and not killed:
                killed = True
                self.killed |= set(self.running)
                self.send(signal.SIGKILL)
            time.sleep(POLL_S)
        for pump in self.pumps:
            pump.join(timeout=1)

    def send(self, number: int) -> None:
        """A signal to all that still run."""
        for process in self.running.values():
            process.send_signal(number)

    def how_ended(self, rank: int) -> str | None:
        """Say how a rank ended; None for one that has not."""
        code = self.codes.get(rank)
        if code is None:
            return None
        if rank in self.killed:
            return "made no progress any more and was killed"
        if code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name}" + (
                " (by a person, or because the host ran out of memory)" if code == -9 else ""
            )
        return f"ended with code {code}"


@contextmanager
def _forwarded(ranks: _Ranks) -> Iterator[None]:
    """What this process is told to do, it tells its ranks."""

    def hear(number: int, frame: Any) -> None:  # noqa: ARG001 - the form that signal calls
        ranks.asked = ranks.asked or number
        ranks.send(signal.SIGTERM if number == signal.SIGTERM else signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(job: TrainJob) -> dict[str, str]:
    """As torchrun would set it, on this machine alone."""
    sources = str(Path(knee.__file__).parents[1])
    paths = [sources, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    threads = max(1, len(os.sched_getaffinity(0)) // job.gpus)
    return (
        {"OMP_NUM_THREADS": str(threads)}
        | os.environ
        | {
            "WORLD_SIZE": str(job.gpus),
            "LOCAL_WORLD_SIZE": str(job.gpus),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "PYTHONUNBUFFERED": "1",
            LAUNCHED: str(os.getpid()),
        }
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _pump(source: IO[bytes] | None, path: Path, tell: IO[str] | None) -> None:
    """A rank's lines into its log, and to the terminal for rank 0. A full disk loses lines, not the run."""
    assert source is not None
    with ExitStack() as files:
        files.enter_context(source)
        log: IO[bytes] | None = None
        with suppress(OSError):
            log = files.enter_context(path.open("wb", buffering=0))
        for line in source:
            if log is not None:
                try:
                    log.write(line)
                except OSError:
                    log = None
            if tell is not None:
                tell.write(line.decode(errors="replace"))
                tell.flush()
