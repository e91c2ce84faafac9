"""The part of a page about failures: what each cause costs, and a month of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.base.units import amount
from knee.engine.reliability.goodput import rate_words
from knee.engine.reliability.whole_run import MONTH_DAYS
from knee.show.figures.bars import bars
from knee.show.figures.lines import ChartPoint, run_strip
from knee.show.figures.vega import Figure
from knee.show.page.page import Section, chart_of

Row = Mapping[str, Any]


def failure_section(run: Mapping[str, Any], month: Sequence[Row]) -> Section:
    """``run`` is ``with_failures`` of an answer; ``month`` has the spans of ``reliability.drawn_month``."""
    shares = run["causes_frac"] | {"checkpoints": run["parts_frac"]["checkpoints"]}
    rows = [{"cause": cause.replace("_", " "), "cause_frac": share} for cause, share in shares.items()]
    points = [ChartPoint(series="", x=row["cause"], y=row["cause_frac"], kind="simulated") for row in rows]
    causes = Figure(
        id="failure-causes",
        title="What each cause costs",
        caption="Shares of the run's time: detection, restart and lost work of each cause.",
        spec=bars(points, x="cause", y="cause_frac"),
        rows=tuple(rows),
    )
    strip = Figure(
        id="failure-month",
        title="A month of the run" if run["days"] >= MONTH_DAYS else "The days of the run",
        caption="Drawn at random once. Every day is one line; checkpoints are part of training.",
        spec=run_strip(month),
        columns=("span", "cause", "from_day", "to_day"),
        rows=tuple(month),
    )
    low, middle, high = (amount(run[f"p{end}_days"]) for end in (10, 50, 90))
    cost = "" if run["cost_usd"] is None else f", {amount(run['cost_usd'])} USD"
    says = (
        f"Goodput {run['goodput_frac']:.1%} with {rate_words(run['defaults'])}: {amount(run['days'])} days (p10 {low}, "
        f"p50 {middle}, p90 {high}){cost}, {amount(run['interruptions'])} interruptions."
    )
    return Section(id="failures", title="With failures", says=says, charts=(chart_of(causes), chart_of(strip)))
