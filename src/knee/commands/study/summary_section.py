"""Sections that open the study page: headline numbers, claims and what they are worth, errors on published runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from knee.commands.scale.chart import GPU_AXIS
from knee.commands.study.claims import ROLES, Outcome, Role, Verdict
from knee.commands.study.quantities import Row, knee_of
from knee.commands.study.run_study import Ran
from knee.show.figures.axes import AXIS_WIDTH, WIDTH, with_config
from knee.show.figures.palette import BAR, GRID, IDEAL, INK, MUTED, PARTS
from knee.show.figures.vega import Figure, Spec
from knee.show.page.page import Chart, chart_of
from knee.show.page.tables import Cell, Table, kind_table, record_table
from knee.specs.catalog import ROOT, read_toml
from knee.specs.defaults import THRESHOLD
from knee.trust.validation.bundled_runs import CarriedFidelity, GpuCountError, SourceFidelity, errors_by_gpus

# What each doubling of the GPUs buys: bars against the ideal and against what still pays.


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubling:
    """From one count of GPUs to twice as many."""

    from_gpus: int
    to_gpus: int
    speedup: float
    """Tokens/s over those before; 2 is ideal."""


def doublings_of(rows: Sequence[Row]) -> list[Doubling]:
    """Of one curve; counts that are not twice the last are passed over."""
    ordered = sorted(rows, key=lambda row: int(row["gpus"]))
    return [
        Doubling(from_gpus=a["gpus"], to_gpus=b["gpus"], speedup=b["tokens_per_s"] / a["tokens_per_s"])
        for a, b in pairwise(ordered)
        if b["gpus"] == 2 * a["gpus"]
    ]


def doublings(found: Sequence[Doubling]) -> Spec:
    """A bar for each; those that buy less than what pays are orange."""
    values = [
        {
            "x": f"{d.to_gpus:,}",
            "y": d.speedup,
            "words": f"{d.speedup:.2f}x",
            "c": "pays" if d.speedup >= THRESHOLD else "not",
            "say": f"from {d.from_gpus:,} to {d.to_gpus:,} GPUs: {d.speedup:.2f}x the tokens/s",
        }
        for d in found
    ]
    x = {
        "field": "x",
        "type": "ordinal",
        "title": "doubling to so many GPUs",
        "sort": None,
        "axis": {"labelAngle": 0, "labelOverlap": False, "ticks": False, "labelFontSize": 11},
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "title": "times the tokens/s",
        "scale": {"domain": [1, 2.1], "clamp": True},
        "axis": {"values": [1, 1.25, 1.5, 1.75, 2], "format": ".2f", "minExtent": AXIS_WIDTH},
    }
    color = {
        "field": "c",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": ["pays", "not"], "range": [BAR.light, PARTS["exposed"].light]},
    }
    lines = [{"y": 2.0, "words": "ideal"}, {"y": THRESHOLD, "words": "pays"}]
    dashed = {"type": "rule", "aria": False, "strokeDash": [5, 3], "color": IDEAL.light}
    rule = {"data": {"values": lines}, "mark": dashed, "encoding": {"y": y}}
    named = {
        "data": {"values": lines},
        "mark": {"type": "text", "aria": False, "align": "left", "x": WIDTH + 5, "fontSize": 11, "color": MUTED.light},
        "encoding": {"y": y, "text": {"field": "words"}},
    }
    bar = {
        "mark": {"type": "bar"},
        "encoding": {"x": x, "y": y, "y2": {"datum": 1}, "color": color, "description": {"field": "say"}},
    }
    # in a row over the line of the ideal, because a number on its bar would lie under one line or the other
    above = {"type": "text", "aria": False, "fontSize": 10.5, "baseline": "bottom", "y": 12, "color": INK.light}
    number = {"mark": above, "encoding": {"x": x, "text": {"field": "words"}}}
    return with_config({"width": WIDTH, "height": 170, "data": {"values": values}, "layer": [rule, bar, number, named]})


# Errors on published runs against the number of GPUs, beside the band that was promised.

ERRORS_WIDTH, HEIGHT = 340, 280
SHOWN_FRAC = 0.6
"""Errors beyond this are drawn at the edge: the chart is for the trend."""

MANY_GPUS, CROWD_FRAC = 2048, 0.14
TICKS = (2, 8, 32, 128, 512, 2048, 8192)


def error_chart(points: Sequence[GpuCountError]) -> Spec:
    """A line and points for each source, those apart labelled at their largest count; the promised bands behind."""
    edge = SHOWN_FRAC
    values = [
        {
            "source": p.source,
            "n_gpus": p.n_gpus,
            "shown_frac": min(max(p.error_frac, -edge), edge),
            "say": f"{p.source}, {p.n_gpus:,} GPUs: {p.error_frac:+.1%} ({p.low_frac:+.0%} to {p.high_frac:+.0%})",
        }
        for p in points
    ]
    last = {p.source: p for p in sorted(points, key=lambda p: p.n_gpus)}
    # labels where there is room: the crowd near zero is in the table
    named = {p.source: p.n_gpus for p in last.values() if p.n_gpus >= MANY_GPUS or abs(p.error_frac) > CROWD_FRAC}
    labels = [value for value in values if value["n_gpus"] == named.get(str(value["source"]))]
    counts = sorted({p.n_gpus for p in points})
    band = [
        {
            "n_gpus": n,
            "low_frac": max(median(p.low_frac for p in points if p.n_gpus == n), -edge),
            "high_frac": min(median(p.high_frac for p in points if p.n_gpus == n), edge),
        }
        for n in counts
    ]
    scale, axis = {"type": "log", "base": 2, "nice": False}, GPU_AXIS | {"values": list(TICKS)}
    x: Spec = {"field": "n_gpus", "type": "quantitative", "scale": scale, "axis": axis}
    y_axis = {"title": "predicted over measured, less one", "format": "+.0%"}
    y = {"field": "shown_frac", "type": "quantitative", "scale": {"domain": [-edge, edge]}, "axis": y_axis}
    ends = {"y": y | {"field": "low_frac"}, "y2": {"field": "high_frac"}}
    dots = {"type": "point", "filled": True, "color": INK.light, "size": 26}
    layers: list[Spec] = [
        {"data": {"values": band}, "mark": {"type": "area", "color": GRID.light}, "encoding": {"x": x, **ends}},
        {"data": {"values": [{}]}, "mark": {"type": "rule", "color": MUTED.light}, "encoding": {"y": {"datum": 0}}},
        {
            "data": {"values": values},
            "encoding": {"x": x, "y": y, "detail": {"field": "source"}},
            "layer": [
                {"mark": {"type": "line", "color": MUTED.light, "strokeWidth": 1}},
                {"mark": dots, "encoding": {"description": {"field": "say"}}},
            ],
        },
        *(_labels(labels, x, y, many=many, below=below) for many in (False, True) for below in (False, True)),
    ]
    return with_config({"width": ERRORS_WIDTH, "height": HEIGHT, "layer": layers})


def _labels(labels: Sequence[Spec], x: Spec, y: Spec, *, many: bool, below: bool) -> Spec:
    """Names of sources at their last point: inside the chart, and on the side of the error."""
    some = [one for one in labels if (one["n_gpus"] >= MANY_GPUS // 4) is many and (one["shown_frac"] < 0) is below]
    mark = {"type": "text", "align": "right" if many else "left", "dx": 0 if many else 6, "fontSize": 11}
    mark |= {"dy": 12 if below else -9, "color": INK.light}
    return {"data": {"values": some}, "mark": mark, "encoding": {"x": x, "y": y, "text": {"field": "source"}}}


# What each claim is worth, found by tools/claim_evidence.py: how often it holds under random profiles, and which
# assumptions change its verdict.

CANNOT_FAIL_FRAC = 0.99
"""A claim that holds in this share of the draws cannot fail, and is no evidence."""

FILE = ROOT / "claims" / "evidence.toml"
MADE_BY = "python tools/claim_evidence.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """What an alternative changes of one study's verdicts."""

    study: str
    assumed: str
    instead: str
    holds: tuple[str, ...] = ()
    """Claims that would hold, and do not now."""
    fails: tuple[str, ...] = ()
    """Claims that hold now, and would not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBaseline:
    """Independent claims that a profile drawn at random reproduces."""

    draws: int
    seed: int
    independent: int
    """Claims that are counted: independent ones that can fail."""
    reproduced_mean: float
    reproduced_median: float
    reproduced_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvidence:
    """What is carried."""

    baseline: RandomBaseline
    held_frac: Mapping[str, float]
    """Claim -> share of random profiles under which it holds, of those that depend on a profile."""
    flip: tuple[Flip, ...]

    @property
    def command(self) -> str:
        return f"{MADE_BY} --draws {self.baseline.draws} --seed {self.baseline.seed}"


@cache
def carried_evidence() -> ClaimEvidence:
    """The file that knee carries."""
    return TypeAdapter(ClaimEvidence).validate_python(read_toml(FILE))


# Claims on the page: how many came out how, and the words beside them.

MARKS: dict[Outcome, str] = {"reproduced": "✓", "off": "≈", "contradicted": "✗", "not testable": "–"}
"""Beside the word, so that neither colour nor a sign alone says it."""


def anchor(claim: str) -> str:
    """Of a claim in the table of all."""
    return "claim-" + re.sub(r"[^A-Za-z0-9]+", "-", claim).lower()


def tally_table(verdicts: Sequence[Verdict]) -> Table:
    """Outcomes of the independent claims, which are the evidence, then of the others, and of all."""
    groups = {role: [v for v in verdicts if v.role == role] for role in ROLES}
    rows = [
        (name, *(sum(v.verdict == one for v in some) for one in MARKS), len(some))
        for name, some in (*groups.items(), ("all", verdicts))
    ]
    kinds = {"role": "words"} | dict.fromkeys((*MARKS, "in all"), "count")
    return kind_table("Claims of the paper by role, and what came of them", kinds, rows, marked=0)


def tested(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Claims that these runs can say something of."""
    return [v for v in verdicts if v.verdict != "not testable"]


def of_role(verdicts: Sequence[Verdict], role: Role) -> list[Verdict]:
    """Claims of a role that these runs can say something of."""
    return [v for v in tested(verdicts) if v.role == role]


def claims_sentence(verdicts: Sequence[Verdict]) -> str:
    """How many of the independent claims hold; how far numbers are off; how many of the others hold."""
    free, others = of_role(verdicts, "independent"), [v for v in tested(verdicts) if v.role != "independent"]
    if not free and not others:
        return "No claim can be tested with these runs."
    held = sum(not v.failed for v in free)
    parts = [f"{held} of {len(free)} independent claims are reproduced ({held / len(free):.0%})."] if free else []
    misses = [v.miss_frac for v in free if v.miss_frac is not None]
    if misses:
        stated = sum(not v.failed for v in free if v.miss_frac is not None)
        parts.append(
            f"Of these, {len(misses)} are numbers, which must be met to the last digit that the paper prints: "
            f"{stated or 'none'} of them {'is' if stated < 2 else 'are'}, and they are off by {median(misses):.1%} in "
            f"the median and by {max(misses):.0%} at most."
        )
    if others:
        kept = sum(not v.failed for v in others)
        parts.append(
            f"Of the {len(others)} others, which follow from another claim, restate an input, or were fitted on, "
            f"{kept} are reproduced."
        )
    return " ".join(parts)


# What claims are worth, on the page: the baseline of random profiles, and what hangs on assumptions.


def baseline_sentence(verdicts: Sequence[Verdict]) -> str:
    """How many independent claims a random profile reproduces, beside the one at hand."""
    found = carried_evidence()
    base = found.baseline
    mine = [v for v in of_role(verdicts, "independent") if v.id in found.held_frac]
    if len(mine) < base.independent:  # not the whole paper
        return ""
    held = sum(not v.failed for v in mine)
    return (
        f"Baseline: of the {base.independent} independent claims that depend on the profile, {base.draws} profiles "
        f"drawn at random reproduce {base.reproduced_mean:.1f} on average and {base.reproduced_most} at most; this one "
        f"reproduces {held}."
    )


def chance(claim: str) -> str:
    """In what share of random profiles a claim holds."""
    share = carried_evidence().held_frac.get(claim)
    return "" if share is None else f"{share:.0%}"


def chance_words() -> str:
    """What the column says."""
    found = carried_evidence()
    return (
        f"By chance: the share of {found.baseline.draws} profiles, drawn at random from the whole range of every "
        f"parameter, under which the claim holds; empty where no profile enters. What holds in {CANNOT_FAIL_FRAC:.0%} "
        f"of them cannot fail and is not called independent. To repeat it: {found.command}."
    )


def flip_table(study: str) -> Table | None:
    """Every assumption of a study that was tried otherwise, and the verdicts that flip."""
    some = [flip for flip in carried_evidence().flip if flip.study == study]
    rows = [(f.assumed, f.instead, ", ".join(f.holds) or "none", ", ".join(f.fails) or "none") for f in some]
    kinds = dict.fromkeys(("assumed", "instead", "would hold", "would fail"), "words")
    return kind_table("What was assumed, and which verdicts another assumption flips", kinds, rows) if rows else None


# What the page of studies says first: the knee, the headline numbers, five findings.

FIRST = ("fig3", "fig10", "fig1", "fig5", "fig7")
"""Studies whose findings come first; others fill up where these were not run."""
FINDINGS = 5
HEADLINES = ("T01", "T06", "T05", "T16")
"""Claims whose numbers are shown large."""
SCALED = ("fig3", "fig1")
"""Studies with a curve that the knee is read off."""


def knee_summary(ran: Sequence[Ran]) -> dict[str, Any] | None:
    """The knee of the first study that has a curve with a doubling: its GPUs, what it says, and a chart."""
    named = {one.study.name: one.rows for one in ran}
    every = next((named[name] for name in SCALED if name in named), ())
    rows = [row for row in every if row["kind"] == "simulated" and row.get("tokens_per_s") is not None]
    curve = [row for row in rows if row["series"] == rows[0]["series"]]
    found = doublings_of(curve)
    if not found:
        return None
    first, knee = curve[0], int(knee_of(curve, "tokens_per_s", "gpus"))
    beyond = next((d for d in found if d.from_gpus == knee), None)
    then = "None of these counts is beyond it."
    if beyond is not None:
        then = f"The next, to {beyond.to_gpus:,}, buys {beyond.speedup:.2f}x."
    says = (
        f"The knee of {first['model']} on {first['cluster']} under {first['series']}, "
        f"{first['local_batch']:g} sequences of {first['seq_len']:,} tokens a GPU: up to here a doubling of the GPUs "
        f"buys at least {THRESHOLD:g} times the tokens/s. {then} Simulated."
    )
    values = tuple(asdict(d) | {"of_ideal_frac": d.speedup / 2} for d in found)
    figure = Figure(
        id="doublings",
        title="What each doubling buys",
        caption=f"2x is ideal; a doubling that buys less than {THRESHOLD:g}x is orange.",
        spec=doublings(found),
        rows=values,
    )
    chart = chart_of(figure, [record_table("What each doubling of the GPUs buys; 2 is ideal", values)])
    return {"gpus": knee, "says": says, "chart": chart}


def headlines(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Claims whose numbers everyone asks for, shown beside the paper's."""
    known = {v.id: v for v in tested(verdicts)}
    return [known[id] for id in HEADLINES if id in known]


def findings(ran: Sequence[Ran]) -> list[Ran]:
    """Studies whose findings stand in the summary."""
    known = {one.study.name: one for one in ran}
    names = [name for name in FIRST if name in known]
    names += [name for name in known if name not in names][: FINDINGS - len(names)]
    return [known[name] for name in names]


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
        tables.append(record_table("Bus bandwidth on idle links, messages of 16 MiB and up", links))
    kinds = dict.fromkeys(("source", "software", "published in", "form chosen by looking at it"), "words")
    references = [(s.source, s.stacks, s.reference, s.form_from or "") for one in (found, experts) for s in one.sources]
    return [*tables, kind_table("Where the runs were published", kinds, references)]


def scale_chart(draw: Callable[[Spec], str]) -> Chart:
    """The unseen error against the number of GPUs, by source, with the promised band beside it."""
    points = errors_by_gpus()
    figure = Figure(
        id="error-by-gpus",
        title="Error against the number of GPUs",
        caption="Each source is predicted as if it had never been seen; a point is the middle one of its runs on that "
        "many GPUs, drawn at the edge where it is beyond. The area is the band that nine of ten runs are promised to "
        "lie in, from the errors of the other sources.",
        spec=error_chart(points),
        rows=tuple(asdict(point) for point in points),
    )
    return chart_of(figure, None, draw)
