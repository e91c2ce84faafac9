"""Errors on published runs against the number of GPUs, beside the band that was promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from knee.figures.palette import GRID, INK, MUTED
from knee.figures.scale_chart import GPU_AXIS
from knee.figures.vega import CONFIG, SCHEMA, Spec

WIDTH, HEIGHT = 640, 340
SHOWN_FRAC = 0.6
"""Errors beyond this are drawn at the edge: the chart is for the trend."""

MANY_GPUS, CROWD_FRAC = 512, 0.09


class ErrorPoint(Protocol):
    """Runs of one source on one number of GPUs: their error, and the band that was promised, of the same ratio."""

    @property
    def source(self) -> str: ...
    @property
    def n_gpus(self) -> int: ...
    @property
    def error_frac(self) -> float: ...
    @property
    def low_frac(self) -> float: ...
    @property
    def high_frac(self) -> float: ...


def error_chart(points: Sequence[ErrorPoint]) -> Spec:
    """A line and points for each source, those apart labelled at their largest count; the promised bands behind."""
    edge = SHOWN_FRAC
    values = [
        {"source": p.source, "n_gpus": p.n_gpus, "shown_frac": min(max(p.error_frac, -edge), edge)} for p in points
    ]
    last = {p.source: p for p in sorted(points, key=lambda p: p.n_gpus)}
    # labels where there is room: the crowd near zero is in the table
    named = {p.source: p.n_gpus for p in last.values() if p.n_gpus >= MANY_GPUS or abs(p.error_frac) > CROWD_FRAC}
    for value in values:
        value["label"] = str(value["source"]) if value["n_gpus"] == named.get(str(value["source"])) else ""
    counts = sorted({p.n_gpus for p in points})
    band = [
        {
            "n_gpus": n,
            "low_frac": max(_median([p.low_frac for p in points if p.n_gpus == n]), -edge),
            "high_frac": min(_median([p.high_frac for p in points if p.n_gpus == n]), edge),
        }
        for n in counts
    ]
    x = {
        "field": "n_gpus",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2, "domainMax": 40_000},
        "axis": GPU_AXIS,
    }
    y_axis = {"title": "predicted over measured, less one", "format": "+.0%"}
    y = {"field": "shown_frac", "type": "quantitative", "scale": {"domain": [-edge, edge]}, "axis": y_axis}
    ends = {"y": y | {"field": "low_frac"}, "y2": {"field": "high_frac"}}
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "width": WIDTH,
        "height": HEIGHT,
        "layer": [
            {"data": {"values": band}, "mark": {"type": "area", "color": GRID.light}, "encoding": {"x": x, **ends}},
            {"data": {"values": [{}]}, "mark": {"type": "rule", "color": MUTED.light}, "encoding": {"y": {"datum": 0}}},
            {
                "data": {"values": values},
                "encoding": {"x": x, "y": y, "detail": {"field": "source"}},
                "layer": [
                    {"mark": {"type": "line", "color": MUTED.light, "strokeWidth": 1}},
                    {"mark": {"type": "point", "filled": True, "color": INK.light, "size": 26}},
                    {
                        "mark": {"type": "text", "align": "left", "dx": 5, "dy": -5, "fontSize": 9},
                        "encoding": {"text": {"field": "label"}},
                    },
                ],
            },
        ],
    }


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0
