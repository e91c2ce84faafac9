"""What the page of studies says first: the knee, the headline numbers, five findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knee.figures.doubling_chart import Doubling, doublings, doublings_of
from knee.figures.figure import Figure
from knee.report.claim_tables import tested
from knee.report.page import Chart, chart_of
from knee.report.tables import record_table
from knee.specs.defaults import THRESHOLD
from knee.studies.claims import Verdict
from knee.studies.quantities import Row, knee_of
from knee.studies.run_study import Ran

FIRST = ("fig3", "fig10", "fig1", "fig5", "fig7")
"""Studies whose findings come first; others fill up where these were not run."""
FINDINGS = 5
HEADLINES = ("T01", "T06", "T05", "T16")
"""Claims whose numbers are shown large."""
SCALED = ("fig3", "fig1")
"""Studies with a curve that the knee is read off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KneeSummary:
    """The knee of a curve, in words and as bars."""

    gpus: int
    says: str
    chart: Chart


def knee_summary(ran: Sequence[Ran]) -> KneeSummary | None:
    """Of the first study that has a curve with a doubling."""
    curve = _curve(ran)
    found = doublings_of(curve)
    if not found:
        return None
    knee = int(knee_of(curve, "tokens_per_s", "gpus"))
    return KneeSummary(gpus=knee, says=_knee_sentence(curve, knee, found), chart=_doubling_chart(found))


def _curve(ran: Sequence[Ran]) -> list[Row]:
    """Throughput of one plan on more and more GPUs."""
    for name in SCALED:
        for one in ran:
            if one.study.name == name:
                rows = [r for r in one.rows if r["kind"] == "simulated" and r.get("tokens_per_s") is not None]
                return [row for row in rows if row["series"] == rows[0]["series"]] if rows else []
    return []


def _knee_sentence(curve: Sequence[Row], knee: int, found: Sequence[Doubling]) -> str:
    first = curve[0]
    beyond = next((d for d in found if d.from_gpus == knee), None)
    then = "None of these counts is beyond it."
    if beyond is not None:
        then = f"The next, to {beyond.to_gpus:,}, buys {beyond.speedup:.2f}x."
    kinds = sorted({str(row["kind"]) for row in curve})
    return (
        f"The knee of {first['model']} on {first['cluster']} under {first['series']}, "
        f"{first['local_batch']:g} sequences of {first['seq_len']:,} tokens a GPU: up to here a doubling of the GPUs "
        f"buys at least {THRESHOLD:g} times the tokens/s. {then} {' and '.join(kinds).capitalize()}."
    )


def _doubling_chart(found: Sequence[Doubling]) -> Chart:
    rows = tuple(
        {"from_gpus": d.from_gpus, "to_gpus": d.to_gpus, "speedup": d.speedup, "of_ideal_frac": d.speedup / 2}
        for d in found
    )
    figure = Figure(
        id="doublings",
        title="What each doubling buys",
        caption=f"2x is ideal; a doubling that buys less than {THRESHOLD:g}x is orange.",
        spec=doublings(found),
        columns=tuple(rows[0]),
        rows=rows,
    )
    return chart_of(figure, [record_table("What each doubling of the GPUs buys; 2 is ideal", figure.columns, rows)])


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
