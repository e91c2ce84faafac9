"""Line charts: lines for simulated, dots for measured and hollow diamonds for published values; strips of days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from knee.show.figures import axes as ax
from knee.show.figures.labels import label, value_with_name
from knee.show.figures.palette import BAR, IDEAL, INK, MUTED, SERIES
from knee.show.figures.vega import Spec

# A month of a run as a strip: one line for each day, coloured by what the GPUs did.

SPANS = {"training": BAR, "lost work": SERIES[1], "detection": SERIES[3], "restart": SERIES[4]}
"""What the GPUs did -> how it is drawn."""
LINE = 11
"""Pixels of a day."""
Row = Mapping[str, Any]


def run_strip(rows: Sequence[Row]) -> Spec:
    """Rows have ``span``, ``cause``, ``from_day`` and ``to_day``."""
    values = list(_by_day(rows))
    days = sorted({value["day"] for value in values})
    names = [name for name in SPANS if any(value["c"] == name for value in values)]
    hours = {"title": "hour of the day", "values": [0, 6, 12, 18, 24]}
    encoding = {
        "y": {"field": "day", "type": "ordinal", "title": "day", "sort": days, "axis": {"labelOverlap": True}},
        "x": {"field": "from", "type": "quantitative", "scale": {"domain": [0, 24]}, "axis": hours},
        "x2": {"field": "to"},
        "color": ax.nominal(names, [SPANS[name].light for name in names], ax.legend(names)),
        "tooltip": [{"field": "say"}],
    }
    chart = {"data": {"values": values}, "mark": {"type": "bar", "height": {"band": 0.86}}, "encoding": encoding}
    return ax.with_config(chart | {"width": ax.WIDTH, "height": LINE * max(len(days), 2)}, legends=[names])


def _by_day(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Spans cut at midnight."""
    for row in rows:
        begin, end = float(row["from_day"]), float(row["to_day"])
        said = f"{row['span']}, {24 * (end - begin):.2g} h" + (f": {row['cause']}" if row.get("cause") else "")
        while begin < end:
            day = int(begin + 1e-9)
            last = min(end, day + 1.0)
            if last - begin > 1e-9:
                span = {"from": round(24 * (begin - day), 4), "to": round(24 * (last - day), 4)}
                yield {"day": day + 1, "c": row["span"], "say": said, **span}
            begin = max(last, begin + 1e-9)


Ideal = Literal["", "scaled", "flat"]
TARGET = 320
"""Area in pixels of the unseen disc around a point, whose text is its tooltip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """One value of a chart."""

    series: str
    x: Any
    y: float
    kind: str
    """simulated, measured, published, or catalogue."""
    note: str = ""
    """Of a published value: how it follows from what was stated."""
    named: bool = False
    """Its series is written beside it, because it is not one of the lines."""
    part: str = ""
    """Parts of a series are lines of their own, in its colour."""


def lines(
    points: Sequence[ChartPoint], *, x: str, y: str, ideal: Ideal = "", zero: bool = True, log: bool = False
) -> Spec:
    """A line for each series, with what stands beside it."""
    ideal_points = ideal_of(points, ideal)
    named = [p for p in points if p.named]
    room = max((ax.text_width(p.series) + 14 for p in named if _is_last(p, points)), default=0.0)
    room = max(room, ax.text_width("ideal") + 10 if ideal == "flat" else 0.0)
    values = [p.y for p in (*points, *ideal_points)]
    y_spec, factor = ax.y_axis(y, values, zero=zero, log=log)
    axes = {"x": ax.x_axis(x, [p.x for p in points], room=room), "y": y_spec}
    styles = ax.series_styles(list(dict.fromkeys(p.series for p in points if not p.named)))
    channels = ax.line_channels(styles)
    kinds = [kind for kind in ("measured", "published") if any(p.kind == kind for p in points)]

    def data(some: Sequence[ChartPoint]) -> Spec:
        return {"values": [_value(p, x, y, factor) for p in some]}

    drawn = [p for p in points if p.kind in ("simulated", "catalogue")]
    layers: list[Spec] = _ideal_layers(ideal_points, ideal, max(p.y for p in points), data, axes)
    # later series are drawn dashed over earlier ones, so that lines on top of each other all show
    line = {"type": "line", "strokeWidth": 2.2, "strokeCap": "butt", "aria": False}
    apart = {"detail": {"field": "d", "type": "nominal"}} if any(p.part for p in drawn) else {}
    layers.append({"data": data(drawn), "mark": line, "encoding": axes | channels | apart})
    alone = [p for p in drawn if sum((q.series, q.part) == (p.series, p.part) for q in drawn) == 1]
    if alone:  # a line of one point shows nothing
        dash = {"type": "point", "shape": "stroke", "size": 260, "strokeWidth": 3, "opacity": 1, "aria": False}
        layers.append({"data": data(alone), "mark": dash, "encoding": axes | {"color": channels["color"]}})
    disc = {"type": "point", "filled": True, "fill": INK.light, "opacity": 0, "size": TARGET}
    layers.append({"data": data(drawn), "mark": disc, "encoding": axes | {"description": {"field": "say"}}})
    layers += _beside([p for p in points if p.kind in kinds], kinds, data, axes, channels["color"])
    layers += _names(named, points, data, axes)
    spec = {"width": ax.WIDTH, "height": ax.HEIGHT, "layer": layers}
    return ax.with_config(spec, legends=[list(styles), *([kinds] if kinds else [])])


def ideal_of(points: Sequence[ChartPoint], ideal: Ideal) -> list[ChartPoint]:
    """Through the first point of the first series: in proportion to x, or level."""
    if not ideal or not points:
        return []
    xs = sorted({p.x for p in points if ax.is_number(p.x)})
    own = [p for p in points if p.series == points[0].series and p.kind == points[0].kind]
    first = min(own, key=lambda p: float(p.x))
    return [
        ChartPoint(series="ideal", x=x, y=first.y * (x / first.x if ideal == "scaled" else 1.0), kind="ideal")
        for x in xs
    ]


def _value(point: ChartPoint, x: str, y: str, factor: float) -> Spec:
    note = f" ({point.note})" if point.note else ""
    part = f" {point.part}" if point.part else ""
    say = f"{point.series}{part}, {label(x, point.x)}: {value_with_name(y, point.y)}, {point.kind}{note}"
    value = {"c": point.series, "x": point.x, "y": point.y * factor, "k": point.kind, "say": say}
    return value | ({"d": point.part} if point.part else {})


def _ideal_layers(points: Sequence[ChartPoint], ideal: Ideal, most: float, data: Any, axes: Spec) -> list[Spec]:
    """A wide pale band with its name, drawn first, so that a line on it still shows."""
    if not points:
        return []
    # its end is free where the curves stay below
    at = points[-1] if ideal == "flat" or points[-1].y > 1.5 * most else points[len(points) * 2 // 3]
    place = {"align": "left", "dx": 7, "dy": -8} if ideal == "flat" else {"align": "right", "dx": -8, "dy": -8}
    band = {"type": "line", "color": IDEAL.light, "strokeWidth": 7, "opacity": 0.6, "strokeCap": "round"}
    name = {"type": "text", "text": "ideal", "fontSize": 11, "color": MUTED.light}
    return [
        {"data": data(points), "encoding": axes, "mark": band | {"aria": False}},
        {"data": data([at]), "encoding": axes, "mark": name | {"aria": False} | place},
    ]


def _beside(points: Sequence[ChartPoint], kinds: Sequence[str], data: Any, axes: Spec, color: Spec) -> list[Spec]:
    """Dots and diamonds: in their series' colour, or in ink where the series is not a line."""
    if not points:
        return []
    mark = {"type": "point", "filled": True, "opacity": 1, "size": 75}
    shape, tip = {"shape": ax.kind_channel(kinds)}, {"description": {"field": "say"}}
    of_lines, others = [p for p in points if not p.named], [p for p in points if p.named]
    layers: list[Spec] = []
    if of_lines:
        layers.append({"data": data(of_lines), "mark": mark, "encoding": axes | shape | {"color": color} | tip})
    if others:
        ink = mark | {"color": INK.light, "size": 90}
        layers.append({"data": data(others), "mark": ink, "encoding": axes | shape | tip})
    return layers


def _names(named: Sequence[ChartPoint], points: Sequence[ChartPoint], data: Any, axes: Spec) -> list[Spec]:
    """The series beside a published value: right of the last, below the others."""
    layers: list[Spec] = []
    for last, place in ((True, {"align": "left", "dx": 9}), (False, {"align": "center", "dy": 14})):
        some = [p for p in named if _is_last(p, points) == last]
        if some:
            mark = {"type": "text", "fontSize": 11, "color": INK.light, "aria": False, **place}
            text = {"text": {"field": "c", "type": "nominal"}}
            layers.append({"data": data(some), "mark": mark, "encoding": axes | text})
    return layers


def _is_last(point: ChartPoint, points: Sequence[ChartPoint]) -> bool:
    return not ax.is_number(point.x) or point.x >= max(p.x for p in points)
