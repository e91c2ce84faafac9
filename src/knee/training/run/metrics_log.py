"""The metrics of steps for other programs: a file of JSON lines, and TensorBoard or Weights & Biases if asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from knee.base.errors import MissingExtra
from knee.base.files import write_text
from knee.training.parallelism.trainer_job import TrainJob

METRICS = "metrics.jsonl"
LogTarget = Literal["tensorboard", "wandb"]
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
        """The values of a step; those that are not known are left out."""
        known = {name: value for name, value in values.items() if value is not None}
        for writer in self.writers:
            try:
                writer(step, known)
            except Exception as error:  # of another program: the run goes on, and its record names the trouble
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
