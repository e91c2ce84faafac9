"""What ``knee calibrate`` says: parameters before and after, errors, and what could not be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from knee.commands.validate.text import print_counts, print_table
from knee.show.terminal.table import print_heading, print_rows
from knee.trust.validation.csv_cells import by_kind

if TYPE_CHECKING:
    from knee.commands.calibrate.result import Calibration
    from knee.measure.hardware_fit.residuals import Residuals
    from knee.trust.profile_fit.calibration import OwnProfile


def print_profile(answer: Calibration) -> None:
    """Tables on stdout."""
    name, runs, found, rows = answer.base, answer.runs, answer.found, answer.parameters
    fitted = [row for row in rows if row.determined]
    print_heading(
        f"{_verdict(name, found)}: {len(runs.pairs):,} run{'s' if len(runs.pairs) > 1 else ''} "
        f"({runs.rows_used:,} of {runs.rows:,} rows), starting from {name}, {len(fitted)} of {len(rows)} "
        f"parameters {'changed' if found.kept_base else 'determined'}"
    )
    print_table(
        "fitted and written",
        [
            [
                "parameter",
                "before",
                "after",
                "uncertainty left",
                "uncertainty left if all are fitted",
                "confounded with",
                "meaning",
            ],
            *(
                [
                    row.name,
                    _show_value(row.name, row.before),
                    _show_value(row.name, row.after),
                    _share(row.uncertainty_left_frac),
                    _share(row.uncertainty_left_all_free_frac),
                    row.confounded_with or "",
                    row.meaning,
                ]
                for row in fitted
            ),
        ],
        right=range(1, 5),
    )
    print_table(
        "not changed",
        [
            ["parameter", "value", "uncertainty left", "reason", "meaning"],
            *(
                [
                    row.name,
                    _show_value(row.name, row.before),
                    _share(row.uncertainty_left_frac),
                    row.why_left or "",
                    row.meaning,
                ]
                for row in rows
                if not row.determined
            ),
        ],
        right=(1, 2),
    )
    _print_errors(found)
    print_counts("skipped", by_kind(runs.skipped))
    print_counts("assumptions", runs.notes)
    if answer.suggested:
        print_heading("suggested next runs:")
    for number, run in enumerate(answer.suggested, start=1):
        where = f"{run.model}, {run.gpus:,} GPUs on {run.cluster}, seq_len {run.seq_len:,}"
        click.echo(f"  {number}. {where}, global_batch {run.global_batch:,}, {run.plan} ({run.changed}):")
        click.echo(f"     {run.sentence}")
    if answer.warnings:
        print_heading("warnings:")
        for warning in answer.warnings:
            click.echo(f"  - {warning}")


def _verdict(name: str, found: OwnProfile) -> str:
    """What became of it, in the first words."""
    if found.kept_base:
        why = "; ".join(dict.fromkeys(found.kept_base.values()))
        return f"{'some values' if found.values else 'the values'} of {name} are kept, because {why}"
    if not found.fit.values:
        return f"the runs determine no parameter; {name} is unchanged"
    if found.held_out is None:
        return "fitted, but not tested on held-out runs"
    return "fitted, and better on held-out runs"


def _print_errors(found: OwnProfile) -> None:
    fit, held = found.fit, found.held_out
    lines: list[tuple[str, Residuals | None, Residuals | None]] = [
        ("tokens/s", fit.throughput_before, fit.throughput_after),
        ("memory", fit.memory_before, fit.memory_after),
    ]
    if held is not None:
        lines += [
            ("tokens/s, held out", held.throughput_before, held.throughput_after),
            ("memory, held out", held.memory_before, held.memory_after),
        ]
    cells = [["error of", "runs", "median", "p90", "signed median"]]
    cells += [
        [
            what,
            f"{before.points:,}",
            _arrow(before.median_frac, after.median_frac),
            _arrow(before.p90_frac, after.p90_frac),
            f"{before.bias_frac:+.1%} -> {after.bias_frac:+.1%}",
        ]
        for what, before, after in lines
        if before is not None and after is not None
    ]
    print_table("error before -> after the fit" + _not_taken(found), cells)
    if held is not None:
        how = "each predicted" if held.one_by_one else "predicted"
        print_rows([[f"held-out test: {held.runs:,} runs, {how} by a fit to the other {held.fitted_runs:,}"]])


def _not_taken(found: OwnProfile) -> str:
    if not found.kept_base:
        return ""
    return " (the fit is used in part)" if found.values else " (the fit is not used)"


def _arrow(before: float, after: float) -> str:
    return f"{before:.1%} -> {after:.1%}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _show_value(field: str, value: float) -> str:
    from knee.base.units import dimension, show

    unit = dimension(field)
    return f"{round(value, 4):g}" if unit in (None, "frac") else show(value, unit)
