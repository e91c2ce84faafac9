"""Train a model for real under a parallel plan, and measure it as the simulator's answers are."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from knee.base.errors import DoesNotFit, InputError, NotWritten, RunFailed, argument, either
from knee.base.files import real_path, write_text
from knee.commands.job_request import ModelLike
from knee.commands.train.request import Say, checked_to_go_on, run_folder, trainer_job, under_torchrun
from knee.measure.machine.machine_facts import need_torch
from knee.show.result import Result
from knee.training.launch.start_ranks import launch, prepare, run_one_rank
from knee.training.parallelism.trainer_job import AUTO, TrainJob
from knee.training.run.run_record import RECORD


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainedRun(Result):
    """A real run: its record, where it lies, and how it ended."""

    record: dict[str, Any]
    """What ``record.json`` has, whichever way the run ended; empty on torchrun's ranks but the first."""
    out: Path
    """Folder of the record, traces and logs."""
    signal: int | None = None
    """The signal that ended the run, if one did and it was not out of memory before."""
    rank_code: int | None = None
    """Exit code of this rank where torchrun has started it; None where ``train`` has started all ranks."""

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.out)!r}, status={self.record.get('status')!r})"

    def _data(self) -> dict[str, Any]:
        return dict(self.record)

    def check_written(self) -> None:
        """``NotWritten`` where the record is in no file."""
        if not (self.out / RECORD).exists():
            text = f"{self.out / RECORD} could not be written"
            raise NotWritten(text, hint=f"{either('to_dict() has', '--json prints')} the record anyway")

    def check_done(self) -> None:
        """``DoesNotFit`` or ``RunFailed`` where the run did not come to its end."""
        record = self.record
        if record["status"] == "oom":
            hint = f"use a smaller {argument('micro_batch')}, {argument('recompute')} full, more tp, or more GPUs"
            raise DoesNotFit(f"rank {record['failed_rank']}: {record['error']}", hint=hint)
        if record["status"] != "done":
            text = f"the run {record['status']} at step {record['steps_done']}: {record['error']}"
            raise RunFailed(text, hint=f"{self.out}/logs contains the output of the ranks")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainJobFile(Result):
    """A job in a file, for a machine that has torch and NumPy alone."""

    path: Path
    job: TrainJob

    @property
    def command(self) -> str:
        """What runs it."""
        start = "python" if self.job.gpus == 1 else f"torchrun --nproc-per-node {self.job.gpus}"
        return f"{start} -m knee.training.run.worker {self.path}"

    def _data(self) -> dict[str, Any]:
        return {"job": self.path, "record": self.job.out}


def train(
    model: ModelLike,
    *,
    out: str | Path | None = None,
    force: bool = False,
    say: Say = lambda _: None,
    log: IO[str] | None = None,
    **settings: Any,
) -> TrainedRun:
    """Train a model for real under a parallel plan, and measure it.

    ``model`` is what ``knee.simulate`` takes; models are Llama decoders, also with experts. The processes of this
    machine are started here: ``nproc`` of them, or as many as the plan's degrees ask for. Under torchrun, which starts
    them itself, each of them calls this with the same arguments and is one rank. ``out`` is the folder of the record,
    traces and logs, ``runs/MODEL-DATE`` if left out; ``force`` replaces the record of an earlier run in it.

    ``settings`` are the fields of ``knee.Plan`` and, each with a default: ``device`` ("cuda" or "cpu"), ``steps``,
    ``warmup`` (first steps that are not measured), ``trace_steps`` (steps under the profiler after the measured ones),
    ``dtype`` (of the matrix products), ``compile``, ``attention``, ``balance_loss`` (of experts), ``data`` (a folder
    of ``prepare_shards``; synthetic tokens if left out), ``seed``, ``deterministic``, ``lr``, ``lr_schedule``,
    ``lr_warmup``, ``lr_min_frac``, ``lr_decay_frac``, ``valid_data``, ``valid_every``, ``valid_batches``, ``weights``
    (first weights: a folder of Hugging Face or a checkpoint), ``checkpoint_every``, ``keep``, ``resume`` (a run's
    folder, one checkpoint, or "auto": the newest of ``out``, if any), ``log_to``, ``timeout_s``, ``local_batch`` or
    ``global_batch``, ``seq_len``, ``overrides``, ``flop_convention``, and what the record names: ``cluster``,
    ``profile`` and ``command``.

    ``say`` is called with sentences about what was assumed and started, and ``log`` gets what the first rank prints.
    A run that ends early is answered too, with what was measured until then; ``check_done`` raises for it. It needs
    torch: ``pip install 'knee[train]'``.

    >>> from knee.commands.train.api import train
    >>> run = train("llama-tiny", device="cpu", nproc=2, tp=2, steps=6, out="run")  # doctest: +SKIP
    >>> run.record["status"], run.record["tokens_per_s"]  # doctest: +SKIP
    ('done', 5120.7)
    """
    need_torch(either("knee.commands.train.api", "knee train"))
    job = trainer_job(model, say=say, **settings)
    if out is None and job.resume not in ("", AUTO):
        out = run_folder(job.resume)
    if out is None and (under_torchrun() or job.resume == AUTO):
        text = f"{argument('out')} is missing: all ranks, and a run that goes on, must use the same folder"
        raise InputError(text, hint=f"give {argument('out')}", code="missing-argument", field="out")
    folder = Path("runs") / f"{job.model.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}" if out is None else Path(out)
    job = checked_to_go_on(replace(job, out=str(real_path(folder))))
    if under_torchrun():
        record, code = run_one_rank(job, folder, force=force)
        return TrainedRun(record=record, out=folder, rank_code=code)
    prepare(folder, force=force, resumes=bool(job.resume))
    say(f"{job.gpus} process{'es' if job.gpus > 1 else ''} on {job.device}, {job.dtype}; logs in {folder}/logs")
    record, signal = launch(job, folder, tell=log)
    # a signal that comes while ranks are out of memory is not the reason
    return TrainedRun(record=record, out=folder, signal=None if record["status"] == "oom" else signal)


def write_train_job(
    model: ModelLike, path: str | Path, *, out: str | Path | None = None, say: Say = lambda _: None, **settings: Any
) -> TrainJobFile:
    """Write the job that ``train`` would run as a file instead, for ``python -m knee.training.run.worker`` elsewhere.

    Neither torch nor a GPU is needed to write it. ``settings`` are those of ``train``; ``out`` is where the record goes
    on the other machine, ``runs/MODEL`` if left out.

    >>> from knee.commands.train.api import write_train_job
    >>> write_train_job("llama-1b", "job.json", nproc=8, tp=2).command  # doctest: +SKIP
    'torchrun --nproc-per-node 8 -m knee.training.run.worker job.json'
    """
    job = trainer_job(model, elsewhere=True, say=say, **settings)
    job = replace(job, out=str(out or f"runs/{job.model.name}"))
    write_text(Path(path), json.dumps(job.as_json(), indent=1) + "\n")
    return TrainJobFile(path=Path(path), job=job)
