"""``knee validate`` without a file: knee's own validation set, which the study shows too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from knee.cli.render.table import print_heading
from knee.cli.render.validate import print_table

if TYPE_CHECKING:
    from knee.results.validate_result import CarriedValidation
    from knee.validation.carried_set import CarriedFidelity
    from knee.validation.run_errors import Validation


def percent(value: float | None) -> str:
    """Or nothing."""
    return "" if value is None else f"{value:.1%}"


def print_fidelity(found: CarriedFidelity) -> None:
    """Runs by source with what a fit says of runs that it did not see; bandwidths."""
    _print_runs("published runs of dense models", found)
    cells = [["collective", "tests", "median", "p90", "signed median"]]
    cells += [
        [name, f"{r.points:,}", percent(r.median_frac), percent(r.p90_frac), f"{r.bias_frac:+.1%}"]
        for name, r in (("all-reduce", found.all_reduce), ("all-gather", found.all_gather))
        if r is not None
    ]
    print_table("error of bus bandwidth on idle links, messages of 16 MiB and more", cells)


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
    print_table("error of tokens/s per GPU, and of memory where it was measured", cells, right=range(1, 8))


def _why_they_differ(found: CarriedFidelity, runs: Validation) -> str:
    every = runs.all.throughput
    count, median = (0, None) if every is None else (every.points, every.median_frac)
    return (
        f"Each source counts once. Over all {count:,} runs, where large sweeps weigh most, the median error is "
        f"{percent(median)} with the shipped constants. Unseen means that the source was left out of every fit behind "
        f"its predictions; 90% of all runs then have an error of at most {percent(found.unseen_p90_frac)} "
        "(`knee validate --unseen`)."
    )


def print_sources(*found: CarriedFidelity) -> None:
    """Where the runs were published."""
    print_heading("sources:")
    for s in (source for one in found for source in one.sources):
        click.echo(f"  - {s.source}: {s.reference}")


def print_unseen(dense: Validation, experts: Validation) -> None:
    """Dense models, then mixtures of experts."""
    from knee.cli.render.validation.runs import print_runs

    for what, found in (("dense models", dense), ("mixtures of experts", experts)):
        print_heading(f"published runs of {what}, each predicted with constants that were fitted without its source")
        print_runs(found)


def print_own(answer: CarriedValidation) -> None:
    """All of it."""
    from knee.cli.render.validation.bandwidths import print_scores as print_links
    from knee.cli.render.validation.runs import print_scores

    print_fidelity(answer.fidelity)
    click.echo(_why_they_differ(answer.fidelity, answer.runs.found))
    _print_runs("published runs of mixtures of experts", answer.moe_fidelity)
    click.echo(_why_they_differ(answer.moe_fidelity, answer.moe_runs.found))
    print_scores(answer.runs.found)
    print_links(answer.bandwidths.found)
    print_sources(answer.fidelity, answer.moe_fidelity)
    click.echo(f"claims of arXiv 2411.13055: {answer.tally} (`knee study` lists them)")
