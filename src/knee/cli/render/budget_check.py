"""Published training runs against predictions, on the screen."""

from __future__ import annotations

import sys

from knee.cli.render.table import print_heading, print_rows
from knee.reliability.published_interruptions import InterruptedRun
from knee.results.budget_check_result import BudgetCheck, plan_of
from knee.units import short


def print_checked(check: BudgetCheck) -> None:
    """Published against predicted, the worst last in words."""
    print_heading("training runs whose cost was published, predicted with the best plan that knee finds")
    rows = [
        ["run", "GPUs", "cluster", "tokens", "published cost", "predicted cost", "error", "error with failures", "plan"]
    ]
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
                "-" if run.failed_error_frac is None else f"{run.failed_error_frac:+.1%}",
                plan_of(run),
            ]
        )
    print_rows(rows, right=(1, 3, 4, 5, 6, 7), dim=(8,))
    print_heading("interruptions that were published, and those that the default failure rates predict")
    print_rows(
        [
            [
                "run",
                "GPUs",
                "days",
                "published",
                "predicted",
                "expected range",
                "goodput",
                "published goodput",
                "agrees",
            ],
            *(_interrupted(run) for run in check.interrupted),
        ],
        right=range(1, 8),
    )
    print_heading("assumptions:")
    said = [(run.name, run.assumed, run.source) for run in check.runs]
    said += [(run.name, run.assumed, run.source) for run in check.interrupted]
    for name, assumed, source in said:
        sys.stdout.write(f"  - {name}: {assumed}. {source}\n")
    print_heading(check.sentence)


def _interrupted(run: InterruptedRun) -> list[str]:
    return [
        run.name,
        f"{run.gpus:,}",
        f"{run.days:g}",
        f"{run.least}" if run.least == run.most else f"{run.least} to {run.most}",
        f"{run.predicted:.0f}",
        f"{run.low} to {run.high}",
        f"{run.goodput_frac:.1%}",
        "unknown" if run.effective_frac is None else f"above {run.effective_frac:.0%}",
        ("yes" if run.agrees else "no") + (", rates fitted to it" if run.fitted else ""),
    ]


def _with_unit(value: float | None, unit: str) -> str:
    return "no plan" if value is None else f"{value:,.0f} GPU-hours" if unit == "h" else f"{short(value)} FLOP"
