"""Lines of progress while a run goes on."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from knee.train.rank_state import RankState
from knee.train.timed_steps import peak_of

PERIOD_S = 1.0
"""Between lines of progress."""


def say(text: str) -> None:
    """Print a line on stderr; a run does not end because nobody is left to read it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class TrainProgress:
    """Lines on stderr, of rank 0: loss, tokens per second, MFU."""

    def __init__(self, run: RankState) -> None:
        self.run, self.last_s, self.last_done = run, 0.0, 0
        self.quiet = run.place.rank != 0
        peak = peak_of(run.device, run.job.dtype, run.job.facts.get("gpus_known", ()))["peak_flop_per_s"]
        flop = run.job.facts.get("flop_per_token")
        self.flop_frac = None if peak is None or flop is None else flop / (peak * run.job.gpus)

    def step(self, issued: int) -> None:
        """Print what is known of the last step that is done, after another one was issued."""
        now = time.perf_counter()
        if self.quiet or (now - self.last_s < PERIOD_S and issued not in (1, self.run.job.steps)):
            return
        done = self.run.steps_done
        if done <= self.last_done or self.run.losses is None:
            return
        times_s = self.run.clock.times_s()[self.last_done : done]
        self.last_s, self.last_done = now, done
        loss = self.run.losses.read(done)[-1]
        self._print(f"step {done}/{self.run.job.steps}", loss, sum(times_s) / len(times_s))

    def window(self) -> None:
        """Print the window's mean."""
        if not self.quiet:
            window = self.run.window
            step_s = window["window_s"] / window["window_steps"]
            self._print(f"steps {self.run.job.warmup + 1} to {self.run.job.steps}", None, step_s)

    def _print(self, steps: str, loss: float | None, step_s: float) -> None:
        """Print loss, rate and MFU where they are known."""
        rate = self.run.job.tokens / step_s
        parts = [steps] if loss is None else [steps, f"loss {loss:.4f}"]
        parts += [f"{step_s * 1e3:,.1f} ms", f"{rate:,.0f} tokens/s"]
        if self.flop_frac is not None:
            parts.append(f"MFU {rate * self.flop_frac:.1%}")
        say("  ".join(parts))
