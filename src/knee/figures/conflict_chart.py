"""Exposed shares at two counts of GPUs: where each statement of the paper holds, and that they do not meet."""

from __future__ import annotations

from collections.abc import Callable

from knee.figures.palette import GRID, INK, PARTS, SERIES
from knee.figures.vega import CONFIG, SCHEMA, Spec

WIDTH, HEIGHT = 312, 240
X_END, Y_END = 0.20, 0.20
STEPS = 20


def conflict_chart(
    e_256: Callable[[float, float], float],
    *,
    mfu_16: tuple[float, float],
    gap: float,
    small: float,
    simulated: tuple[float, float] | None,
) -> Spec:
    """``e_256`` of the share at 16 GPUs and the MFU there is the line of T09 and T12; the rest are bounds."""
    xs = [X_END * i / STEPS for i in range(STEPS + 1)]
    ends = [(x, *(min(max(e_256(x, mfu), 0.0), Y_END) for mfu in mfu_16)) for x in xs]
    x = _axis("x", "exposed share on 16 GPUs", X_END)
    y = _axis("y", "exposed share on 256 GPUs", Y_END)
    band = [{"x": at, "y": low, "y2": high} for at, low, high in ends]
    words = [
        {"x": small, "y": gap, "text": f"T10: at least {gap:.2%}", "dy": -9, "align": "left"},
        {"x": small, "y": 0.195, "text": f"T17, T29: less than {small:.0%}", "dy": 0, "align": "left"},
        {"x": 0.075, "y": e_256(0.075, mfu_16[1]), "text": "T09 and T12", "dy": 20, "align": "left"},
    ]
    layers: list[Spec] = [
        _box({"x": 0.0, "x2": X_END, "y": gap, "y2": Y_END}, PARTS["exposed"].light, x, y),
        _box({"x": 0.0, "x2": small, "y": 0.0, "y2": Y_END}, SERIES[2].light, x, y),
        {
            "data": {"values": band},
            "mark": {"type": "area", "color": SERIES[3].light, "fillOpacity": 0.5, "clip": True},
            "encoding": {"x": x, "y": y, "y2": {"field": "y2"}},
        },
        *(_text(word, x, y) for word in words),
    ]
    if simulated is not None:
        layers += _dot(simulated, x, y)
    return {"$schema": SCHEMA, "config": CONFIG, "width": WIDTH, "height": HEIGHT, "layer": layers}


def _axis(name: str, title: str, end: float) -> Spec:
    return {
        "field": name,
        "type": "quantitative",
        "title": title,
        "scale": {"domain": [0.0, end], "nice": False},
        "axis": {"format": ".0%", "tickCount": 5, "labelFontSize": 11, "gridColor": GRID.light},
    }


def _box(value: Spec, color: str, x: Spec, y: Spec) -> Spec:
    return {
        "data": {"values": [value]},
        "mark": {"type": "rect", "color": color, "fillOpacity": 0.22},
        "encoding": {"x": x, "x2": {"field": "x2"}, "y": y, "y2": {"field": "y2"}},
    }


def _text(word: Spec, x: Spec, y: Spec) -> Spec:
    place = {"align": word["align"], "dy": word["dy"], "dx": 5 if word["align"] == "left" else 0}
    return {
        "data": {"values": [word]},
        "mark": {"type": "text", "fontSize": 11, "color": INK.light, **place},
        "encoding": {"x": x, "y": y, "text": {"field": "text"}},
    }


def _dot(at: tuple[float, float], x: Spec, y: Spec) -> list[Spec]:
    value = {"x": at[0], "y": at[1], "text": "knee", "dy": -10, "align": "left"}
    mark = {"type": "point", "shape": "cross", "filled": True, "size": 90, "color": INK.light}
    said = {"value": f"knee: {at[0]:.1%} exposed on 16 GPUs, {at[1]:.1%} on 256"}
    return [
        {"data": {"values": [value]}, "mark": mark | {"opacity": 1}, "encoding": {"x": x, "y": y, "description": said}},
        _text(value, x, y),
    ]
