"""A heat map: a number in every cell, in steps of one hue; what cannot be is hatched and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from knee.show.figures.axes import AXIS_WIDTH, WIDTH, is_number, title_of, with_config
from knee.show.figures.labels import axis_unit, format_value, label, value_with_name
from knee.show.figures.palette import CELL_TEXT, HATCH, INK, MORE, WORSE
from knee.show.figures.vega import Spec
from knee.specs.metrics import METRICS

CELL = 38
"""Pixels of a row."""
HATCHED = "cannot be, or does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One place of the map."""

    x: Any
    y: Any
    value: float | None
    """None: it is hatched."""
    why: str = ""
    measured: bool = False


def heat_map(cells: Sequence[HeatCell], *, x: str, y: str, shows: str) -> Spec:
    """Cells in the order of their numbers; the best has a frame."""
    columns, rows = _order([cell.x for cell in cells]), _order([cell.y for cell in cells])
    known = [cell.value for cell in cells if cell.value is not None]
    least, most = (min(known), max(known)) if known else (0.0, 0.0)
    loss = shows in METRICS and METRICS[shows].better == "less"
    ramp = WORSE if loss else MORE
    unit = axis_unit(shows, most)
    if unit.decimals is None and most * unit.factor >= 100:
        unit = replace(unit, decimals=0)
    best = least if loss else most

    def strength(value: float) -> int:
        return min(len(ramp) - 1, int(len(ramp) * (value - least) / (most - least))) if most > least else 2

    def place(cell: HeatCell) -> Spec:
        return {"x": format_value(x, cell.x), "y": format_value(y, cell.y), "say": _say(cell, x, y, shows)}

    filled = [
        place(cell)
        | {
            "c": str(strength(cell.value)),
            "words": ("● " if cell.measured else "")
            + format_value(shows, cell.value, unit)
            + ("%" if unit.word == "%" else ""),
        }
        for cell in cells
        if cell.value is not None
    ]
    empty = [place(cell) | {"k": HATCHED} for cell in cells if cell.value is None]
    axes = {
        "x": _band("x", x, [format_value(x, value) for value in columns]),
        "y": _band("y", y, [format_value(y, value) for value in rows]),
    }
    steps = [str(i) for i in range(len(ramp))]
    tip = {"field": "say"}

    def by_strength(values: list[str]) -> Spec:
        return {"field": "c", "type": "nominal", "scale": {"domain": steps, "range": values}, "legend": None}

    framed = [place(cell) for cell in cells if cell.value == best and known and len(known) > 1]

    def layer(values: list[Spec], mark: Spec, **channels: Spec) -> Spec:
        return {"data": {"values": values}, "mark": mark, "encoding": axes | channels}

    frame = {"type": "rect", "fill": None, "stroke": INK.light, "strokeWidth": 2, "aria": False}
    number = {"type": "text", "fontSize": 11, "aria": False}
    words = {"field": "words", "type": "nominal"}
    layers: list[Spec] = [
        layer(filled, {"type": "rect"}, color=by_strength([style.light for style in ramp]), description=tip),
        layer(framed, frame),
        layer(filled, number, text=words, color=by_strength([style.light for style in CELL_TEXT])),
    ]
    if empty:
        pale = {"type": "rect", "fill": HATCH.light, "fillOpacity": 0.12}
        hatch = {"type": "point", "shape": hatch_path(WIDTH / len(columns), CELL), "size": 4, "filled": False}
        hatch |= {"stroke": HATCH.light, "strokeWidth": 1, "opacity": 1, "aria": False}
        layers += [layer(empty, pale, description=tip), layer(empty, hatch)]
    # one scale for both would paint the numbers in the colours of their cells
    apart = {"scale": {"color": "independent"}}
    return with_config({"width": WIDTH, "height": CELL * len(rows), "layer": layers, "resolve": apart})


def _say(cell: HeatCell, x: str, y: str, shows: str) -> str:
    where = f"{label(x, cell.x)}, {label(y, cell.y)}"
    return f"{where}: {value_with_name(shows, cell.value)}" if cell.value is not None else f"{where}: {cell.why}"


def _order(values: Sequence[Any]) -> list[Any]:
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if all(map(is_number, distinct)) else distinct


def _band(channel: str, column: str, places: list[str]) -> Spec:
    axis: Spec = {"labelOverlap": False, "grid": False, "ticks": False, "domain": False}
    axis |= {"labelAngle": 0} if channel == "x" else {"minExtent": AXIS_WIDTH, "labelLimit": 120}
    return {
        "field": channel,
        "type": "ordinal",
        "title": title_of(column),
        "axis": axis,
        "scale": {"domain": places, "paddingInner": 0.04, "paddingOuter": 0.02},
    }


def hatch_path(width: float, height: float, gap: float = 9.0) -> str:
    """Diagonals of a cell around its middle, in pixels: a shape of size 4 is drawn as large as its path says."""
    w, h = 0.47 * width, 0.47 * height
    found = []
    at = -w - h + gap
    while at < w + h:
        # the line x + y = at, where it crosses the cell
        left, right = max(-w, at - h), min(w, at + h)
        if right - left > 2:
            found.append(f"M{left:.1f},{at - left:.1f}L{right:.1f},{at - right:.1f}")
        at += gap
    return "".join(found)
