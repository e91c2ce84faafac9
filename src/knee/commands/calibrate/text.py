"""What ``knee calibrate`` says: parameters before and after, errors, and what could not be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from knee.commands.validate.text import print_counts, print_scores
from knee.show.terminal.table import print_heading, print_rows
from knee.trust.validation.csv_cells import by_kind

if TYPE_CHECKING:
    from knee.commands.calibrate.result import Calibration
    from knee.measure.hardware_fit.residuals import Residuals
    from knee.trust.profile_fit.calibration import OwnProfile


def print_profile(answer: Calibration) -> None:
    """Tables on stdout."""
    name, runs, found, rows = answer.base, answer.runs, answer.found, answer.parameters
    fitted, kept = [row for row in rows if row.determined], [row for row in rows if not row.determined]
    left = "uncertainty left"
    print_heading(
        f"{_verdict(name, found)}: {len(runs.pairs):,} run{'s' if len(runs.pairs) > 1 else ''} "
        f"({runs.rows_used:,} of {runs.rows:,} rows), starting from {name}, {len(fitted)} of {len(rows)} "
        f"parameters {'changed' if found.kept_base else 'determined'}"
    )
    print_scores(
        "fitted and written",
        [
            ["parameter", "before", "after", left, f"{left} if all are fitted", "confounded with", "meaning"],
            *(
                [
                    row.name,
                    *(_show_value(row.name, value) for value in (row.before, row.after)),
                    *(_share(frac) for frac in (row.uncertainty_left_frac, row.uncertainty_left_all_free_frac)),
                    row.confounded_with or "",
                    row.meaning,
                ]
                for row in fitted
            ),
        ],
        right=range(1, 5),
    )
    print_scores(
        "not changed",
        [
            ["parameter", "value", left, "reason", "meaning"],
            *(
                [r.name, _show_value(r.name, r.before), _share(r.uncertainty_left_frac), r.why_left or "", r.meaning]
                for r in kept
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
    for what, before, after in lines:
        if before is not None and after is not None:
            middle = f"{before.median_frac:.1%} -> {after.median_frac:.1%}"
            high = f"{before.p90_frac:.1%} -> {after.p90_frac:.1%}"
            bias = f"{before.bias_frac:+.1%} -> {after.bias_frac:+.1%}"
            cells.append([what, f"{before.points:,}", middle, high, bias])
    used = "" if not found.kept_base else " (the fit is used in part)" if found.values else " (the fit is not used)"
    print_scores(f"error before -> after the fit{used}", cells)
    if held is not None:
        how = "each predicted" if held.one_by_one else "predicted"
        print_rows([[f"held-out test: {held.runs:,} runs, {how} by a fit to the other {held.fitted_runs:,}"]])


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _show_value(field: str, value: float) -> str:
    from knee.base.units import dimension, show

    unit = dimension(field)
    return f"{round(value, 4):g}" if unit in (None, "frac") else show(value, unit)
