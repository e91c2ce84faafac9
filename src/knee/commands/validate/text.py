"""``knee validate`` without a file: knee's own validation set, which the study shows too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from knee.show.terminal.table import print_heading, print_rows

if TYPE_CHECKING:
    from knee.commands.validate.result import CarriedValidation
    from knee.measure.hardware_fit.residuals import Residuals
    from knee.trust.validation.bandwidth_errors import BandwidthScore, BandwidthValidation
    from knee.trust.validation.bundled_runs import CarriedFidelity
    from knee.trust.validation.run_errors import Score, Validation


SHOWN = 12
"""Reasons and assumptions that are printed; JSON has all."""
MOST_NAMED = 40
"""Sources, or the like, that a table has; JSON has all."""
ALL = "all rows"


def print_scores(title: str, cells: Sequence[Sequence[str]], right: Sequence[int] | None = None) -> None:
    """Nothing where there is a header only; numbers are in all columns but the first if ``right`` does not say."""
    if len(cells) < 2:
        return
    names = cells[1:-1] if cells[-1][0] == ALL else cells[1:]
    left = len(names) - MOST_NAMED
    if left > 0:
        cells = [cells[0], *names[:MOST_NAMED], *cells[1 + len(names) :]]
    print_heading(title)
    print_rows(cells, right=range(1, len(cells[0])) if right is None else right)
    if left > 0:
        click.echo(f"  and {left:,} more; --json lists all")


def print_errors(title: str, residuals: Mapping[str, Residuals | None], *, of: str, counted: str) -> None:
    """Median, p90 and bias of each; ``of`` heads the names, ``counted`` their number."""
    cells = [[of, counted, "median", "p90", "signed median"]]
    cells += [
        [name, f"{r.points:,}", f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{r.bias_frac:+.1%}"]
        for name, r in residuals.items()
        if r is not None
    ]
    print_scores(title, cells)


def print_skipped(skipped: Mapping[str, Mapping[str, int]]) -> None:
    """Of each source; reasons of one kind are one."""
    from knee.trust.validation.csv_cells import by_kind

    print_counts(
        "skipped",
        {f"{name}: {reason}": rows for name, reasons in skipped.items() for reason, rows in by_kind(reasons).items()},
    )


def print_counts(title: str, counts: Mapping[str, int]) -> None:
    """The sentences that most rows have."""
    if not counts:
        return
    print_heading(f"{title}:")
    for sentence, rows in sorted(counts.items(), key=lambda item: -item[1])[:SHOWN]:
        click.echo(f"  - {rows:,} row{'s' if rows > 1 else ''}: {sentence}")
    if len(counts) > SHOWN:
        click.echo(f"  - and {len(counts) - SHOWN:,} more; --json lists all, --rows lists them by row")


LARGE = "messages of 16 MiB and more"


def print_bandwidths(found: BandwidthValidation) -> None:
    """Tables on stdout."""
    large = found.all.large
    if large:
        print_heading(
            f"error of bus bandwidth, {LARGE}: {large.median_frac:.1%} (median), {large.p90_frac:.1%} (p90), largest "
            f"error a factor of {found.all.large_factor:.2f}, {large.points:,} tests"
        )
    print_bandwidth_scores(found)


def print_bandwidth_scores(found: BandwidthValidation) -> None:
    """By source, operation, nodes and message size."""
    scores = {**found.sources, ALL: found.all} if len(found.sources) > 1 else found.sources
    _print_used("rows of bandwidths", "test", scores, {name: s.tests for name, s in scores.items()})
    _print_large("source", scores)
    _print_large("operation", found.operations)
    print_errors(f"error by nodes, {LARGE}", _flat(found.nodes, " on {} nodes"), of="operation", counted="tests")
    print_errors("error by message size", _flat(found.sizes, ", {}"), of="operation", counted="tests")
    print_skipped({name: s.skipped for name, s in found.sources.items()})
    print_counts("assumptions", found.assumptions)


def _print_large(of: str, scores: Mapping[str, BandwidthScore]) -> None:
    cells = [[of, "tests", "median", "p90", "largest factor", "signed median"]]
    for name, s in scores.items():
        if (r := s.large) is not None:
            rates = [f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{s.large_factor:.2f}x", f"{r.bias_frac:+.1%}"]
            cells.append([name, f"{r.points:,}", *rates])
    print_scores(f"error by {of}, {LARGE}", cells)


def _flat(cells: dict[str, dict[str, Residuals]], words: str) -> dict[str, Residuals | None]:
    """The inner names joined to the outer ones by ``words``."""
    flat = {name + words.format(key): r for name, by_key in cells.items() for key, r in by_key.items()}
    return {name.replace(" 1 nodes", " 1 node"): r for name, r in flat.items()}


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
    print_run_scores(found)


def _scores(found: Validation) -> dict[str, Score]:
    return {**found.sources, ALL: found.all} if len(found.sources) > 1 else found.sources


def print_run_scores(found: Validation) -> None:
    """All but the error of throughput: rows, memory, what fits, the choice among plans, and what was assumed."""
    scores = _scores(found)
    _print_used("rows", "run", scores, {name: score.runs for name, score in scores.items()})
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


def _print_used(
    title: str, what: str, scores: Mapping[str, Score] | Mapping[str, BandwidthScore], counts: Mapping[str, int]
) -> None:
    cells = [["source", "rows", "used", "skipped", f"{what}s"]]
    cells += [
        [name, f"{s.rows:,}", f"{s.rows_used:,}", f"{s.rows - s.rows_used:,}", f"{counts[name]:,}"]
        for name, s in scores.items()
    ]
    print_scores(f"{title} (repeated measurements count as one {what})", cells)


def _print_fitting(scores: Mapping[str, Score]) -> None:
    from knee.trust.validation.published_runs import STATUSES

    cells = [["source", *(f"{status}: {word}" for status in STATUSES for word in ("fits", "does not fit"))]]
    cells += [
        [name, *(f"{count:,}" for f in s.fitting.values() for count in (f.fits, f.does_not))]
        for name, s in scores.items()
        if s.runs
    ]
    print_scores("number of runs by measured status, and whether knee predicts that they fit in memory", cells)


def _print_ranking(scores: Mapping[str, Score]) -> None:
    cells = [["source", "groups", "plans", "median", "mean", "largest", "fastest plan chosen", "rank correlation"]]
    for name, score in scores.items():
        if (r := score.ranking) is not None:
            order = "" if r.median_spearman is None else f"{r.median_spearman:.2f}"
            regrets = [f"{frac:.1%}" for frac in (r.median_regret_frac, r.mean_regret_frac, r.worst_regret_frac)]
            cells.append([name, f"{r.groups:,}", f"{r.plans:,}", *regrets, f"{r.best_chosen_frac:.0%}", order])
    print_scores("regret: measured slowdown of the plan that knee ranks first, relative to the fastest plan", cells)


def percent(value: float | None) -> str:
    """A share in percent; empty where it is unknown."""
    return "" if value is None else f"{value:.1%}"


def print_fidelity(found: CarriedFidelity) -> None:
    """Runs by source with what a fit says of runs that it did not see; bandwidths."""
    _print_runs("published runs of dense models", found)
    links = {"all-reduce": found.all_reduce, "all-gather": found.all_gather}
    print_errors(f"error of bus bandwidth on idle links, {LARGE}", links, of="collective", counted="tests")


def _print_runs(what: str, found: CarriedFidelity) -> None:
    print_heading(
        f"{what}: the median error of tokens/s per GPU is {percent(found.unseen_frac)} for unseen sources and "
        f"{found.headline_frac:.1%} with the shipped constants (median over the medians of the sources)"
    )
    errors = [f"{of} {what}" for of in ("unseen", "shipped") for what in ("median", "p90")]
    cells = [["source", "runs", *errors, "signed median", "memory median", "stack", "GPUs"]]
    for s in found.sources:
        shares = [percent(share) for share in (s.unseen_frac, s.unseen_p90_frac, s.median_frac, s.p90_frac)]
        last = [f"{s.bias_frac:+.1%}", percent(s.memory_median_frac), s.stacks, s.gpus]
        cells.append([s.source, f"{s.runs:,}", *shares, *last])
    print_scores("error of tokens/s per GPU, and of memory where it was measured", cells, right=range(1, 8))


def _why_they_differ(found: CarriedFidelity, runs: Validation) -> str:
    every = runs.all.throughput
    count, median = (0, None) if every is None else (every.points, every.median_frac)
    return (
        f"Each source counts once. Over all {count:,} runs, where large sweeps weigh most, the median error is "
        f"{percent(median)} with the shipped constants. Unseen means that the source was left out of every fit behind "
        f"its predictions; 90% of all runs then have an error of at most {percent(found.unseen_p90_frac)} "
        "(`knee validate --unseen`)."
    )


def print_unseen(dense: Validation, experts: Validation) -> None:
    """Dense models, then mixtures of experts."""
    for what, found in (("dense models", dense), ("mixtures of experts", experts)):
        print_heading(f"published runs of {what}, each predicted with constants that were fitted without its source")
        print_runs(found)


def print_own(answer: CarriedValidation) -> None:
    """Errors of the published runs and bandwidths that knee ships, their sources, and the claims of the paper."""
    print_fidelity(answer.fidelity)
    click.echo(_why_they_differ(answer.fidelity, answer.runs.found))
    _print_runs("published runs of mixtures of experts", answer.moe_fidelity)
    click.echo(_why_they_differ(answer.moe_fidelity, answer.moe_runs.found))
    print_run_scores(answer.runs.found)
    print_bandwidth_scores(answer.bandwidths.found)
    print_heading("sources:")
    for s in (*answer.fidelity.sources, *answer.moe_fidelity.sources):
        click.echo(f"  - {s.source}: {s.reference}")
    click.echo(f"claims of arXiv 2411.13055: {answer.tally} (`knee study` lists them)")
