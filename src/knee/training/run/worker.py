"""One rank of a run: ``python -m knee.training.run.worker job.json``, alone or under torchrun's environment variables.

It trains, measures, and leaves a record however it ends. Needs torch, NumPy and the standard library.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from knee.base.errors import ExitCode, InputError, KneeError, NotWritten
from knee.base.files import cannot_read, replacing, scratch_folder
from knee.base.signals import BY_SIGNAL
from knee.measure.traces.analyse import analyse
from knee.measure.traces.plain_data import step_of
from knee.specs.plan import Plan
from knee.training.checkpoints.folder import (
    CHECKPOINTS,
    STATE,
    check_model,
    check_resumable,
    check_same_data,
    checkpoints_in,
    find_checkpoint,
    read_state,
)
from knee.training.datasets.token_batches import Share, open_data
from knee.training.parallelism.trainer_job import AUTO, TrainJob
from knee.training.run.power_meter import open_power
from knee.training.run.progress import TrainProgress, said_while, say
from knee.training.run.rank_state import Place, RankState
from knee.training.run.run_record import (
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
from knee.training.run.timed_steps import Values, device_of, memory_of, synchronize
from knee.training.run.watchdog import LAUNCHED, RankTerminated, Watch

# What a run ran on: versions, settings, and the host's parts.


def versions(job: TrainJob) -> dict[str, Any]:
    """Return the versions and settings of the software."""
    import numpy
    import torch

    import knee

    cuda = job.device == "cuda"
    return {
        "versions": {
            "knee": knee.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": str(numpy.__version__),
            "cuda": torch.version.cuda if cuda else None,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda and torch.version.cuda else None,
            "cudnn": torch.backends.cudnn.version() if cuda else None,
        },
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("NCCL_", "TORCH_NCCL_", "PYTORCH_", "CUDA_", "OMP_", "GLOO_"))
        },
    }


def inventory() -> dict[str, Any] | None:
    """Network, links, processors and driver of this host."""
    from knee.measure.machine.inventory import read_inventory

    try:
        found: dict[str, Any] = asdict(read_inventory())
    except Exception as error:  # it promises never to fail, and a run is worth more than its word
        return {"trouble": str(error)}
    return found


# A few steady steps under torch's profiler, after the timed window: where time went, by the simulator's metrics.

FEW_RANKS = 16
"""Up to so many ranks each keeps its trace; of more, one rank of every pipeline stage does."""
UNDER_PROFILER = 1
"""Steps that run under the profiler before it records: its first step is slow."""


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """Where a rank lies on the mesh axes: the plan's placement names them from neighbouring ranks outwards."""
    found = {}
    for axis in plan.placement:
        rank, found[axis] = divmod(rank, getattr(plan, axis))
    return found


def keeps_trace(plan: Plan, rank: int, world: int) -> bool:
    """Whether this rank's trace is written."""
    place = coordinates(plan, rank)
    return world <= FEW_RANKS or not any(place[axis] for axis in place if axis != "pp")


def axes_of(plan: Plan) -> dict[str, str]:
    """torch takes the group of all ranks for an axis that spans them; gradients are shared over cp too."""
    copies = plan.dp_replicate * (plan.cp if plan.sharding == "ddp" else 1)
    spans = {"dp_shard": plan.dp_shard * plan.cp, "dp_replicate": copies, "tp": plan.tp, "pp": plan.pp}
    axis = next((axis for axis, size in spans.items() if size == plan.gpus > 1), None)
    return {} if axis is None else {"world": axis, "default_pg": axis}


def traced_steps(steps: int, device: str, run: Callable[[], None]) -> Any:
    """Run that many steps under the profiler; ``run`` is one step. The profile, not yet written."""
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    plan = schedule(wait=0, warmup=UNDER_PROFILER, active=steps, repeat=1)
    # gloo's calls are told apart by the shapes of what they move; events are read from the trace, so that torch need
    # not make objects of them, which takes longer than the steps
    with profile(activities=activities, schedule=plan, record_shapes=device != "cuda") as profiler:
        for number in range(UNDER_PROFILER + steps):
            run()
            if number in (UNDER_PROFILER - 1, UNDER_PROFILER + steps - 1):
                synchronize(device)  # so that no step's work lies outside of it
            profiler.step()
    return profiler


def write_trace(profiler: Any, path: Path) -> None:
    """Write the compressed trace, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder() as made, replacing(path) as partial:
            profiler.export_chrome_trace(str(made / path.name))  # packed where the name ends in .gz
            shutil.copyfile(made / path.name, partial)
    except (OSError, RuntimeError) as error:
        raise NotWritten(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


# What a run does between its steps: it saves checkpoints and computes the validation loss.

HELD_OUT_SEED = 1 << 30
"""Synthetic tokens for validation: the run's seed with this bit."""


class BetweenSteps:
    """Checkpoints and validation of one rank. All ranks come here after the same steps."""

    def __init__(self, run: RankState, trainer: Any, share: Share) -> None:
        self.run, self.trainer, self.saver = run, trainer, None
        job, self.tell = run.job, say if run.place.rank == 0 else lambda _: None
        self.group = None
        if job.checkpoint_every or job.resume or job.weights:
            from knee.training.checkpoints.save_and_resume import CheckpointSaver, host_group

            self.group = host_group(timedelta(seconds=job.timeout_s))
        if job.checkpoint_every:
            if run.out is None:
                text = "checkpoints need a folder"
                raise InputError(text, hint="give the job an out", code="missing-argument", field="out")
            self.saver = CheckpointSaver(trainer, run.out, self.group, run.facts["data"])
        seed = job.seed ^ HELD_OUT_SEED
        self.held_out = open_data(job.valid_data, replace(share, seed=seed), vocab_size=job.model.vocab)

    def restore(self) -> int:
        """Set the first weights or the state of a checkpoint; the steps that are already done."""
        job = self.run.job

        def look() -> Path | None:
            """The checkpoint that a run goes on from; None for a new run."""
            if job.resume != AUTO:
                return find_checkpoint(Path(job.resume)) if job.resume else None
            there = checkpoints_in(Path(job.out) / CHECKPOINTS)
            return next(reversed([path for path in there if read_state(path)["step"] < job.steps]), None)

        checkpoint = self._agreed(look)
        if checkpoint is not None:
            from knee.training.checkpoints.save_and_resume import load_state

            state = read_state(checkpoint)
            check_resumable(checkpoint, state, job)
            check_same_data(checkpoint, state, self.run.facts["data"])
            self.tell(f"reading the checkpoint {checkpoint}")
            load_state(self.trainer, checkpoint, state["step"], self.group)
            self.tell(f"going on after step {state['step']:,}")
            return int(state["step"])
        if job.weights:
            self._read_weights(Path(job.weights))
        return 0

    def _read_weights(self, folder: Path) -> None:
        self.tell(f"reading weights from {folder}")
        if (folder / STATE).is_file() or (folder / CHECKPOINTS).is_dir():
            from knee.training.checkpoints.save_and_resume import load_weights

            folder = find_checkpoint(folder)
            check_model(folder, read_state(folder), self.run.job, "weights")
            load_weights(self.trainer, folder, self.group)
        else:
            from knee.training.checkpoints.huggingface import read_huggingface

            read_huggingface(self.trainer, folder)

    def after(self, done: int) -> bool:
        """After a step of the loop; whether a checkpoint was begun, for which the device was waited for."""
        job = self.run.job
        if job.valid_every and (done % job.valid_every == 0 or done == job.steps):
            self._validate(done)
        due = self.saver is not None and done % job.checkpoint_every == 0 and done < job.steps
        if due:
            self._begin(done)
        return due

    def save_last(self) -> None:
        """Begin the checkpoint after the last step."""
        if self.saver is not None:
            self._begin(self.run.job.steps)

    def close(self) -> None:
        """Wait for the last checkpoint; ``NotWritten`` if it cannot be written."""
        if self.saver is None:
            return
        self.saver.finish(self._moves)
        self.run.facts["checkpoint"] = {"step": self.saver.saved, "blocked_s": self.saver.blocked_s}
        self.saver.check()
        self.tell(f"the checkpoint of step {self.saver.saved:,} is complete")

    def _begin(self, done: int) -> None:
        saver = self.saver
        assert saver is not None
        saver.begin(done, self._moves)
        self.run.phase = "training"
        if saver.trouble is not None:  # of the one before
            self.tell(
                f"warning: a checkpoint could not be written: {saver.trouble}; the newest complete one is of step "
                f"{saver.saved or 0:,}, and training goes on"
            )

    def _moves(self, phase: str) -> None:
        self.run.phase = phase

    def _validate(self, done: int) -> None:
        """The mean loss of the same held-out batches every time. It is no part of a step's time."""
        import torch

        run, job = self.run, self.run.job
        synchronize(job.device)
        began_s = time.perf_counter()
        losses = []
        with said_while(run, "computing the validation loss"):  # the first time it compiles too
            for batch in range(job.valid_batches):
                run.phase = f"validating {done} {batch}"
                losses.append(self.trainer.evaluate(torch.from_numpy(self.held_out.batch(batch))))
            loss = float(torch.stack(losses).mean())
        run.valid_losses.append({"step": done, "loss": loss})
        self.tell(f"step {done}/{job.steps}  validation loss {loss:.4f}")
        run.phase = "training"
        run.paused_s += time.perf_counter() - began_s
        run.clock.mark(after_pause=True)

    def _agreed(self, look: Callable[[], Path | None]) -> Path | None:
        """Return on all ranks what the first rank finds."""
        if self.group is None:
            return look()
        import torch.distributed as dist

        found = [look() if self.run.place.rank == 0 else None]
        dist.broadcast_object_list(found, src=0, group=self.group)
        return found[0]


if __name__ == "__main__":  # until there is a handler, Ctrl-C ends it without a traceback: imports take seconds
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


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
        print("usage: python -m knee.training.run.worker job.json", file=sys.stderr)
        return 2
    try:
        return work(read_job(Path(arguments[0])), Place.of_environment())
    except KneeError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def read_job(path: Path) -> TrainJob:
    """Read the job from its file."""
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
    if not os.environ.keys() & {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}:
        # segments that grow leave fewer gaps between tensors: 4% instead of 13% (data/h200/README.md)
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
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

    from knee.training.datasets.token_batches import Prefetcher, Share, open_data

    job, place = run.job, run.place
    if job.deterministic:
        # the same seed gives the same losses, bit by bit; an operation that has no such kernel raises an error
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads memory that was not written
        torch.backends.cudnn.benchmark = False
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
                # the mark before a step: at the window's begin it stands after the waiting for other ranks
                del run.clock.host_s[-1:], run.clock.marks[-1:]
                run.clock.mark()
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


def begin_window(run: RankState) -> float:
    """Wait for all ranks and their devices; returns the host's clock."""
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
    """End the timed window after the device has finished."""
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
        # times of one step, by the functions that measure simulated steps and anyone's traces
        run.facts["trace"] = step_of(analyse(path, axes=axes_of(job.plan), cache=False).ranks[0])
    except KneeError as error:
        run.facts["trace_trouble"] = error.message
        say(f"rank {place.rank}: {error.message}")


def build(job: TrainJob) -> Any:
    """Build the trainer on its device mesh."""
    from knee.training.parallelism.mesh import local_device, make_mesh
    from knee.training.parallelism.trainer import Trainer

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
