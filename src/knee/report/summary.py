"""What a page says first: the knee, five findings, how many claims hold, how far all of it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from knee.figures.doubling_chart import Doubling, doublings, doublings_of
from knee.figures.svg import squeezed
from knee.figures.vega import to_svg
from knee.report.claims_section import anchor, tally_table
from knee.report.fidelity_section import MEANING, fidelity_sentence, fidelity_table
from knee.report.html import Markup, join, table, tag, text
from knee.report.page import Chart, chart_of
from knee.search.knee import THRESHOLD
from knee.studies.claims import Verdict
from knee.studies.quantities import Row, knee_of
from knee.studies.run_study import Ran
from knee.validation.carried_set import CarriedFidelity

FIRST = ("fig3", "fig10", "fig1", "fig5", "fig7")
"""Studies whose findings come first; others fill up where these were not run."""
FINDINGS = 5
HEADLINES = ("T01", "T06", "T05", "T16")
"""Claims whose numbers are shown large."""
SCALED = ("fig3", "fig1")
"""Studies with a curve that the knee is read off."""


def summary(ran: Sequence[Ran], fidelity: CarriedFidelity) -> Markup:
    """The section."""
    verdicts = [v for one in ran for v in one.verdicts]
    curve = _curve(ran)
    found = doublings_of(curve)
    parts = [tag("h2", "What knee found", id="summary-title")]
    if found:
        parts.append(_hero(curve, found, verdicts))
    else:
        parts.append(_keys(verdicts))
    parts.append(_findings(ran))
    if verdicts:
        parts += [tag("h3", "Claims of the paper"), _failed_line(verdicts), tally_table(verdicts)]
    parts += [
        tag("h3", "How far it can be trusted"),
        tag("p", fidelity_sentence(fidelity)),
        fidelity_table(fidelity),
        tag("p", MEANING, class_="small"),
    ]
    return tag("section", *parts, raw=True, id="summary", aria_labelledby="summary-title")


def _curve(ran: Sequence[Ran]) -> list[Row]:
    """Throughput of one plan on more and more GPUs."""
    for name in SCALED:
        for one in ran:
            if one.study.name == name:
                rows = [r for r in one.rows if r["kind"] == "simulated" and r.get("tokens_per_s") is not None]
                return [row for row in rows if row["series"] == rows[0]["series"]] if rows else []
    return []


def _hero(curve: Sequence[Row], found: Sequence[Doubling], verdicts: Sequence[Verdict]) -> Markup:
    """The knee, in words and as bars."""
    knee = int(knee_of(curve, "tokens_per_s", "gpus"))
    first = curve[0]
    beyond = next((d for d in found if d.from_gpus == knee), None)
    then = "None of these counts is beyond it."
    if beyond is not None:
        then = f"The next, to {beyond.to_gpus:,}, buys {beyond.speedup:.2f}x."
    kinds = sorted({str(row["kind"]) for row in curve})
    says = (
        f"The knee of {first['model']} on {first['cluster']} under {first['series']}, "
        f"{first['local_batch']:g} sequences of {first['seq_len']:,} tokens a GPU: up to here a doubling of the GPUs "
        f"buys at least {THRESHOLD:g} times the tokens/s. {then} {' and '.join(kinds).capitalize()}."
    )
    rows = [
        {"from_gpus": d.from_gpus, "to_gpus": d.to_gpus, "speedup": d.speedup, "of_ideal_frac": d.speedup / 2}
        for d in found
    ]
    chart = Chart(
        id="doublings",
        title="What each doubling buys",
        caption=f"2x is ideal; a doubling that buys less than {THRESHOLD:g}x is orange.",
        svg=squeezed(to_svg(doublings(found))),
        tables=(table("What each doubling of the GPUs buys; 2 is ideal", tuple(rows[0]), rows),),
    )
    large = tag("p", tag("strong", f"{knee:,} GPUs"), raw=True, class_="knee")
    words = tag("div", large, tag("p", says), _keys(verdicts), raw=True)
    return tag("div", words, chart_of(chart), raw=True, class_="hero")


def _keys(verdicts: Sequence[Verdict]) -> Markup:
    """Numbers of the claims that everyone asks for, beside the paper's."""
    known = {v.id: v for v in verdicts}
    items = [
        tag(
            "li",
            tag("strong", known[id].found),
            tag("span", known[id].says),
            tag("a", f"paper: {known[id].paper}", href=f"#{anchor(id)}", class_="paper"),
            raw=True,
        )
        for id in HEADLINES
        if id in known and known[id].verdict != "not testable"
    ]
    return tag("ul", *items, raw=True, class_="keys") if items else Markup("")


def _findings(ran: Sequence[Ran]) -> Markup:
    known = {one.study.name: one for one in ran}
    names = [name for name in FIRST if name in known]
    names += [name for name in known if name not in names][: FINDINGS - len(names)]
    items = join(
        tag(
            "li",
            text(f"{known[name].finding} "),
            tag("a", known[name].study.place or known[name].study.title, href=f"#{name}"),
            raw=True,
        )
        for name in names
    )
    return tag("ol", items, raw=True, class_="found")


def _failed_line(verdicts: Sequence[Verdict]) -> Markup:
    failed = [v for v in verdicts if v.failed]
    free = [v for v in verdicts if not v.fitted and v.verdict != "not testable"]
    held = sum(v.verdict == "reproduced" for v in free)
    tested = [v for v in verdicts if v.verdict != "not testable"]
    if not tested:
        return tag("p", "No claim can be tested with these runs.")
    share = (len(tested) - len(failed)) / len(tested)
    said = (
        f"{len(tested) - len(failed)} of {len(tested)} testable claims are reproduced ({share:.0%}), and {held} of "
        f"the {len(free)} that nothing was fitted on."
    )
    parts = [text(said)]
    for words, some in (
        ("nothing was fitted on them", [v for v in failed if not v.fitted]),
        ("fitted on, or their test was changed", [v for v in failed if v.fitted]),
    ):
        if some:
            links = [tag("a", v.id, href=f"#{anchor(v.id)}") for v in some]
            parts += [text(f" Not reproduced ({words}): "), Markup(", ".join(links)), text(".")]
    return tag("p", *parts, raw=True)
