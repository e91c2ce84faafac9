"""What a run does between its steps: it saves checkpoints and computes the validation loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from knee.checkpoints.folder import (
    CHECKPOINTS,
    STATE,
    check_model,
    check_resumable,
    check_same_data,
    checkpoints_in,
    find_checkpoint,
    read_state,
)
from knee.datasets.token_batches import Share, open_data
from knee.errors import InputError
from knee.parallelism.trainer_job import AUTO, TrainJob
from knee.train.progress_lines import said_while, say
from knee.train.rank_state import RankState
from knee.train.timed_steps import synchronize

HELD_OUT_SEED = 1 << 30
"""Synthetic tokens for validation: the run's seed with this bit."""


class BetweenSteps:
    """Checkpoints and validation of one rank. All ranks come here after the same steps."""

    def __init__(self, run: RankState, trainer: Any, share: Share) -> None:
        self.run, self.trainer, self.saver = run, trainer, None
        job, self.tell = run.job, say if run.place.rank == 0 else lambda _: None
        self.group = _host_group(job) if job.checkpoint_every or job.resume or job.weights else None
        if job.checkpoint_every:
            from knee.checkpoints.save import CheckpointSaver

            if run.out is None:
                text = "checkpoints need a folder"
                raise InputError(text, hint="give the job an out", code="missing-argument", field="out")
            self.saver = CheckpointSaver(trainer, run.out, self.group, run.facts["data"])
        seed = job.seed ^ HELD_OUT_SEED
        self.held_out = open_data(job.valid_data, replace(share, seed=seed), vocab_size=job.model.vocab)

    def restore(self) -> int:
        """Set the first weights or the state of a checkpoint; the steps that are already done."""
        job = self.run.job
        checkpoint = self._agreed(partial(resume_point, job))
        if checkpoint is not None:
            from knee.checkpoints.resume import load_state

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
            from knee.checkpoints.resume import load_weights

            folder = find_checkpoint(folder)
            check_model(folder, read_state(folder), self.run.job, "weights")
            load_weights(self.trainer, folder, self.group)
        else:
            from knee.checkpoints.huggingface_read import read_huggingface

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
        """What the first rank finds, on all ranks."""
        if self.group is None:
            return look()
        import torch.distributed as dist

        found = [look() if self.run.place.rank == 0 else None]
        dist.broadcast_object_list(found, src=0, group=self.group)
        return found[0]


def resume_point(job: TrainJob) -> Path | None:
    """The checkpoint that a run goes on from; None for a new run."""
    if not job.resume:
        return None
    if job.resume != AUTO:
        return find_checkpoint(Path(job.resume))
    found = [path for path in checkpoints_in(Path(job.out) / CHECKPOINTS) if read_state(path)["step"] < job.steps]
    return found[-1] if found else None


def _host_group(job: TrainJob) -> Any:
    from knee.checkpoints.save import host_group

    return host_group(timedelta(seconds=job.timeout_s))
