"""One rank of a run: its place among the others, and what it knows so far; its piece of the record is made of that."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.run.power_meter import PowerWindow
from knee.training.run.run_record import Piece
from knee.training.run.timed_steps import StepClock, Values, memory_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @classmethod
    def of_environment(cls) -> Place:
        """Read the place from torchrun's variables; without them, the process is the only rank."""
        names = {"rank": "RANK", "world": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "local_world": "LOCAL_WORLD_SIZE"}
        try:
            return cls(**{ours: int(os.environ[name]) for ours, name in names.items() if name in os.environ})
        except ValueError:
            raise InputError(f"{', '.join(names.values())} should be whole numbers", code="not-a-number") from None


class RankState:
    """What this rank knows of the run so far."""

    def __init__(self, job: TrainJob, place: Place) -> None:
        self.job, self.place = job, place
        self.out = Path(job.out) if job.out else None
        self.phase = "start"
        self.clock = StepClock(job.device)
        self.losses: Values | None = None
        self.grad_norms: Values | None = None
        self.device: dict[str, Any] = {}
        self.power: PowerWindow | None = None
        self.window: dict[str, Any] = {}
        """Filled when the timed window has ended."""
        self.facts: Piece = {}
        """What was found out once: versions, data, trace, memory."""
        self.store: Any = None
        """What the ranks share; None for a rank alone."""
        self.start = 0
        """Steps that were done before this run went on from a checkpoint."""
        self.paused_s = 0.0
        """Seconds of validation since the timed window began."""
        self.valid_losses: list[dict[str, float]] = []
        self.waits_s: list[float] = []
        """Seconds waited for data, at every mark."""

    @property
    def steps_done(self) -> int:
        """Steps whose end the device has reached."""
        return self.start + len(self.clock.steps())

    @property
    def warmup(self) -> int:
        """First steps of this process that are not measured; at least one step is."""
        return min(self.job.warmup, self.job.steps - self.start - 1)

    def piece(self, status: str, error: str | None, *, lost_peer: bool = False, alive: bool = True) -> Piece:
        """This rank's part of the record. ``alive``: the device may be asked."""
        job, times_s, done = self.job, self.clock.times_s(), self.steps_done
        if self.power is not None:
            self.power.stop()
        window = self.window or self._cut_window(times_s)
        piece: Piece = {
            "rank": self.place.rank,
            "host": socket.gethostname(),
            "status": status,
            "error": error,
            "lost_peer": lost_peer,
            "step": done,
            "phase": self.phase,
            "device": self.device,
            "power": self.power.result() if self.power is not None and self.power.window_s else None,
            **window,
            "first_step": self.start,
            "valid_losses": self.valid_losses,
            "window_times_s": times_s[self.warmup : job.steps - self.start],
            **self.facts,
        }
        if alive and "memory" not in piece:
            with suppress(RuntimeError):
                piece["memory"] = memory_of(job.device)
        if self.losses is not None and self.grad_norms is not None and (self.place.rank == 0 or status != "done"):
            done = min(done, job.steps) - self.start
            piece |= {
                "losses": self.losses.read(done),
                "grad_norms": self.grad_norms.read(done),
                "step_times_s": times_s[: job.steps - self.start],
            }
        return piece

    def _cut_window(self, times_s: list[float]) -> dict[str, Any]:
        """Return the window of a run that ended inside it: the steps that were done."""
        timed = times_s[self.warmup : self.job.steps - self.start]
        if not timed:
            return {"window_s": None, "window_steps": 0, "data_wait_s": None}
        first, last = self.warmup, self.warmup + len(timed)
        return {
            "window_s": sum(timed),
            "window_steps": len(timed),
            "data_wait_s": self.waits_s[min(last, len(self.waits_s) - 1)] - self.waits_s[first],
        }
