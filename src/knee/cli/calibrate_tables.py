"""What ``knee calibrate`` says: parameters before and after, errors, and what could not be told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
        "checked": found.held_out is not None,
        "kept_base": sorted(set(found.kept_base.values())),
        "parameters": [
            {
                "name": row.field,
                "meaning": row.meaning,
                "before": row.before,
                "after": row.after,
                "fitted": row.fitted,
                "determined": not row.why,
                "uncertainty_left_frac": row.left,
                "uncertainty_left_all_free_frac": row.marginal,
                "confounded_with": row.partner,
                "why_left": row.why or None,
            }
            for row in _parameters(base, found)
        ],
        **{
            f"{what}_{when}": _plain(getattr(fit, f"{what}_{when}"))
            for what in ("throughput", "memory")
            for when in ("before", "after")
        },
        "held_out": None if found.held_out is None else asdict(found.held_out),
        "skipped": runs.skipped,
        "assumptions": runs.notes,
        "ignored_columns": list(runs.ignored),
        "warnings": list(found.warnings),
    }


def print_profile(name: str, base: Profile, runs: UserRuns, found: OwnProfile) -> None:
    """Tables on stdout."""
    rows = _parameters(base, found)
    fitted = [row for row in rows if not row.why]
    print_heading(
        f"{_verdict(name, found)}: {len(runs.pairs):,} run{'s' if len(runs.pairs) > 1 else ''} "
        f"({runs.rows_used:,} of {runs.rows:,} rows), starting from {name}, {len(fitted)} of {len(rows)} "
        f"parameters {'taken' if found.kept_base else 'determined'}"
    )
    print_table(
        "determined, and written",
        [
            ["parameter", "before", "after", "uncertainty left", "all others free", "not told from", "meaning"],
            *(
                [
                    row.field,
                    _shown(row.field, row.before),
                    _shown(row.field, row.after),
                    _share(row.left),
                    _share(row.marginal),
                    row.partner or "",
                    row.meaning,
                ]
                for row in fitted
            ),
        ],
        right=range(1, 5),
    )
    print_table(
        "left as they were",
        [
            ["parameter", "value", "uncertainty left", "why", "meaning"],
            *(
                [row.field, _shown(row.field, row.before), _share(row.left), row.why, row.meaning]
                for row in rows
                if row.why
            ),
        ],
        right=(1, 2),
    )
    _print_errors(found)
    print_counts("skipped", runs.skipped)
    print_counts("assumptions", runs.notes)
    if found.warnings:
        print_heading("warnings:")
        for warning in found.warnings:
            click.echo(f"  - {warning}")


def _verdict(name: str, found: OwnProfile) -> str:
    """What became of it, in the first words."""
    if found.kept_base:
        why = "; ".join(dict.fromkeys(found.kept_base.values()))
        return f"{'in part kept' if found.values else 'kept'} as in {name}, as {why}"
    if not found.fit.values:
        return f"nothing to take over {name}"
    if found.held_out is None:
        return "fitted, and not checked on other runs"
    return "fitted, and better on runs that were held back"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One parameter."""

    field: str
    meaning: str
    before: float
    after: float
    fitted: float | None
    """What the fit found, taken or not; None where it was not determined."""
    left: float | None
    """Uncertainty left over the prior's, with what was not determined at its value."""
    marginal: float | None
    """The same with all free."""
    partner: str | None
    """What it cannot be told from."""
    why: str
    """Why it was left; "" where it was not."""


def _parameters(base: Profile, found: OwnProfile) -> list[_Row]:
    from knee.fidelity.parameters import PARAMETERS

    estimates = {e.parameter.path: e for e in found.fit.estimates}
    rows = []
    for p in PARAMETERS:
        field, e = p.path.removeprefix("profile."), estimates.get(p.path)
        before = float(getattr(base, field))
        partner = None if e is None or e.confounded_with is None else e.confounded_with.removeprefix("profile.")
        rows.append(
            _Row(
                field=field,
                meaning=p.meaning,
                before=before,
                after=found.values.get(p.path, before),
                fitted=found.fit.values.get(p.path),
                left=None if e is None else e.uncertainty,
                marginal=None if e is None else e.marginal,
                partner=partner,
                why=found.left.get(p.path, ""),
            )
        )
    return rows


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
    cells = [["error of", "runs", "median", "p90", "bias"]]
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
    print_table("before -> after the fit" + _not_taken(found), cells)
    if held is not None:
        print_rows([[f"held out: {held.runs:,} runs, predicted by a fit to the other {held.fitted_runs:,}"]])


def _not_taken(found: OwnProfile) -> str:
    if not found.kept_base:
        return ""
    return ", which is taken in part" if found.values else ", which is not taken"


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
