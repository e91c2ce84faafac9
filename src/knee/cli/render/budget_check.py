"""Published training runs against predictions, on the screen and as plain data."""

from __future__ import annotations

import sys
from typing import Any

from knee.budgets.published_budgets import WITHIN_FRAC, PublishedTraining, worst_of
from knee.cli.render.table import print_heading, print_rows
from knee.specs.plan import plan_words
from knee.units import short


def checked_data(runs: list[PublishedTraining]) -> dict[str, Any]:
    """For ``--json``."""
    rows = [
        {
            "name": run.name,
            "cluster": run.cluster,
            "profile": run.profile,
            "gpus": run.gpus,
            "tokens": run.tokens,
            "gpu_hours": run.gpu_hours,
            "predicted_gpu_hours": run.predicted_gpu_hours,
            "flop": run.flop,
            "predicted_flop": run.predicted_flop,
            "error_frac": run.error_frac,
            "plan": None if run.rate is None else plan_words(run.rate.plan),
            "assumed": run.assumed,
            "source": run.source,
        }
        for run in runs
    ]
    return {"kind": "budget_check", "runs": rows, "within_frac": WITHIN_FRAC, "sentence": checked_sentence(runs)}


def print_checked(runs: list[PublishedTraining]) -> None:
    """Published against predicted, the worst last in words."""
    print_heading("training runs whose cost was published, under the best plan that knee finds")
    rows = [["run", "GPUs", "cluster", "tokens", "published", "predicted", "off by", "plan"]]
    for run in runs:
        hours = run.gpu_hours is not None
        published, predicted = (run.gpu_hours, run.predicted_gpu_hours) if hours else (run.flop, run.predicted_flop)
        unit = "h" if hours else "FLOP"
        rows.append(
            [
                run.name,
                "-" if run.gpus is None else f"{run.gpus:,}",
                run.cluster or "TPUs",
                short(run.tokens),
                _with_unit(published, unit),
                _with_unit(predicted, unit),
                "unknown" if run.error_frac is None else f"{run.error_frac:+.1%}",
                plan_words(run.rate.plan) if run.rate else "",
            ]
        )
    print_rows(rows, right=(1, 3, 4, 5, 6), dim=(7,))
    print_heading("assumptions:")
    for run in runs:
        sys.stdout.write(f"  - {run.name}: {run.assumed}. {run.source}\n")
    print_heading(checked_sentence(runs))


def _with_unit(value: float | None, unit: str) -> str:
    return "no plan" if value is None else f"{value:,.0f} h" if unit == "h" else f"{short(value)} FLOP"


def checked_sentence(runs: list[PublishedTraining]) -> str:
    """The worst, and whether all are within what is asked."""
    worst = worst_of(runs)
    within = sum(run.error_frac is not None and abs(run.error_frac) <= WITHIN_FRAC for run in runs)
    error = 0.0 if worst.error_frac is None else worst.error_frac
    hours = sum(run.gpu_hours is not None for run in runs)
    return (
        f"{within} of {len(runs)} runs are within {WITHIN_FRAC:.0%} ({hours} by GPU hours); the worst, "
        f"{worst.name}, is off by {error:+.1%}."
    )
