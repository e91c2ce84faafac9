"""What ``knee calibrate`` says: parameters before and after, errors, and what could not be told."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.table import print_heading, print_rows
from knee.cli.validate_tables import print_counts, print_table

if TYPE_CHECKING:
    from knee.fidelity.residuals import Residuals
    from knee.fidelity.user_profile import OwnProfile
    from knee.fidelity.user_runs import UserRuns
    from knee.specs.profile import Profile


def as_data(name: str, base: Profile, runs: UserRuns, found: OwnProfile, out: Path | None) -> dict[str, Any]:
    """For JSON."""
    fit = found.fit
    return {
        "base": name,
        "profile_file": None if out is None else str(out),
        "rows": runs.rows,
        "rows_used": runs.rows_used,
        "runs": len(runs.pairs),
        "parameters": [
            {"name": field, "meaning": meaning, "before": before, "after": after, "determined": not why,
             "uncertainty_left_frac": left, "why_left": why or None}
            for field, meaning, before, after, left, why in _parameters(base, found)
        ],
        **{f"{what}_{when}": _plain(getattr(fit, f"{what}_{when}"))
           for what in ("throughput", "memory") for when in ("before", "after")},
        "held_out": None if found.held_out is None else asdict(found.held_out),
        "skipped": runs.skipped,
        "assumptions": runs.notes,
        "ignored_columns": list(runs.ignored),
        "warnings": list(found.warnings),
    }


def print_profile(name: str, base: Profile, runs: UserRuns, found: OwnProfile) -> None:
    """Tables on stdout."""
    rows = _parameters(base, found)
    fitted = [row for row in rows if not row[5]]
    print_heading(f"{len(runs.pairs):,} run{'s' if len(runs.pairs) > 1 else ''} ({runs.rows_used:,} of {runs.rows:,} "
                  f"rows), starting from {name}: {len(fitted)} of {len(rows)} parameters determined")
    print_table("determined, and written", [
        ["parameter", "before", "after", "uncertainty left", "meaning"],
        *([field, _shown(field, before), _shown(field, after), _share(left), meaning]
          for field, meaning, before, after, left, _ in fitted)], right=range(1, 4))
    print_table("left as they were", [
        ["parameter", "value", "uncertainty left", "why", "meaning"],
        *([field, _shown(field, before), _share(left), why, meaning]
          for field, meaning, before, _, left, why in rows if why)], right=(1, 2))
    _print_errors(found)
    print_counts("skipped", runs.skipped)
    print_counts("assumptions", runs.notes)
    if found.warnings:
        print_heading("warnings:")
        for warning in found.warnings:
            click.echo(f"  - {warning}")


def _parameters(base: Profile, found: OwnProfile) -> list[tuple[str, str, float, float, float | None, str]]:
    """Field, meaning, before, after, uncertainty left over the prior's, why it was left ("" where it was not)."""
    from knee.fidelity.parameters import PARAMETERS

    estimates = {e.parameter.path: e for e in found.fit.estimates}
    rows = []
    for p in PARAMETERS:
        field, e = p.path.removeprefix("profile."), estimates.get(p.path)
        before = float(getattr(base, field))
        after, left = (before, None) if e is None else (e.after, e.uncertainty)
        rows.append((field, p.meaning, before, after, left, found.left.get(p.path, "")))
    return rows


def _print_errors(found: OwnProfile) -> None:
    fit, held = found.fit, found.held_out
    lines: list[tuple[str, Residuals | None, Residuals | None]] = [
        ("tokens/s", fit.throughput_before, fit.throughput_after),
        ("memory", fit.memory_before, fit.memory_after),
    ]
    if held is not None:
        lines += [("tokens/s, held out", held.throughput_before, held.throughput_after),
                  ("memory, held out", held.memory_before, held.memory_after)]
    cells = [["error of", "runs", "median", "p90", "bias"]]
    cells += [[what, f"{before.points:,}", _arrow(before.median_frac, after.median_frac),
               _arrow(before.p90_frac, after.p90_frac), f"{before.bias_frac:+.1%} -> {after.bias_frac:+.1%}"]
              for what, before, after in lines if before is not None and after is not None]
    print_table("before -> after", cells)
    if held is not None:
        print_rows([[f"held out: {held.runs:,} runs, predicted by a fit to the other {held.fitted_runs:,}"]])


def _arrow(before: float, after: float) -> str:
    return f"{before:.1%} -> {after:.1%}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _shown(field: str, value: float) -> str:
    from knee.units import dimension, show

    unit = dimension(field)
    return f"{round(value, 4):g}" if unit in (None, "frac") else show(value, unit)


def _plain(residuals: Residuals | None) -> dict[str, Any] | None:
    return None if residuals is None else asdict(residuals)
