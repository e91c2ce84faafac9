"""Lines of progress while a run goes on, and the metrics of its steps."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from knee.base.units import show
from knee.training.parallelism.learning_rate import learning_rate
from knee.training.run.metrics_log import MetricsLog
from knee.training.run.rank_state import RankState
from knee.training.run.timed_steps import memory_of, peak_of

PERIOD_S = 1.0
"""Between lines of progress."""
STILL_S = 10.0
"""Between lines that say that something is still being done."""
COMPILES = (
    "Compiling and tuning the kernels of the blocks, the loss and the optimizer. On a GPU this takes a minute or two "
    "the first time, and less while PyTorch's cache has them"
)


def say(text: str) -> None:
    """Print a line on stderr; a run does not end because nobody is left to read it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def said_while(run: RankState, text: str) -> Iterator[None]:
    """Say what is being done if it takes long, and that it still is. The first rank speaks."""
    over, began_s = threading.Event(), time.monotonic()

    def speak() -> None:
        while not over.wait(STILL_S):
            say(f"{text}: {time.monotonic() - began_s:.0f} s so far")

    if run.place.rank == 0:
        threading.Thread(target=speak, name="knee-still", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class TrainProgress:
    """Lines on stderr, of rank 0: loss, learning rate, tokens per second, MFU, memory, power."""

    def __init__(self, run: RankState) -> None:
        self.run, self.last_s, self.last_done = run, 0.0, run.start
        self.quiet = run.place.rank != 0
        peak = peak_of(run.device, run.job.dtype, run.job.facts.get("gpus_known", ()))["peak_flop_per_s"]
        flop = run.job.facts.get("flop_per_token")
        self.flop_frac = None if peak is None or flop is None else flop / (peak * run.job.gpus)
        self.log = None if self.quiet or run.out is None else MetricsLog(run.job, run.out, run.start)
        self.warned = False
        self.logged, self.validated = run.start, 0
        """The last step, and the number of validation losses, that were logged."""

    def first_step(self) -> AbstractContextManager[None]:
        """Around the first step, which compiles."""
        if self.run.job.compile and not self.quiet:
            say(COMPILES)
        return said_while(self.run, "still compiling" if self.run.job.compile else "the first step still runs")

    def step(self, issued: int) -> None:
        """Print what is known of the last step that is done, after another one was issued."""
        now = time.perf_counter()
        first = self.run.start + 1
        if self.quiet or (now - self.last_s < PERIOD_S and issued not in (first, self.run.job.steps)):
            return
        done = self.run.steps_done
        if done <= self.last_done or self.run.losses is None:
            return
        times_s = self.run.clock.times_s(self.last_done - self.run.start)[: done - self.last_done]
        self.log_steps()
        self.last_s, self.last_done, own = now, done, done - self.run.start
        loss = self.run.losses.read(own, own - 1)[0]
        self._print(f"step {done}/{self.run.job.steps}", loss, sum(times_s) / len(times_s))

    def window(self) -> None:
        """Print the window's mean."""
        if not self.quiet:
            window, first = self.run.window, self.run.start + self.run.warmup + 1
            step_s = window["window_s"] / window["window_steps"]
            self._print(f"steps {first} to {self.run.job.steps}", None, step_s)
            self._log_validation()

    def log_steps(self) -> None:
        """Log the steps that are done and were not logged yet."""
        run, first, done = self.run, self.logged, min(self.run.steps_done, self.run.job.steps)
        if self.log is None or run.losses is None or run.grad_norms is None:
            return
        self.logged, times_s = done, run.clock.times_s(first - run.start)[: done - first]
        losses, norms = (values.read(done - run.start, first - run.start) for values in (run.losses, run.grad_norms))
        for step, step_s, loss, norm in zip(range(first + 1, done + 1), times_s, losses, norms, strict=True):
            values = {
                "loss": loss,
                "grad_norm": norm,
                "learning_rate": learning_rate(run.job, step - 1),
                "step_s": step_s,
                "tokens_per_s": run.job.tokens / step_s,
                "mfu_frac": None if self.flop_frac is None else run.job.tokens / step_s * self.flop_frac,
            }
            self.log.write(step, values | (self._state() if step == done else {}))
        self._log_validation()

    def _log_validation(self) -> None:
        if self.log is not None:
            for entry in self.run.valid_losses[self.validated :]:
                self.log.write(int(entry["step"]), {"valid_loss": entry["loss"]})
            if self.log.trouble is not None and not self.warned:
                self.warned = True
                say(f"warning: metrics could not be written: {self.log.trouble}; training goes on")
        self.validated = len(self.run.valid_losses)

    def _state(self) -> dict[str, float | None]:
        """Memory and power of this rank, now."""
        memory = memory_of(self.run.job.device)
        held = memory["memory_bytes"] if memory["memory_bytes"] is not None else memory["peak_rss_bytes"]
        return {"memory_bytes": held, "power_w": None if self.run.power is None else self.run.power.now_w()}

    def _print(self, steps: str, loss: float | None, step_s: float) -> None:
        """Print loss, rate, MFU, memory and power where they are known."""
        rate = self.run.job.tokens / step_s
        parts = [steps]
        if loss is not None:
            parts += [f"loss {loss:.4f}", f"lr {learning_rate(self.run.job, self.last_done - 1):.2e}"]
        parts += [f"{step_s * 1e3:,.1f} ms", f"{rate:,.0f} tokens/s"]
        if self.flop_frac is not None:
            parts.append(f"MFU {rate * self.flop_frac:.1%}")
        state = self._state()
        if state["memory_bytes"] is not None:
            parts.append(show(state["memory_bytes"], "bytes"))
        if state["power_w"] is not None:
            parts.append(f"{state['power_w']:,.0f} W")
        say("  ".join(parts))
