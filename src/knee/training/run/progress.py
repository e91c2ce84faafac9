"""How a run goes on: lines of progress on stderr, and the metrics of its steps in files and for other programs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from knee.base.errors import MissingExtra
from knee.base.files import write_text
from knee.base.units import show
from knee.training.parallelism.trainer_job import TrainJob, learning_rate
from knee.training.run.rank_state import RankState
from knee.training.run.timed_steps import memory_of, peak_of

METRICS = "metrics.jsonl"
Write = Callable[[int, Mapping[str, float]], None]


def check_installed(targets: tuple[str, ...]) -> None:
    """``MissingExtra`` for a program that is not installed here."""
    for name in targets:
        if find_spec(name) is None:
            raise MissingExtra(f"{name} is not installed", hint=f"pip install {name}", field="log_to")


class MetricsLog:
    """Writes of one rank. A full disk, or a server that is gone, loses metrics and not the run."""

    def __init__(self, job: TrainJob, out: Path, first_step: int) -> None:
        self.trouble: str | None = None
        self.path = out / METRICS
        self._forget_after(first_step)
        self.writers: list[Write] = [self._write_line, *(_opened(name, job, out) for name in job.log_to)]

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write the values of a step; unknown ones are left out."""
        known = {name: value for name, value in values.items() if value is not None}
        for writer in self.writers:
            try:
                writer(step, known)
            except Exception as error:
                self.trouble = str(error)

    def _write_line(self, step: int, values: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def _forget_after(self, step: int) -> None:
        """Remove what an earlier run wrote of steps that are now done again."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        write_text(self.path, "".join(kept))


def _opened(name: str, job: TrainJob, out: Path) -> Write:
    """What writes to another program; ``MissingExtra`` if that cannot be started."""
    make, hint = {
        "tensorboard": (_tensorboard, "pip install --upgrade tensorboard"),
        "wandb": (_wandb, "with WANDB_MODE=offline it needs no server"),
    }[name]
    try:
        return make(job, out)
    except Exception as error:
        reason = str(error).strip().split("\n")[0].removesuffix(".")
        raise MissingExtra(f"{name} cannot be started: {reason}", hint=hint, field="log_to") from None


def _tensorboard(job: TrainJob, out: Path) -> Write:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(out / "tensorboard"))
    writer.add_text("job", json.dumps({**job.as_json(), "facts": {}}))

    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def _wandb(job: TrainJob, out: Path) -> Write:
    import wandb

    # a run that goes on is the same one there, and another folder of the same name is another run
    kept = out / "wandb" / "run_id"
    same = kept.read_text(encoding="utf-8").strip() if job.resume and kept.is_file() else None
    config = {**job.as_json(), "facts": {}}
    run: Any = wandb.init(project="knee", name=out.name, dir=str(out), config=config, resume="allow", id=same)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_text(kept, f"{run.id}\n")
    # with its own count of steps, W&B refuses validation losses, which are known later
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return lambda step, values: run.log({"step": step, **values})


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
        """Return a context for the first step, which may compile: it reports that it still runs."""
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
        """Return the memory and power of this rank now."""
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
