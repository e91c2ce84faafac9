"""How far knee can be trusted: published runs against its predictions, the worst row named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from knee.report.tables import Cell, Table, kind_table, record_table
from knee.validation.carried_set import CarriedFidelity, SourceFidelity

COLUMNS = {
    "source": ("source", "words"),
    "stacks": ("software", "words"),
    "gpus": ("GPUs", "words"),
    "runs": ("runs", "count"),
    "median_frac": ("median error", "share"),
    "p90_frac": ("90th percentile", "share"),
    "bias_frac": ("bias", "share"),
    "size_out_frac": ("model size left out", "share"),
    "source_out_frac": ("source left out", "share"),
    "memory_median_frac": ("memory, median", "share"),
}
"""Heading and kind of each."""
IN_SUMMARY = ("source", "gpus", "runs", "median_frac", "p90_frac", "size_out_frac", "source_out_frac")
NOT_READ = Cell(text="not read", style="number", known=False)


def fidelity_sentence(found: CarriedFidelity) -> str:
    """The headline, and the worst row."""
    out = [f"{x:.1%}" if x is not None else "unknown" for x in (found.size_out_frac, found.source_out_frac)]
    worst = found.sources[_worst(found)]
    return (
        f"{sum(s.runs for s in found.sources):,} published runs of {len(found.sources)} sources, predicted: tokens/s "
        f"per GPU is off by {found.headline_frac:.1%} (median over sources), by {out[0]} where the model size was left "
        f"out of the fit and by {out[1]} where the source was. The worst source is {worst.source}, off by "
        f"{worst.median_frac:.1%} in the median and {worst.p90_frac:.1%} in the worst tenth."
    )


def _worst(found: CarriedFidelity) -> int:
    """The source with the largest median error."""
    return max(range(len(found.sources)), key=lambda i: found.sources[i].median_frac)


def fidelity_table(found: CarriedFidelity, names: Sequence[str] = tuple(COLUMNS)) -> Table:
    """A row for each source; the worst is marked."""
    worst = _worst(found)
    return kind_table(
        "Published runs against predictions; the worst source is marked",
        dict(COLUMNS[name] for name in names),
        [[_value(source, name, i == worst) for name in names] for i, source in enumerate(found.sources)],
        marked=worst,
    )


def _value(source: SourceFidelity, name: str, worst: bool) -> object:
    value = getattr(source, name)
    if name == "source" and worst:
        return f"{value} (worst)"
    return NOT_READ if name == "memory_median_frac" and value is None else value


def fidelity_tables(found: CarriedFidelity) -> list[Table]:
    """Runs, bandwidths, and where they were published."""
    links = [
        {"collective": name, **asdict(r)}
        for name, r in (("all-reduce", found.all_reduce), ("all-gather", found.all_gather))
        if r is not None
    ]
    tables = [fidelity_table(found)]
    if links:
        tables.append(record_table("Bus bandwidth on idle links, messages of 16 MiB and up", tuple(links[0]), links))
    kinds = dict.fromkeys(("source", "software", "published in"), "words")
    references = [(s.source, s.stacks, s.reference) for s in found.sources]
    return [*tables, kind_table("Where the runs were published", kinds, references)]
