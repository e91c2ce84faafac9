"""The page of a tuning: the best plan, the search in pictures, and every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.base.units import counted, precise
from knee.show.figures.axes import with_config
from knee.show.figures.palette import IDEAL, INK, PARTS
from knee.show.figures.vega import Figure, Spec
from knee.show.page.page import Key, Page, Section, chart_of, render_page
from knee.show.page.tables import Table, record_table
from knee.specs.metrics import METRICS

Data = Mapping[str, Any]
WIDTH, HEIGHT, ROW = 360, 240, 30
SHOWN = 16
"""Candidates whose bands are drawn."""
RATE = METRICS["tokens_per_s_per_gpu"].label


def tune_figures(data: Data) -> list[Figure]:
    """All charts of a tuning, as ``knee tune --json`` has it; those without a value are left out."""
    measured = [one for one in data["candidates"] if one["measured_tokens_per_s_per_gpu"] is not None]
    found = [_progress(data["steps"])] if any(step["best_tokens_per_s_per_gpu"] for step in data["steps"]) else []
    return [*found, _bands(data["candidates"]), *([_predicted(measured)] if measured else [])]


def _progress(steps: Sequence[Data]) -> Figure:
    rows = tuple(
        {
            "runs": step["runs"],
            "gpu_h": step["gpu_h"],
            "best": step["best_tokens_per_s_per_gpu"],
            "bound": step["best_tokens_per_s_per_gpu"] * (1.0 + (step["bound_frac"] or 0.0)),
        }
        for step in steps
        if step["best_tokens_per_s_per_gpu"] is not None
    )
    x = {"field": "gpu_h", "type": "quantitative", "title": "GPU-hours"}
    best: Spec = {"x": x, "y": {"type": "quantitative", "title": RATE, "scale": {"zero": False}, "field": "best"}}
    area = {"type": "area", "interpolate": "step-after", "color": IDEAL.light, "opacity": 0.4}
    line = {"type": "line", "interpolate": "step-after", "color": INK.light, "strokeWidth": 2}
    layers: list[Spec] = [
        {"mark": area, "encoding": best | {"y2": {"field": "bound"}}},
        {"mark": line, "encoding": best},
        {"mark": {"type": "point", "filled": True, "size": 40, "color": INK.light}, "encoding": best},
    ]
    return Figure(
        id="progress",
        title="Best plan so far",
        caption="The line is the fastest measured plan after each run. With 90% probability, no untried candidate is "
        "above the shaded area.",
        rows=rows,
        spec=_spec(rows, layers),
    )


def _predicted(measured: Sequence[Data]) -> Figure:
    rows = tuple(
        {"plan": one["plan"]} | {name: one[f"{name}_tokens_per_s_per_gpu"] for name in ("predicted", "measured")}
        for one in measured
    )
    ends = [value for row in rows for value in (row["predicted"], row["measured"])]
    line = [{"predicted": value, "measured": value} for value in (min(ends), max(ends))]
    x = {"field": "predicted", "type": "quantitative", "title": f"predicted {RATE}", "scale": {"zero": False}}
    y = {"field": "measured", "type": "quantitative", "title": f"measured {RATE}", "scale": {"zero": False}}
    wide = {"type": "line", "color": IDEAL.light, "strokeWidth": 4, "opacity": 0.6}
    layers: list[Spec] = [
        {"data": {"values": line}, "mark": wide, "encoding": {"x": x, "y": y}},
        {"mark": {"type": "point", "filled": True, "size": 60, "color": INK.light}, "encoding": {"x": x, "y": y}},
    ]
    return Figure(
        id="predicted",
        title="Predicted against measured",
        caption="The prediction is that of the simulator before any run. On the grey line both are equal.",
        rows=rows,
        spec=_spec(rows, layers),
    )


def _bands(candidates: Sequence[Data]) -> Figure:
    first = sorted(candidates, key=lambda one: -float(one["mean_tokens_per_s_per_gpu"]))[:SHOWN]
    columns = ("plan", "first_low", "first_high", "low", "mean", "high", "fits_frac", "measured", "end")
    rows = tuple(
        {
            "plan": one["plan"],
            **{name: one[f"{name}_tokens_per_s_per_gpu"] for name in columns[1:6]},
            "fits_frac": one["fits_frac"],
            "measured": one["measured_tokens_per_s_per_gpu"],
            "end": one["end"] or "not run",
        }
        for one in first
    )
    # plans have long names: each stands above its bar, inside the plot
    above = {"labelAlign": "left", "labelPadding": -4, "labelOffset": -12, "labelLimit": WIDTH}
    axis = above | {"ticks": False, "domain": False, "grid": False}
    y = {"field": "plan", "type": "nominal", "sort": None, "title": None, "axis": axis}
    x = {"type": "quantitative", "title": RATE, "scale": {"zero": False}}
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 9, "color": IDEAL.light, "opacity": 0.5},
            "encoding": {"y": y, "x": x | {"field": "first_low"}, "x2": {"field": "first_high"}},
        },
        {
            "mark": {"type": "bar", "height": 5, "color": PARTS["compute"].light},
            "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
        },
        {
            "transform": [{"filter": "datum.measured !== null"}],
            "mark": {"type": "point", "filled": True, "size": 45, "color": INK.light},
            "encoding": {"y": y, "x": x | {"field": "measured"}},
        },
        {
            "transform": [{"filter": "datum.end === 'oom' || datum.end === 'failed'"}],
            "mark": {"type": "point", "shape": "cross", "angle": 45, "filled": True, "size": 70, "color": INK.light},
            "encoding": {"y": y, "x": x | {"field": "mean"}},
        },
    ]
    return Figure(
        id="bands",
        title="What is known of each plan",
        caption="Grey: the 80% band before any run. Blue: the band now. Dot: measured. Cross: the run failed or was "
        "out of memory.",
        rows=rows,
        spec=_spec(rows, layers, height=ROW * len(rows)),
    )


def _spec(rows: Sequence[Data], layers: list[Spec], height: int = HEIGHT) -> Spec:
    return with_config({"width": WIDTH, "height": height, "data": {"values": list(rows)}, "layer": layers})


RUNS = ("run", "stage", "plan", "status", "cause", RATE, "GPU-hours", "message")
ASSUMPTIONS = (
    "Errors of predictions go together between plans that share a mechanism, as in published runs "
    "(catalog/validation/tuning.toml).",
    "A run out of memory costs half of a run that completes. A run that loses its node tells nothing about its plan.",
    "The bound covers the candidates: the plans that are best by simulation.",
)


def tune_page(data: Data, *, command: str = "") -> str:
    """One HTML file of ``knee tune --json``'s data."""
    job, best = data["job"], data["best_tokens_per_s_per_gpu"]
    keys = [
        Key(value="-" if best is None else precise(best), says=f"{RATE} with the best plan"),
        Key(value=_share(data["bound_frac"]), says="more is possible at most, with 90% probability"),
        Key(value=f"{len(data['runs'])} of {len(data['candidates']):,}", says="candidates run"),
        Key(value=f"{data['gpu_h']:.3g}", says="GPU-hours"),
    ]
    charts = tuple(chart_of(figure) for figure in tune_figures(data))
    page = Page(
        title="The fastest plan on the cluster",
        question=f"{job['model']} on {counted(job['gpus'], 'GPU')} of {job['cluster']}, {job['global_batch']:,} "
        f"sequences of {job['seq_len']:,} tokens per step: which plan is fastest for real?",
        command=command,
        keys=tuple(keys),
        found=(
            "No run has completed." if best is None else f"Best plan: {data['best_plan']}.",
            f"The most promising untried plan is expected to gain {_share(data['expected_gain_frac'])}.",
            *data["notes"],
        ),
        sections=(
            Section(id="search", title="The search", says="What each run has told.", charts=charts),
            Section(id="runs", title="Runs", says="In the order in which they were chosen.", blocks=(_runs(data),)),
        ),
        assumptions=ASSUMPTIONS,
    )
    return render_page(page)


def _runs(data: Data) -> Table:
    rows = []
    for run in data["runs"]:
        rate = None if run["tokens_per_s_per_gpu"] is None else precise(run["tokens_per_s_per_gpu"])
        told = [run[name] for name in ("id", "stage", "plan", "state", "cause")]
        rows.append(dict(zip(RUNS, (*told, rate, f"{run['gpu_h']:.4g}", run["words"]), strict=True)))
    return record_table("Runs", rows, RUNS)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
