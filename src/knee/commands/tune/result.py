"""A tuning on a real cluster: the best plan, the runs behind it, and what could still be gained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import Incomplete, RunFailed
from knee.commands.tune.tuned_state import TunedState
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.training.launch.run_status import Status

BEST = "best.toml"
"""Of the folder: the job with the best plan."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Tuned(Result):
    """The best measured plan of a job, and how sure it is that no other is better."""

    folder: Path
    state: TunedState
    statuses: Mapping[str, Status]
    """Id of a run -> how it stands now."""
    launcher: str = "local"
    own_program: bool = False
    """Whether runs are a program of the user's and not knee's trainer."""
    signal: int | None = None
    """The signal that ended it before it was done."""

    @property
    def best_plan(self) -> str | None:
        """The fastest plan that was measured, in words; None where none ran."""
        return self.state.best_plan

    @property
    def bound_frac(self) -> float | None:
        """With 90% probability, no untried candidate is faster than the best plan by more than this."""
        return self.state.bound_frac

    @property
    def job_file(self) -> Path | None:
        """The job file of the best plan at full size, for ``knee train`` and ``knee simulate``."""
        path = self.folder / BEST
        return path if path.exists() else None

    @property
    def train_command(self) -> list[str]:
        """The words of a command that trains the best plan with the settings of its run; empty if there is none."""
        if self.job_file is None or self.own_program:
            return []
        variables = [word for word in self.state.train_words if not word.startswith("--")]
        options = [word for word in self.state.train_words if word.startswith("--")]
        gpus = self.state.job["gpus"]
        here = self.launcher == "local"
        start = ["knee"] if here else ["torchrun", "...", "-m", "knee"]
        count = ["--nproc", str(gpus)] if here and gpus > 1 else []
        return [*(["env", *variables] if variables else []), *start, "train", str(self.job_file), *count, *options]

    def check_found(self) -> None:
        """Raise ``RunFailed`` if no run completed, and ``Incomplete`` if the tuning was interrupted."""
        if self.state.best_plan is None and self.state.why != "interrupted":
            last = next((run.words for run in reversed(self.state.runs) if run.words), "no run was started")
            text = f"none of the {len(self.state.runs)} runs completed: {last}"
            raise RunFailed(text, hint=f"the logs are in {self.folder}/runs")
        if self.state.why == "interrupted":
            raise Incomplete("the tuning was interrupted", hint="repeat the command to continue it")

    @checked_arguments
    def write_page(self, path: str | Path, *, command: str = "") -> None:
        """Write one HTML page with the search in pictures, which needs no network."""
        from knee.base.files import write_text
        from knee.commands.tune.page import tune_page

        write_text(Path(path), tune_page(self.to_dict(), command=command))

    def _data(self) -> dict[str, Any]:
        plain = asdict(self.state)
        for run in plain["runs"]:
            now = self.statuses.get(run["id"])
            if now is not None:
                run |= {"state": now.state, "cause": now.cause, "words": now.words, "attempts": now.attempts}
        return {"folder": self.folder, "job_file": self.job_file, **plain}

    def rows(self) -> list[dict[str, Any]]:
        """The runs, one per row."""
        runs: list[dict[str, Any]] = self.to_dict()["runs"]
        return runs
