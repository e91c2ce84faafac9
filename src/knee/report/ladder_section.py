"""What followed the paper: its trend beside MLPerf's ladders, published points and predictions in one chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from knee.evidence.ladders import EqualLoad, Rung, equal_loads, paper_rungs, published_rungs
from knee.figures.figure import Figure
from knee.figures.lines import ChartPoint, lines
from knee.figures.vega import Spec
from knee.report.page import Section, chart_of
from knee.report.tables import Table, kind_table, record_table
from knee.studies.run_study import Ran

STUDY = "fig3"
"""Whose runs are the paper's trend."""


def ladder_section(ran: Sequence[Ran], draw: Callable[[Spec], str]) -> Section | None:
    """Of a page that has the paper's trend."""
    trend = next((one for one in ran if one.study.name == STUDY), None)
    paper = paper_rungs([row for row in trend.rows if row["kind"] == "simulated"]) if trend else []
    if not paper:
        return None
    published = published_rungs()
    rungs = [*paper, *published]
    rows = [asdict(rung) for rung in rungs]
    figure = Figure(
        id="ladders",
        title="Tokens per second per GPU, over the smallest count of each ladder",
        caption="Lines are knee's, of MLPerf by a profile that saw nothing of that round; diamonds were "
        "published: by the paper (Llama-2-7B), and by MLPerf (GPT-3 175B and Llama 3.1 405B). "
        "Sequences per GPU fall along MLPerf's ladders, as the table says, and are constant in the paper's.",
        spec=lines(list(_points(rungs)), x="gpus", y="of_first_frac", zero=True),
        columns=tuple(rows[0]),
        rows=tuple(rows),
    )
    loads = equal_loads(published)
    return Section(
        id="since",
        title="What followed: does the fall go on?",
        says=_says(published, loads),
        charts=(chart_of(figure, [record_table("Every rung of the ladders", figure.columns, rows)], draw),),
        blocks=(_load_table(loads),),
    )


def _points(rungs: Sequence[Rung]) -> list[ChartPoint]:
    drawn = [ChartPoint(series=r.ladder, x=r.gpus, y=r.predicted_frac, kind="simulated") for r in rungs]
    stated = [r for r in rungs if r.published_frac is not None]
    return [
        *drawn,
        *(ChartPoint(series=r.ladder, x=r.gpus, y=r.published_frac or 0.0, kind="published") for r in stated),
    ]


def _says(rungs: Sequence[Rung], loads: Sequence[EqualLoad]) -> str:
    """The largest fall of a ladder, what of it remains at equal load, and what the paper saw."""
    ends = {rung.ladder: rung for rung in rungs}  # the last of each
    deepest = min(ends.values(), key=lambda rung: rung.published_frac or 1.0)
    first = next(rung for rung in rungs if rung.ladder == deepest.ladder)
    worst = min(loads, key=lambda load: load.measured_frac)
    widest = max(loads, key=lambda load: load.to_gpus - load.from_gpus)
    lost, foreseen = 1 - (deepest.published_frac or 1.0), 1 - deepest.predicted_frac
    return (
        f"Not under plans with tensor and pipeline parallelism, as long as a GPU keeps its work. Under FSDP alone the "
        f"paper's runs lost 37% per GPU from 128 to 2,048 at equal load. MLPerf ({deepest.ladder}) lost {lost:.0%} "
        f"(predicted {foreseen:.0%}) from {first.gpus:,} to {deepest.gpus:,} GPUs, while sequences per GPU fell from "
        f"{first.local_batch:g} to {deepest.local_batch:g}. At equal load, from {widest.from_gpus:,} to "
        f"{widest.to_gpus:,} GPUs, {-widest.measured_frac:.1%} were lost (predicted {-widest.predicted_frac:.1%}), and "
        f"never more than {-worst.measured_frac:.1%} between two counts. Their data-parallel groups are a 32nd or a "
        "64th of the cluster, and gathers are short beside a step; what costs throughput is the smaller batch, because "
        "a pipeline with fewer microbatches has more of a bubble."
    )


def _load_table(loads: Sequence[EqualLoad]) -> Table:
    kinds = {
        "ladder": "words",
        "sequences per GPU": "words",
        "from GPUs": "count",
        "to GPUs": "count",
        "measured": "share",
        "predicted": "share",
    }
    rows = [(x.ladder, f"{x.local_batch:g}", x.from_gpus, x.to_gpus, x.measured_frac, x.predicted_frac) for x in loads]
    return kind_table("At equal load: change of tokens/s per GPU", kinds, rows)
