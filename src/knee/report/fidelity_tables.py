"""How far knee can be trusted: published runs against its predictions, the worst row named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

from knee.figures.error_chart import error_chart
from knee.figures.figure import Figure
from knee.figures.vega import Spec
from knee.report.page import Chart, chart_of
from knee.report.tables import Cell, Table, kind_table, record_table
from knee.trust.coverage import GpuCountError, errors_by_gpus
from knee.validation.carried_set import CarriedFidelity, SourceFidelity

COLUMNS = {
    "source": ("source", "words"),
    "stacks": ("software", "words"),
    "gpus": ("GPUs", "words"),
    "runs": ("runs", "count"),
    "unseen_frac": ("unseen: median error", "share"),
    "unseen_p90_frac": ("unseen: 90th percentile", "share"),
    "median_frac": ("as shipped: median", "share"),
    "p90_frac": ("as shipped: 90th percentile", "share"),
    "bias_frac": ("as shipped: bias", "share"),
    "memory_median_frac": ("memory, median", "share"),
}
"""Heading and kind of each."""
IN_SUMMARY = ("source", "gpus", "runs", "unseen_frac", "unseen_p90_frac", "median_frac", "p90_frac")
OF_EXPERTS = "Published runs of mixtures of experts"
NOT_READ = Cell(text="not read", style="number", known=False)


def fidelity_sentence(found: CarriedFidelity) -> str:
    """The headline, and the worst row."""
    worst = found.sources[_worst(found)]
    return (
        f"{sum(s.runs for s in found.sources):,} published runs of {len(found.sources)} sources, each source predicted "
        f"as if it had never been seen: tokens/s per GPU is off by {_share(found.unseen_frac)} (median over sources), "
        f"and by less than {_share(found.unseen_p90_frac)} in nine of ten runs. As shipped, all in the fit, "
        f"it is off by {found.headline_frac:.1%}. The worst source is {worst.source}, off by "
        f"{_share(worst.unseen_frac)} in the median and {_share(worst.unseen_p90_frac)} in the worst tenth."
    )


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"


def _worst(found: CarriedFidelity) -> int:
    """The source with the largest median error."""
    return max(range(len(found.sources)), key=lambda i: found.sources[i].unseen_frac or 0.0)


def fidelity_table(
    found: CarriedFidelity, names: Sequence[str] = tuple(COLUMNS), what: str = "Published runs"
) -> Table:
    """A row for each source; the worst is marked."""
    worst = _worst(found)
    return kind_table(
        f"{what} against predictions; the worst source is marked",
        dict(COLUMNS[name] for name in names),
        [[_value(source, name, i == worst) for name in names] for i, source in enumerate(found.sources)],
        marked=worst,
    )


def _value(source: SourceFidelity, name: str, worst: bool) -> object:
    value = getattr(source, name)
    if name == "source" and worst:
        return f"{value} (worst)"
    return NOT_READ if name == "memory_median_frac" and value is None else value


def fidelity_tables(found: CarriedFidelity, experts: CarriedFidelity) -> list[Table]:
    """Runs, bandwidths, and where they were published."""
    links = [
        {"collective": name, **asdict(r)}
        for name, r in (("all-reduce", found.all_reduce), ("all-gather", found.all_gather))
        if r is not None
    ]
    tables = [fidelity_table(found), fidelity_table(experts, what=OF_EXPERTS)]
    if links:
        tables.append(record_table("Bus bandwidth on idle links, messages of 16 MiB and up", tuple(links[0]), links))
    kinds = dict.fromkeys(("source", "software", "published in", "form chosen by looking at it"), "words")
    references = [(s.source, s.stacks, s.reference, s.form_from or "") for one in (found, experts) for s in one.sources]
    return [*tables, kind_table("Where the runs were published", kinds, references)]


def scale_chart(draw: Callable[[Spec], str]) -> Chart:
    """The unseen error against the number of GPUs, by source, with the promised band beside it."""
    points = errors_by_gpus()
    columns = tuple(f.name for f in fields(GpuCountError))
    figure = Figure(
        id="error-by-gpus",
        title="Error against the number of GPUs",
        caption="Each source is predicted as if it had never been seen; a point is the middle one of its runs on that "
        "many GPUs, drawn at the edge where it is beyond. The area is the band that nine of ten runs are promised to "
        "lie in, from the errors of the other sources.",
        spec=error_chart(points),
        columns=columns,
        rows=tuple(asdict(point) for point in points),
    )
    return chart_of(figure, None, draw)
