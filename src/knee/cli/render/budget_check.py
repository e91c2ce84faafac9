"""Published training runs against predictions, on the screen."""

from __future__ import annotations

import sys

from knee.cli.render.table import print_heading, print_rows
from knee.results.budget_check_result import BudgetCheck, plan_of
from knee.units import short


def print_checked(check: BudgetCheck) -> None:
    """Published against predicted, the worst last in words."""
    print_heading("training runs whose cost was published, predicted with the best plan that knee finds")
    rows = [["run", "GPUs", "cluster", "tokens", "published cost", "predicted cost", "error", "plan"]]
    for run in check.runs:
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
                plan_of(run),
            ]
        )
    print_rows(rows, right=(1, 3, 4, 5, 6), dim=(7,))
    print_heading("assumptions:")
    for run in check.runs:
        sys.stdout.write(f"  - {run.name}: {run.assumed}. {run.source}\n")
    print_heading(check.sentence)


def _with_unit(value: float | None, unit: str) -> str:
    return "no plan" if value is None else f"{value:,.0f} GPU-hours" if unit == "h" else f"{short(value)} FLOP"
