"""Errors on published runs against the number of GPUs, beside the band that was promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from knee.commands.scale.chart import GPU_AXIS
from knee.show.figures.palette import GRID, INK, MUTED
from knee.show.figures.vega import CONFIG, SCHEMA, Spec

WIDTH, HEIGHT = 340, 280
SHOWN_FRAC = 0.6
"""Errors beyond this are drawn at the edge: the chart is for the trend."""

MANY_GPUS, CROWD_FRAC = 2048, 0.14
TICKS = (2, 8, 32, 128, 512, 2048, 8192)


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
        {
            "source": p.source,
            "n_gpus": p.n_gpus,
            "shown_frac": min(max(p.error_frac, -edge), edge),
            "say": f"{p.source}, {p.n_gpus:,} GPUs: {p.error_frac:+.1%} ({p.low_frac:+.0%} to {p.high_frac:+.0%})",
        }
        for p in points
    ]
    last = {p.source: p for p in sorted(points, key=lambda p: p.n_gpus)}
    # labels where there is room: the crowd near zero is in the table
    named = {p.source: p.n_gpus for p in last.values() if p.n_gpus >= MANY_GPUS or abs(p.error_frac) > CROWD_FRAC}
    labels = [value for value in values if value["n_gpus"] == named.get(str(value["source"]))]
    counts = sorted({p.n_gpus for p in points})
    band = [
        {
            "n_gpus": n,
            "low_frac": max(_median([p.low_frac for p in points if p.n_gpus == n]), -edge),
            "high_frac": min(_median([p.high_frac for p in points if p.n_gpus == n]), edge),
        }
        for n in counts
    ]
    scale, axis = {"type": "log", "base": 2, "nice": False}, GPU_AXIS | {"values": list(TICKS)}
    x: Spec = {"field": "n_gpus", "type": "quantitative", "scale": scale, "axis": axis}
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
                    {
                        "mark": {"type": "point", "filled": True, "color": INK.light, "size": 26},
                        "encoding": {"description": {"field": "say"}},
                    },
                ],
            },
            *(_labels(labels, x, y, many=many, below=below) for many in (False, True) for below in (False, True)),
        ],
    }


def _labels(labels: Sequence[Spec], x: Spec, y: Spec, *, many: bool, below: bool) -> Spec:
    """Names of sources at their last point: inside the chart, and on the side of the error."""
    some = [one for one in labels if (one["n_gpus"] >= MANY_GPUS // 4) is many and (one["shown_frac"] < 0) is below]
    mark = {"type": "text", "align": "right" if many else "left", "dx": 0 if many else 6, "fontSize": 11}
    mark |= {"dy": 12 if below else -9, "color": INK.light}
    return {"data": {"values": some}, "mark": mark, "encoding": {"x": x, "y": y, "text": {"field": "source"}}}


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0
