"""Budgets drawn: loss against each limit with its knee, against the size, and where counts and sizes lose the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from knee.figures.heat import Cell, heat
from knee.figures.labels import heading
from knee.figures.lines import ChartPoint, lines
from knee.figures.palette import IDEAL, INK
from knee.figures.vega import Spec, alone, to_png, to_svg
from knee.files import write_bytes, write_text
from knee.units import amount, counted

Data = Mapping[str, Any]
TITLES = {"days": "days", "usd": "dollars", "mwh": "energy", "co2e_kg": "emissions"}
BEST, COUNTED = "with communication", "counting FLOP"
DIGITS = 3
"""Of values on a logarithmic axis: its labels are the values themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFigure:
    """A chart and the rows behind it."""

    id: str
    title: str
    caption: str
    spec: Spec
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]


def budget_figures(data: Data) -> list[BudgetFigure]:
    """All charts of an answer, as ``knee budget --json`` has it."""
    found = [_sizes(data)] if len(data["by_size"]) > 1 else []
    found += [_counts(data)] if len(data["by_gpus"]) > 1 else []
    found += [figure for one in data["frontiers"] if (figure := _frontier(one)) is not None]
    if any(cell["loss"] is not None for cell in data["grid"]):
        found.append(_grid(data))
    if data["iso_loss"]:
        found.append(_iso(data))
    return found


def _sizes(data: Data) -> BudgetFigure:
    runs, flop = data["by_size"], data["flop_counting"]
    points = [ChartPoint(series=BEST, x=_round(run["params"]), y=run["loss"], kind="simulated") for run in runs]
    points += [
        ChartPoint(series=COUNTED, x=_round(run["params"]), y=run["counted_loss"], kind="simulated") for run in runs
    ]
    columns = ("params", "tokens", "loss", "counted_loss", "mfu_frac", "exposed_frac", "plan")
    rows = tuple({name: run[name] for name in columns[:-1]} | {"plan": run["plan_words"]} for run in runs)
    caption = (
        f"Sizes on {counted(data['best']['gpus'], 'GPU')}, and the same sizes at {100 * flop['mfu_frac']:.3g}% "
        "of the peak by 6 N D. "
        "Near the least loss both curves are flat: what a cluster delivers counts more than the exact size."
    )
    return BudgetFigure(
        id="sizes",
        title="Loss against parameters",
        caption=caption,
        rows=rows,
        spec=lines(points, x="params", y="loss", zero=False),
        columns=columns,
    )


def _counts(data: Data) -> BudgetFigure:
    runs = data["by_gpus"]
    rows = tuple(
        {
            "gpus": run["gpus"],
            "params": run["params"],
            "tokens": run["tokens"],
            "loss": run["loss"],
            "days": run["days"],
            "mfu_frac": run["mfu_frac"],
            "plan": run["plan_words"],
        }
        for run in runs
    )
    points = [ChartPoint(series=BEST, x=run["gpus"], y=run["loss"], kind="simulated") for run in runs]
    return BudgetFigure(
        id="counts",
        title="Loss of the best run of each count of GPUs",
        rows=rows,
        caption="The limits as given, on fewer GPUs.",
        spec=lines(points, x="gpus", y="loss", zero=False),
        columns=("gpus", "params", "tokens", "loss", "days", "mfu_frac", "plan"),
    )


def _frontier(one: Data) -> BudgetFigure | None:
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
        (
            " The pale band is that of the law's coefficients; an error of theirs moves the whole curve within it, "
            "and its bends far less."
        )
        if bands
        else ""
    )
    remarks = "".join(f" {remark[:1].upper()}{remark[1:]}." for remark in one["remarks"])
    rows = tuple(
        {
            axis: p["value"],
            "loss": p["run"]["loss"],
            "law_low": p["law_band"] and p["law_band"][0],
            "law_high": p["law_band"] and p["law_band"][1],
            "worth_frac": p["worth_frac"],
            "gpus": p["run"]["gpus"],
            "params": p["run"]["params"],
            "tokens": p["run"]["tokens"],
            "ends_by": TITLES.get(p["run"]["binding"], "data"),
        }
        for p in known
    )
    return BudgetFigure(
        id=f"frontier-{axis.replace('_', '-')}",
        title=f"Loss against {TITLES[axis]}",
        caption=f"{where[:1].upper()}{where[1:]}: {one['words']}. The other limits stay.{remarks}{shaded}",
        spec=spec,
        columns=(
            axis,
            "loss",
            *(("law_low", "law_high") if bands else ()),
            "worth_frac",
            "gpus",
            "params",
            "tokens",
            "ends_by",
        ),
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


def _grid(data: Data) -> BudgetFigure:
    cells = [
        Cell(x=cell["gpus"], y=cell["params"], value=cell["loss"], why="no plan fits, or no batch is allowed")
        for cell in data["grid"]
    ]
    rows = tuple(dict(cell) for cell in data["grid"])
    return BudgetFigure(
        id="grid",
        title="Loss over GPUs and sizes",
        rows=rows,
        columns=("gpus", "params", "loss"),
        caption="The least has a frame; hatched where nothing can be trained.",
        spec=heat(cells, x="gpus", y="params", shows="loss"),
    )


def _iso(data: Data) -> BudgetFigure:
    iso = data["iso_loss"]
    points = []
    for end, name in (("low_params", "at least"), ("high_params", "at most")):
        points += [
            ChartPoint(series=f"loss {one['loss']:.3f}", part=name, x=one["gpus"], y=one[end], kind="simulated")
            for one in iso
        ]
    return BudgetFigure(
        id="iso-loss",
        title="Equal loss: the sizes that reach it",
        rows=tuple(map(dict, iso)),
        caption="Between a loss's two curves sizes lose less; where it has none, no size of those "
        "tried reaches it, and where it is level it runs along the last of them.",
        columns=("loss", "gpus", "low_params", "high_params"),
        spec=lines(points, x="gpus", y="params", log=True),
    )


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# ---- files -----------------------------------------------------------------------------------------------------------


def together(figures: Sequence[BudgetFigure]) -> Spec:
    """All charts as one picture, two in a row."""
    specs = [
        {key: value for key, value in figure.spec.items() if key not in ("$schema", "config")}
        | {"title": {"text": figure.title, "anchor": "start", "fontSize": 13}}
        for figure in figures
    ]
    apart = {
        "scale": dict.fromkeys(("color", "strokeDash", "x", "y", "shape"), "independent"),
        "legend": dict.fromkeys(("color", "strokeDash", "shape"), "independent"),
    }
    first = figures[0].spec
    return {
        "$schema": first["$schema"],
        "concat": specs,
        "columns": 2,
        "resolve": apart,
        "spacing": 40,
        "config": first["config"],
    }


def write_plot(data: Data, path: str) -> None:
    """Into a file; its ending says how."""
    figures = budget_figures(data)
    spec = alone(together(figures))
    target = Path(path)
    if path.endswith(".json"):
        write_text(target, json.dumps(spec, indent=2) + "\n")
    elif path.endswith(".png"):
        write_bytes(target, to_png(spec))
    elif path.endswith(".html"):
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in data["sentences"])
        head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>knee budget</title></head>'
        write_text(target, f"{head}<body>{to_svg(spec)}{said}</body></html>\n")
    else:
        write_text(target, to_svg(spec))
