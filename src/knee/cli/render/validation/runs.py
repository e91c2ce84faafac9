"""Training runs in ``knee validate``: what is printed of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from knee.cli.render.table import print_heading
from knee.cli.render.validate import ALL, print_counts, print_errors, print_skipped, print_table

if TYPE_CHECKING:
    from knee.validation.run_errors import Score, Validation


def print_runs(found: Validation) -> None:
    """Tables on stdout."""
    if found.headline_frac is not None and found.all.throughput is not None:
        points = found.all.throughput.points
        over = "over its only run" if points == 1 else f"over all {points:,} runs"
        print_heading(
            f"median error of tokens/s per GPU: {found.headline_frac:.1%} (median over the "
            f"medians of {_counted(found)}), {found.all.throughput.median_frac:.1%} {over}"
        )
    print_errors(
        "error of tokens/s per GPU",
        {name: score.throughput for name, score in _scores(found).items()},
        of="source",
        counted="runs",
    )
    print_scores(found)


def _scores(found: Validation) -> dict[str, Score]:
    return {**found.sources, ALL: found.all} if len(found.sources) > 1 else found.sources


def print_scores(found: Validation) -> None:
    """All but the error of throughput: rows, memory, what fits, the choice among plans, and what was assumed."""
    scores = _scores(found)
    _print_used(scores)
    print_errors("error of memory", {name: score.memory for name, score in scores.items()}, of="source", counted="runs")
    _print_fitting(scores)
    _print_ranking(scores)
    print_skipped({name: score.skipped for name, score in found.sources.items()})
    if found.stacks:
        click.echo(f"software stacks: {', '.join(f'{name} {_rows(count)}' for name, count in found.stacks.items())}")
    print_counts("assumptions", found.notes)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _counted(found: Validation) -> str:
    count = sum(score.throughput is not None for score in found.sources.values())
    return "one source" if count == 1 else f"{count} sources"


def _print_used(scores: Mapping[str, Score]) -> None:
    cells = [["source", "rows", "used", "skipped", "runs"]]
    cells += [
        [name, f"{s.rows:,}", f"{s.rows_used:,}", f"{s.rows - s.rows_used:,}", f"{s.runs:,}"]
        for name, s in scores.items()
    ]
    print_table("rows (repeated measurements count as one run)", cells)


def _print_fitting(scores: Mapping[str, Score]) -> None:
    from knee.validation.published_runs import STATUSES

    cells = [["source", *(f"{status}: {word}" for status in STATUSES for word in ("fits", "does not fit"))]]
    cells += [
        [name, *(f"{count:,}" for f in s.fitting.values() for count in (f.fits, f.does_not))]
        for name, s in scores.items()
        if s.runs
    ]
    print_table("number of runs by measured status, and whether knee predicts that they fit in memory", cells)


def _print_ranking(scores: Mapping[str, Score]) -> None:
    cells = [["source", "groups", "plans", "median", "mean", "largest", "fastest plan chosen", "rank correlation"]]
    for name, score in scores.items():
        if (r := score.ranking) is not None:
            order = "" if r.median_spearman is None else f"{r.median_spearman:.2f}"
            cells.append(
                [
                    name,
                    f"{r.groups:,}",
                    f"{r.plans:,}",
                    f"{r.median_regret_frac:.1%}",
                    f"{r.mean_regret_frac:.1%}",
                    f"{r.worst_regret_frac:.1%}",
                    f"{r.best_chosen_frac:.0%}",
                    order,
                ]
            )
    print_table("regret: measured slowdown of the plan that knee ranks first, relative to the fastest plan", cells)
