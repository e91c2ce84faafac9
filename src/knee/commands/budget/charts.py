"""Budgets drawn: loss against each limit with its knee, against the size, and where counts and sizes lose the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.base.units import amount, counted
from knee.show.figures.heat_map import HeatCell, heat_map
from knee.show.figures.labels import heading
from knee.show.figures.lines import ChartPoint, lines
from knee.show.figures.palette import IDEAL, INK
from knee.show.figures.vega import Figure, Spec

Data = Mapping[str, Any]
TITLES = {"days": "days", "usd": "dollars", "mwh": "energy", "co2e_kg": "emissions"}
BEST, COUNTED = "with communication", "counting FLOP"
DIGITS = 3
"""Of values on a logarithmic axis: its labels are the values themselves."""


def budget_figures(data: Data) -> list[Figure]:
    """All charts of an answer, as ``knee budget --json`` has it."""
    found = [_sizes(data)] if len(data["by_size"]) > 1 else []
    found += [_counts(data)] if len(data["by_gpus"]) > 1 else []
    found += [figure for one in data["frontiers"] if (figure := _frontier(one)) is not None]
    if any(cell["loss"] is not None for cell in data["grid"]):
        found.append(_grid(data))
    if data["iso_loss"]:
        found.append(_iso(data))
    return found


def _sizes(data: Data) -> Figure:
    runs, flop = data["by_size"], data["flop_counting"]
    points = [
        ChartPoint(series=series, x=_round(run["params"]), y=run[loss], kind="simulated")
        for series, loss in ((BEST, "loss"), (COUNTED, "counted_loss"))
        for run in runs
    ]
    columns = ("params", "tokens", "loss", "counted_loss", "mfu_frac", "exposed_frac")
    rows = tuple({name: run[name] for name in columns} | {"plan": run["plan_words"]} for run in runs)
    caption = (
        f"Sizes on {counted(data['best']['gpus'], 'GPU')}, and the same sizes at {100 * flop['mfu_frac']:.3g}% "
        "of the peak by 6 N D. "
        "Near the least loss both curves are flat: what a cluster delivers counts more than the exact size."
    )
    return Figure(
        id="sizes",
        title="Loss against parameters",
        caption=caption,
        rows=rows,
        spec=lines(points, x="params", y="loss", zero=False),
    )


def _counts(data: Data) -> Figure:
    runs = data["by_gpus"]
    columns = ("gpus", "params", "tokens", "loss", "days", "mfu_frac")
    rows = tuple({name: run[name] for name in columns} | {"plan": run["plan_words"]} for run in runs)
    points = [ChartPoint(series=BEST, x=run["gpus"], y=run["loss"], kind="simulated") for run in runs]
    return Figure(
        id="counts",
        title="Loss of the best run of each count of GPUs",
        rows=rows,
        caption="The limits as given, on fewer GPUs.",
        spec=lines(points, x="gpus", y="loss", zero=False),
    )


def _frontier(one: Data) -> Figure | None:
    axis, known = one["axis"], [point for point in one["points"] if point["run"] is not None]
    if not known:
        return None
    points = [ChartPoint(series=BEST, x=_round(p["value"]), y=p["run"]["loss"], kind="simulated") for p in known]
    spec = lines(points, x=axis, y="loss", zero=False)
    bands = _bands(known, spec)
    spec = spec | {"layer": [*bands, *spec["layer"]]}
    where = "no doubling pays"
    if one["knee"] is not None:
        where = f"the knee is {amount(one['knee'])} {heading(axis)}" + (" or more" if one["open"] else "")
        spec = spec | {"layer": [*spec["layer"], *_knee(one, spec)]}
    shaded = (
        " The pale band is that of the law's coefficients; an error of theirs moves the whole curve within it, and its "
        "bends far less."
    )
    remarks = "".join(f" {remark[:1].upper()}{remark[1:]}." for remark in one["remarks"]) + (shaded if bands else "")
    rows = tuple(
        {
            axis: p["value"],
            "loss": p["run"]["loss"],
            "law_low": p["law_band"] and p["law_band"][0],
            "law_high": p["law_band"] and p["law_band"][1],
            "worth_frac": p["worth_frac"],
            **{name: p["run"][name] for name in ("gpus", "params", "tokens")},
            "ends_by": TITLES.get(p["run"]["binding"], "data"),
        }
        for p in known
    )
    return Figure(
        id=f"frontier-{axis.replace('_', '-')}",
        title=f"Loss against {TITLES[axis]}",
        caption=f"{where[:1].upper()}{where[1:]}: {one['words']}. The other limits stay.{remarks}",
        spec=spec,
        columns=tuple(name for name in rows[0] if bands or not name.startswith("law_")),
        rows=rows,
    )


def _bands(known: Sequence[Data], spec: Spec) -> list[Spec]:
    """Behind the line: the law's own band at each point; nothing where it has none."""
    if len(known) < 2 or any(point["law_band"] is None for point in known):
        return []
    values = [{"x": _round(p["value"]), "y": p["law_band"][0], "y2": p["law_band"][1]} for p in known]
    axes = {name: spec["layer"][0]["encoding"][name] for name in ("x", "y")}
    mark = {"type": "area", "color": IDEAL.light, "opacity": 0.35, "aria": False}
    return [{"data": {"values": values}, "mark": mark, "encoding": axes | {"y2": {"field": "y2"}}}]


def _knee(one: Data, spec: Spec) -> list[Spec]:
    point = min(one["points"], key=lambda p: abs(p["value"] - one["knee"]))
    if point["run"] is None:
        return []
    values = {"values": [{"x": _round(point["value"]), "y": point["run"]["loss"]}]}
    axes = {name: spec["layer"][0]["encoding"][name] for name in ("x", "y")}
    ring = {"type": "point", "filled": False, "size": 120, "strokeWidth": 1.8, "stroke": INK.light, "opacity": 1}
    word = {"type": "text", "text": "knee", "dy": -13, "fontSize": 11, "color": INK.light}
    return [{"data": values, "mark": mark | {"aria": False}, "encoding": axes} for mark in (ring, word)]


def _grid(data: Data) -> Figure:
    cells = [
        HeatCell(x=cell["gpus"], y=cell["params"], value=cell["loss"], why="no plan fits, or no batch is allowed")
        for cell in data["grid"]
    ]
    return Figure(
        id="grid",
        title="Loss over GPUs and sizes",
        rows=tuple(map(dict, data["grid"])),
        caption="The least has a frame; hatched where nothing can be trained.",
        spec=heat_map(cells, x="gpus", y="params", shows="loss"),
    )


def _iso(data: Data) -> Figure:
    iso = data["iso_loss"]
    points = [
        ChartPoint(series=f"loss {one['loss']:.3f}", part=name, x=one["gpus"], y=one[end], kind="simulated")
        for end, name in (("low_params", "at least"), ("high_params", "at most"))
        for one in iso
    ]
    return Figure(
        id="iso-loss",
        title="Equal loss: the sizes that reach it",
        rows=tuple(map(dict, iso)),
        caption="Between a loss's two curves sizes lose less; where it has none, no size of those "
        "tried reaches it, and where it is level it runs along the last of them.",
        spec=lines(points, x="gpus", y="params", log=True),
    )


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def concatenated(figures: Sequence[Figure]) -> Spec:
    """All charts as one picture, two in a row."""
    drawn = {figure.title: figure.spec for figure in figures if figure.spec is not None}
    specs = [
        {key: value for key, value in spec.items() if key not in ("$schema", "config")}
        | {"title": {"text": title, "anchor": "start", "fontSize": 13}}
        for title, spec in drawn.items()
    ]
    legends = ("color", "strokeDash", "shape")
    apart = {
        "scale": dict.fromkeys((*legends, "x", "y"), "independent"),
        "legend": dict.fromkeys(legends, "independent"),
    }
    shared = {key: next(iter(drawn.values()))[key] for key in ("$schema", "config")}
    return {"concat": specs, "columns": 2, "resolve": apart, "spacing": 40} | shared
