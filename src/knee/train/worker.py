"""One rank of a run: ``python -m knee.train.worker job.json``, alone or under torchrun's environment variables.

It trains, measures, and leaves a record however it ends. Needs torch, NumPy and the standard library.
"""

from __future__ import annotations

if __name__ == "__main__":  # until there is a handler, Ctrl-C ends it without a traceback: imports take seconds
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import json
import os
import re
import sys
import time
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from knee.errors import ExitCode, InputError, KneeError
from knee.parallelism.trainer_job import TrainJob
from knee.signals import BY_SIGNAL
from knee.text_files import cannot_read
from knee.train.between_steps import BetweenSteps
from knee.train.deterministic import be_deterministic
from knee.train.power_meter import open_power
from knee.train.profiled_steps import UNDER_PROFILER, coordinates, keeps_trace, read_trace, traced_steps, write_trace
from knee.train.progress_lines import TrainProgress, said_while, say
from knee.train.rank_state import Place, RankState
from knee.train.run_record import (
    HEARTBEATS,
    RECORD,
    TRACES,
    Piece,
    compose,
    compose_from_files,
    piece_path,
    read_pieces,
    write_piece,
    write_record,
)
from knee.train.software_versions import inventory, versions
from knee.train.start_ranks import LAUNCHED
from knee.train.timed_steps import Values, device_of, memory_of, synchronize
from knee.train.watchdog import RankTerminated, Watch

ENDING_S = 12.0
SETTLE_S = 3.0
"""How long ranks that ended early wait for each other's last words."""
CODES = {
    "done": ExitCode.ANSWERED,
    "failed": ExitCode.FAILED,
    "oom": ExitCode.DOES_NOT_FIT,
    "terminated": ExitCode.TERMINATED,
}
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
PEER = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|timeout|socket|store", re.IGNORECASE
)
"""Words of errors that a rank meets when another one is gone."""


def main(arguments: list[str] | None = None) -> int:
    """Run one rank; the process' exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: python -m knee.train.worker job.json", file=sys.stderr)
        return 2
    try:
        return work(read_job(Path(arguments[0])), Place.of_environment())
    except KneeError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def read_job(path: Path) -> TrainJob:
    """The job that the command wrote."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, error, field="job") from None
    except ValueError:
        raise InputError(f"{path} is not JSON", code="not-json", field="job") from None
    if not isinstance(plain, dict):
        raise InputError(f"{path} is not a job", code="other-document", field="job")
    return TrainJob.from_json(plain)


def work(job: TrainJob, place: Place) -> int:
    """Train, measure, and leave a record, however it ends."""
    # Kineto tells every start and stop on stderr otherwise
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if place.world != job.gpus:
        text = f"the job's plan needs {job.gpus} processes, but {place.world} were started"
        raise InputError(text, code="does-not-fill", field="WORLD_SIZE")
    run = RankState(job, place)
    beat = None
    if run.out is not None:
        beat = run.out / HEARTBEATS / f"rank{place.rank}.json"
        with suppress(OSError):
            run.out.mkdir(parents=True, exist_ok=True)
            piece_path(run.out, place.rank).unlink(missing_ok=True)  # an earlier run's
            if place.rank == 0 and (run.out / RECORD).exists():
                os.replace(run.out / RECORD, run.out / f"previous-{RECORD}")
                say(f"{run.out} has the record of another run, which is now called previous-{RECORD}")

    def write_final_record(status: str, error: str, lost_peer: bool) -> None:
        say(f"rank {place.rank}: {error}")
        leave(run, run.piece(status, error, lost_peer=lost_peer, alive=False))

    watch = Watch(
        path=beat,
        world=place.world,
        timeout_s=job.timeout_s,
        write_final_record=write_final_record,
        progress=lambda: (run.phase, run.clock.passed()),
        step=lambda: run.steps_done,
        parent=int(os.environ.get(LAUNCHED, "0")),
    )
    try:
        return _guarded(run, watch)
    finally:
        watch.close()


def _guarded(run: RankState, watch: Watch) -> int:
    """The run, with every way it may end turned into a piece of the record."""
    lost, code = False, None
    try:
        train(run, watch)
        record = gather(run)
        watch.claim()
        if record is not None and run.out is not None:
            write_record(run.out, record)
        return CODES["done"]
    except RankTerminated as asked:
        status, error, code = "terminated", str(asked), BY_SIGNAL + asked.number
    except KneeError as problem:
        status, error = "failed", problem.message + (f"; {problem.hint}" if problem.hint else "")
    except Exception as problem:
        status, error = classify(problem)
        lost = status == "failed" and bool(PEER.search(f"{type(problem).__name__} {problem}"))
        if watch.signal is not None:  # the others have ended already
            status, error, code = "terminated", str(watch.asked(watch.signal)), BY_SIGNAL + watch.signal
        elif status == "failed" and not lost:
            import traceback

            traceback.print_exc()
    if not watch.claim():
        time.sleep(SETTLE_S)  # the watch has spoken, and ends the process
    say(f"rank {run.place.rank}: {error}")
    leave(run, run.piece(status, error, lost_peer=lost))
    return code or CODES[status]


def classify(problem: Exception) -> tuple[str, str]:
    """Return the status of a run that an exception ended, and one sentence about it."""
    message = next(iter(str(problem).strip().splitlines()), "") or type(problem).__name__
    if type(problem).__name__ == "OutOfMemoryError" or NO_MEMORY.search(str(problem)):
        return "oom", f"out of memory: {message[:300]}"
    return "failed", f"{type(problem).__name__}: {message[:300]}"


def train(run: RankState, watch: Watch) -> None:
    """All steps: warm-up, the timed window, and those under the profiler."""
    import torch

    from knee.datasets.token_batches import Prefetcher, Share, open_data

    job, place = run.job, run.place
    if job.deterministic:
        be_deterministic()
    if job.device == "cuda":
        torch.cuda.set_device(place.local_rank)
    run.device = device_of(job.device, place.local_rank)
    run.facts |= versions(job) | {"inventory": inventory() if place.local_rank == 0 else None}
    run.phase = "meeting"
    run.store = meet(job, place)
    run.phase = "building"
    with said_while(run, f"making the weights of {job.model.name}"):
        trainer = build(job)
    at = coordinates(job.plan, place.rank)
    share = Share(
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        seed=job.seed,
        dp_size=job.plan.dp,
        dp_rank=at["dp_replicate"] * job.plan.dp_shard + at["dp_shard"],
    )
    source = open_data(job.data, share, vocab_size=job.model.vocab)
    run.facts["data"] = source.describe()
    run.power, run.facts["power_trouble"] = open_power(run.device["uuid"])
    between = BetweenSteps(run, trainer, share)
    run.phase = "reading"
    run.start = between.restore()
    run.losses, run.grad_norms = (Values(job.steps - run.start, job.device) for _ in range(2))
    last = job.steps + (job.trace_steps + UNDER_PROFILER if job.trace_steps else 0)
    progress = TrainProgress(run)
    with Prefetcher(source, start=run.start, stop=last, pin=job.device == "cuda") as batches:

        def step() -> Any:
            watch.check()
            tokens = batches.next()
            return trainer.step(tokens.to(job.device, non_blocking=True) if job.device == "cuda" else tokens)

        run.phase = "training"
        run.waits_s.append(batches.waited_s)
        for number in range(job.steps - run.start):
            if number == run.warmup:
                began_s = begin_window(run)
            if number in (0, run.warmup):
                mark_anew(run)
            with progress.first_step() if number == 0 else nullcontext():
                result = step()
            run.losses.put(number, result.loss_tensor)
            run.grad_norms.put(number, result.norm_tensor)
            run.clock.mark()
            run.waits_s.append(batches.waited_s)
            progress.step(run.start + number + 1)
            if between.after(run.start + number + 1):
                progress.log_steps()  # a run that goes on from there does not log them again
        end_window(run, began_s)
        progress.window()
        between.save_last()
        if job.trace_steps:
            run.phase = "tracing"
            trace(run, step)
    between.close()
    watch.check()


def mark_anew(run: RankState) -> None:
    """The mark before a step: at the window's begin it stands after the waiting for other ranks."""
    if run.clock.host_s:
        run.clock.host_s.pop()
        if run.clock.marks:
            run.clock.marks.pop()
    run.clock.mark()


def begin_window(run: RankState) -> float:
    """All ranks and their devices are here; the host's clock now."""
    import torch
    import torch.distributed as dist

    synchronize(run.job.device)
    if run.place.world > 1:
        dist.barrier(device_ids=[run.place.local_rank] if run.job.device == "cuda" else None)
    if run.job.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if run.power is not None:
        run.power.start()
    run.paused_s = 0.0
    return time.perf_counter()


def end_window(run: RankState, began_s: float) -> None:
    """Once the device is done."""
    synchronize(run.job.device)
    window_s = time.perf_counter() - began_s - run.paused_s
    if run.power is not None:
        run.power.stop()
    run.window = {
        "window_s": window_s,
        "window_steps": run.job.steps - run.start - run.warmup,
        "data_wait_s": run.waits_s[-1] - run.waits_s[run.warmup],
    }
    run.facts["memory"] = memory_of(run.job.device)


def trace(run: RankState, step: Any) -> None:
    """Steps under the profiler; a trace that cannot be kept or read is said, and does not end the run."""
    job, place = run.job, run.place
    profiler = traced_steps(job.trace_steps, job.device, step)
    if run.out is None or not keeps_trace(job.plan, place.rank, place.world):
        return
    path = run.out / TRACES / f"rank{place.rank}.json.gz"
    try:
        write_trace(profiler, path)
        run.facts["trace"] = read_trace(path, job.plan)
    except KneeError as error:
        run.facts["trace_trouble"] = error.message
        say(f"rank {place.rank}: {error.message}")


def build(job: TrainJob) -> Any:
    """The trainer on its mesh."""
    from knee.parallelism.mesh import local_device, make_mesh
    from knee.parallelism.trainer import Trainer

    return Trainer(job, make_mesh(job.plan, local_device(job.device)))


def meet(job: TrainJob, place: Place) -> Any:
    """Join the other ranks; the store that they share, None for a rank alone."""
    if place.world == 1:
        return None
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    wait = timedelta(seconds=job.timeout_s)
    store, rank, world = next(iter(rendezvous("env://", timeout=wait)))
    store.set_timeout(wait)
    dist.init_process_group(
        "nccl" if job.device == "cuda" else "gloo",
        store=dist.PrefixStore("knee", store),
        rank=rank,
        world_size=world,
        timeout=wait,
        device_id=torch.device("cuda", place.local_rank) if job.device == "cuda" else None,
    )
    return dist.PrefixStore("pieces", store)


def gather(run: RankState) -> dict[str, Any] | None:
    """The record, on rank 0, from what all ranks have measured."""
    run.phase = "gathering"
    store, piece = run.store, run.piece("done", None)
    if store is None:
        return compose(run.job, [piece])
    import torch.distributed as dist

    place = run.place
    store.set(f"rank{place.rank}", json.dumps(piece))
    if place.rank == 0:
        pieces = []
        for rank in range(place.world):
            pieces.append(json.loads(store.get(f"rank{rank}")))
            run.phase = f"gathered {rank}"
        record = compose(run.job, pieces)
    store.set(f"read{place.rank}", "yes")
    store.get("read0")  # rank 0 may hold the store: it leaves last
    if place.rank == 0:
        for rank in range(1, place.world):
            store.get(f"read{rank}")
    dist.destroy_process_group()
    return record if place.rank == 0 else None


def leave(run: RankState, piece: Piece) -> None:
    """What is left of a run that ended early: this rank's piece, and the record if nobody else writes it."""
    if run.out is None:
        return
    try:
        write_piece(run.out, piece)
        if os.environ.get(LAUNCHED) == str(os.getppid()):  # it is there to write it
            return
        # those that are told to end do so at the end of their step
        patience_s = ENDING_S if piece["status"] == "terminated" else SETTLE_S
        deadline = time.monotonic() + (patience_s if run.place.world > 1 else 0)
        while len(read_pieces(run.out)) < run.place.world and time.monotonic() < deadline:
            time.sleep(0.1)
        if min(other["rank"] for other in read_pieces(run.out)) == run.place.rank:
            write_record(run.out, compose_from_files(run.out, run.job))
    except (KneeError, OSError) as error:
        # the disk is full, say: what the record would have said is at least in the log
        say(f"rank {run.place.rank}: {run.out / RECORD} cannot be written: {error}")


if __name__ == "__main__":
    sys.exit(main())
