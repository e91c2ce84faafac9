"""Training runs whose cost was published, beside what is predicted for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from knee.budgets.published_budgets import WITHIN_FRAC, PublishedTraining, worst_of
from knee.record.plan_words import plan_words
from knee.reliability.published_interruptions import InterruptedRun
from knee.results.result import Result

FIELDS = (
    "name",
    "cluster",
    "profile",
    "gpus",
    "tokens",
    "gpu_hours",
    "predicted_gpu_hours",
    "flop",
    "predicted_flop",
    "error_frac",
    "goodput_frac",
    "failed_gpu_hours",
    "failed_error_frac",
    "plan",
    "assumed",
    "source",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheck(Result):
    """Published and predicted costs, each with the best plan that knee finds."""

    runs: tuple[PublishedTraining, ...]
    interrupted: tuple[InterruptedRun, ...] = ()
    """Published interruptions beside those that the default failure rates predict."""

    @property
    def sentence(self) -> str:
        """One sentence: the number of runs within the target error, and the largest error."""
        worst = worst_of(list(self.runs))
        within = sum(run.error_frac is not None and abs(run.error_frac) <= WITHIN_FRAC for run in self.runs)
        error = 0.0 if worst.error_frac is None else worst.error_frac
        hours = sum(run.gpu_hours is not None for run in self.runs)
        return (
            f"{within} of {len(self.runs)} runs are within {WITHIN_FRAC:.0%}; {hours} runs are compared in GPU-hours, "
            f"the others in FLOP. The largest error, of {worst.name}, is {error:+.1%}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee budget --check --json`` prints it."""
        return {"kind": "budget_check", "runs": self.rows(), "within_frac": WITHIN_FRAC, "sentence": self.sentence} | {
            "interrupted": [asdict(run) | {"agrees": run.agrees} for run in self.interrupted]
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per run."""
        return [
            {name: plan_of(run) or None if name == "plan" else getattr(run, name) for name in FIELDS}
            for run in self.runs
        ]


def plan_of(run: PublishedTraining) -> str:
    """The plan that a run is predicted under, in words; empty where none is."""
    return "" if run.rate is None else plan_words(run.rate.plan)
