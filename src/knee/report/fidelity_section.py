"""How far knee can be trusted: published runs against its predictions, the worst row named."""

from __future__ import annotations

from dataclasses import asdict

from knee.report.html import Markup, join, scrolling, table, tag
from knee.validation.carried_set import CarriedFidelity, SourceFidelity

COLUMNS = ("source", "gpus", "runs", "median_frac", "p90_frac", "size_out_frac", "source_out_frac")
HEADINGS = {
    "source": "source",
    "stacks": "software",
    "gpus": "GPUs",
    "runs": "runs",
    "median_frac": "median error (%)",
    "p90_frac": "90th percentile (%)",
    "bias_frac": "bias (%)",
    "size_out_frac": "model size left out (%)",
    "source_out_frac": "source left out (%)",
    "memory_median_frac": "memory, median (%)",
}
MEANING = (
    "Errors are of tokens/s per GPU, predicted over measured. Left out: the median error where no run of that model "
    "size, or none of that source, was in the fit."
)


def worst_of(found: CarriedFidelity) -> SourceFidelity:
    """The source with the largest median error."""
    return max(found.sources, key=lambda source: source.median_frac)


def fidelity_sentence(found: CarriedFidelity) -> str:
    """The headline, and the worst row."""
    out = [f"{x:.1%}" if x is not None else "unknown" for x in (found.size_out_frac, found.source_out_frac)]
    worst = worst_of(found)
    return (
        f"{sum(s.runs for s in found.sources):,} published runs of {len(found.sources)} sources, predicted: tokens/s "
        f"per GPU is off by {found.headline_frac:.1%} (median over sources), by {out[0]} where the model size was left "
        f"out of the fit and by {out[1]} where the source was. The worst source is {worst.source}, off by "
        f"{worst.median_frac:.1%} in the median and {worst.p90_frac:.1%} in the worst tenth."
    )


def fidelity_table(found: CarriedFidelity, columns: tuple[str, ...] = COLUMNS) -> Markup:
    """A row for each source; the worst is marked."""
    worst = worst_of(found)
    head = join(
        tag("th", HEADINGS[name], scope="col", class_=None if name in ("source", "gpus", "stacks") else "number")
        for name in columns
    )
    body = join(
        tag(
            "tr",
            *(
                _cell(name, getattr(source, name), first=i == 0, worst=source is worst)
                for i, name in enumerate(columns)
            ),
            raw=True,
            class_="marked" if source is worst else None,
        )
        for source in found.sources
    )
    return scrolling("Published runs against predictions; the worst source is marked", head, body)


def _cell(name: str, value: object, *, first: bool, worst: bool) -> Markup:
    if first:
        return tag("th", f"{value}{' (worst)' if worst else ''}", scope="row")
    if value is None:
        words = "not read" if name.startswith("memory") else "unknown"
        return tag("td", tag("span", words, class_="unknown"), raw=True, class_="number")
    if isinstance(value, (int, float)):
        words = f"{value:,}" if isinstance(value, int) else f"{100 * value:.1f}"
        return tag("td", tag("data", words, value=repr(value)), raw=True, class_="number")
    return tag("td", str(value))


def fidelity_section(found: CarriedFidelity) -> Markup:
    """All of it: runs, bandwidths, and where they were published."""
    links = [
        {"collective": name, **asdict(r)}
        for name, r in (("all-reduce", found.all_reduce), ("all-gather", found.all_gather))
        if r is not None
    ]
    references = join(
        tag("tr", tag("th", s.source, scope="row"), tag("td", s.stacks), tag("td", s.reference), raw=True)
        for s in found.sources
    )
    heads = join(tag("th", name, scope="col") for name in ("source", "software", "published in"))
    return tag(
        "section",
        tag("h2", "How far it can be trusted", id="fidelity-title"),
        tag("p", fidelity_sentence(found)),
        tag("p", MEANING, class_="lead"),
        fidelity_table(found, tuple(HEADINGS)),
        *([table("Bus bandwidth on idle links, messages of 16 MiB and up", tuple(links[0]), links)] if links else []),
        scrolling("Where the runs were published", heads, references),
        tag(
            "p",
            f"The label of each answer comes from {found.gathered_runs:,} published runs, each predicted by a fit "
            "that had not seen it.",
            class_="lead",
        ),
        raw=True,
        id="fidelity",
        aria_labelledby="fidelity-title",
    )
