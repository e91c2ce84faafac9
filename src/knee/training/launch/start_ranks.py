"""Starts the ranks of one run on this machine, for ``knee train``: one process a rank, without torchrun.

Processes are started and ended as the runs of a sweep are. Imports no torch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import knee
from knee.base.errors import InputError, KneeError, argument
from knee.base.files import make_folder, write_text
from knee.base.processes import ProcessGroup, free_port
from knee.base.signals import catch_signals
from knee.training.checkpoints.folder import CHECKPOINTS, checkpoints_in, remove_all
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.run.progress import METRICS
from knee.training.run.run_record import HEARTBEATS, JOB, LOGS, PIECES, RECORD, TRACES, compose_from_files, write_record
from knee.training.run.watchdog import LAUNCHED

PEER_GRACE_S = 2.0
"""How long the others may take to notice that a rank has ended, before they are asked to end."""
TERMINATE_GRACE_S = 10.0
"""How long they may take then, before they are killed."""


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
    with catch_signals() as stop:
        group = ProcessGroup(stop, peer_grace_s=PEER_GRACE_S, end_grace_s=TERMINATE_GRACE_S)

        def ask(number: signal.Signals) -> None:
            """To the ranks alone, which end what they have started; they record the signal that was sent."""
            for rank in group.children:
                rank.send_signal(signal.SIGINT if (number, stop.signal) == (signal.SIGTERM, signal.SIGINT) else number)

        group.ask = ask
        try:
            pumps = _start(group, job, path, out, tell)
            group.wait(lambda _: "")
        finally:
            group.kill()
        for pump in pumps:
            pump.join(timeout=1)
    if any(group.codes) or not (out / RECORD).exists():
        record = compose_from_files(out, job, lambda rank: _how_ended(group, rank))
        try:
            write_record(out, record)
        except KneeError as error:  # the disk is full, say: the caller still has it
            record["warnings"] = [*record["warnings"], f"this record could not be written to a file: {error.message}"]
        return record, stop.signal
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    return record, stop.signal


def _start(group: ProcessGroup, job: TrainJob, path: Path, out: Path, tell: IO[str] | None) -> list[threading.Thread]:
    """Start one process a rank, and no more once a signal has come; the threads that copy their lines."""
    environment, pumps = _environment(job), []
    for rank in range(job.gpus):
        if group.stop.signal is not None:
            break
        process = group.start(
            [sys.executable, "-m", "knee.training.run.worker", str(path)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            output=subprocess.PIPE,
        )
        target = (process.stdout, out / LOGS / f"rank{rank}.log", tell if rank == 0 else None)
        pumps.append(threading.Thread(target=_pump, daemon=True, args=target))
        pumps[-1].start()
    return pumps


def _how_ended(group: ProcessGroup, rank: int) -> str | None:
    """Say how a rank ended; None for one that was not started."""
    if rank >= len(group.children):
        return None
    code = group.children[rank].returncode
    if rank in group.killed:
        return "made no progress any more and was killed"
    if code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (by a person, or because the host ran out of memory)" if code == -9 else "")
    return f"ended with code {code}"


def _environment(job: TrainJob) -> dict[str, str]:
    """Return the environment of all ranks, as torchrun would set it on one machine."""
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
            "MASTER_PORT": str(free_port()),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "PYTHONUNBUFFERED": "1",
            LAUNCHED: str(os.getpid()),
        }
    )


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
