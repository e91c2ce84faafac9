"""Lines of progress while a run goes on."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from knee.train.rank_state import RankState
from knee.train.timed_steps import peak_of

TELL_S = 1.0
"""Between lines of progress."""


def say(text: str) -> None:
    """A line on stderr; a run does not end because nobody is left to read it."""
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
        """After a step was issued; says what is known of the last one that is done."""
        now = time.perf_counter()
        if self.quiet or (now - self.last_s < TELL_S and issued not in (1, self.run.job.steps)):
            return
        done = self.run.steps_done
        if done <= self.last_done or self.run.losses is None:
            return
        times_s = self.run.clock.times_s()[self.last_done : done]
        self.last_s, self.last_done = now, done
        self.line(done, self.run.losses.read(done)[-1], sum(times_s) / len(times_s))

    def window(self) -> None:
        """The window's mean."""
        if not self.quiet:
            window = self.run.window
            step_s = window["window_s"] / window["window_steps"]
            self.say(f"steps {self.run.job.warmup + 1} to {self.run.job.steps}", None, step_s)

    def line(self, done: int, loss: float | None, step_s: float) -> None:
        """One line."""
        self.say(f"step {done}/{self.run.job.steps}", loss, step_s)

    def say(self, what: str, loss: float | None, step_s: float) -> None:
        """Loss, rate and MFU where they are known."""
        rate = self.run.job.tokens / step_s
        words = [
            what,
            *([f"loss {loss:.4f}"] if loss is not None else []),
            f"{step_s * 1e3:,.1f} ms",
            f"{rate:,.0f} tokens/s",
        ]
        if self.flop_frac is not None:
            words.append(f"MFU {rate * self.flop_frac:.1%}")
        say("  ".join(words))
