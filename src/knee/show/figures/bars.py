"""Bars: one value for each thing, or the parts of a step. Lying down where names are too long to stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.show.figures import axes as ax
from knee.show.figures.labels import axis_unit, format_value, label, value_with_name
from knee.show.figures.lines import ChartPoint
from knee.show.figures.palette import BAR, INK, PARTS, MarkStyle
from knee.show.figures.vega import Spec

PART_COLUMNS = {
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "bubble": "bubble_s",
    "idle": "idle_s",
    "overlapped": "overlapped_comm_s",
}
"""Parts of a step; the last horizontal beside compute, in a bar of its own."""
OVERLAPPED = "overlapped"
FACET_HEIGHT = 104
LYING = 20
"""Pixels of a bar that lies."""
ROOM_FOR_VALUE = 30
"""Pixels that a number over a bar needs."""
LONGEST_NAME = 170
"""Pixels of a name beside a bar that lies."""
ROOM_ABOVE = 1.08
"""How far an axis goes, in times of the highest bar, where a number stands over it."""


def bars(points: Sequence[ChartPoint], *, x: str, y: str, zero: bool = True) -> Spec:
    """Grouped by series; measured values are dots, published ones hollow diamonds on the bars."""
    places = list(dict.fromkeys(format_value(x, p.x) for p in points))
    groups = list(dict.fromkeys(p.series for p in points if not p.named))
    single = len(groups) == 1 or groups == places
    horizontal = is_horizontal(places)
    axis, factor = ax.y_axis(y, [p.y for p in points], zero=zero)
    category = _category(x, places, horizontal=horizontal)
    if horizontal:
        axis["axis"].pop("minExtent")
    channels = {"y": category, "x": axis} if horizontal else {"x": category, "y": axis}
    styles = dict.fromkeys(groups, BAR) if single else ax.series_styles(groups)
    offset = {} if single else {"yOffset" if horizontal else "xOffset": {"field": "c", "scale": {"domain": groups}}}
    color = ax.nominal(groups, [style.light for style in styles.values()], None if single else ax.legend(groups))

    def data(some: Sequence[ChartPoint]) -> Spec:
        return {"values": [_value(p, x, y, factor, single=single) for p in some]}

    drawn = [p for p in points if p.kind in ("simulated", "catalogue")]
    tip = {"description": {"field": "say"}}
    layers: list[Spec] = [
        {"data": data(drawn), "mark": {"type": "bar"}, "encoding": channels | offset | {"color": color} | tip}
    ]
    thin = (ax.WIDTH / max(1, len(places))) / (1 if single else len(groups)) < ROOM_FOR_VALUE
    kinds = [kind for kind in ("measured", "published") if any(p.kind == kind for p in points)]
    if (horizontal or not thin) and not kinds:
        if not horizontal:  # numbers stand over the bars, not in the legend
            axis["scale"]["domainMax"] = ROOM_ABOVE * max(0.0, *(p.y * factor for p in drawn))
        place = {"align": "left", "dx": 4} if horizontal else {"baseline": "bottom", "dy": -3}
        mark = {"type": "text", "fontSize": 10, "color": INK.light, "aria": False, **place}
        words = {"text": {"field": "words", "type": "nominal"}}
        layers.append({"data": data(drawn), "mark": mark, "encoding": channels | offset | words})
    if kinds:
        some = [p for p in points if p.kind in kinds]
        dot = {"type": "point", "filled": True, "color": INK.light, "opacity": 1, "size": 75}
        shape = {"shape": ax.kind_channel(kinds)}
        layers.append({"data": data(some), "mark": dot, "encoding": channels | offset | shape | tip})
    step = LYING if single else 13 * len(groups) + 4
    height = {"step": step, "for": "position"} if horizontal else ax.HEIGHT
    size = {"width": _width(places, horizontal=horizontal), "height": height}
    shown_legends = [*([] if single else [groups]), *([kinds] if kinds else [])]
    return ax.with_config(size | {"layer": layers}, legends=shown_legends)


def _value(p: ChartPoint, x: str, y: str, factor: float, *, single: bool) -> Spec:
    place = format_value(x, p.x)
    who = place if single or p.series == place else f"{p.series}, {label(x, p.x)}"
    unit = axis_unit(y, abs(p.y))
    note = f" ({p.note})" if p.note else ""
    words = format_value(y, p.y, unit) if abs(p.y * factor) >= 1 else format_value(y, p.y)
    return {
        "c": p.series,
        "x": place,
        "y": p.y * factor,
        "k": p.kind,
        "words": _short(words),
        "say": f"{who}: {value_with_name(y, p.y)}, {p.kind}{note}",
    }


def _short(words: str) -> str:
    """Over a bar: without thousands of millions."""
    number = float(words.replace(",", "")) if words.replace(",", "").replace(".", "").isdigit() else None
    if number is None or number < 1e5:
        return words
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number / 1e3:.0f}k"


def is_horizontal(places: Sequence[str]) -> bool:
    """Whether names are too long to stand side by side."""
    return max((ax.text_width(place, 11) for place in places), default=0.0) + 3 > ax.WIDTH / max(1, len(places))


def _width(places: Sequence[str], *, horizontal: bool) -> float:
    """Beside long names bars are shorter: a wider picture would have smaller text on a phone."""
    longest = min(LONGEST_NAME, max(ax.text_width(place, 11) for place in places)) if horizontal else 0.0
    return ax.WIDTH - max(0.0, round(longest - 1.5 * ax.AXIS_WIDTH))


def _category(column: str, places: Sequence[str], *, horizontal: bool) -> Spec:
    axis: Spec = {
        "labelOverlap": False,
        "grid": False,
        "ticks": False,
        "labelFontSize": 11,
        "domain": not horizontal,
        "labelLimit": LONGEST_NAME,
    }
    return {
        "field": "x",
        "type": "ordinal",
        "title": ax.title_of(column),
        "scale": {"domain": list(places), "paddingInner": 0.22, "paddingOuter": 0.12},
        "axis": axis if horizontal else axis | {"labelAngle": 0},
    }


# ---- parts of a step -------------------------------------------------------------------------------------------------

Parts = tuple[str, Any, Mapping[str, float]]
"""Series, place on the axis, seconds of each part."""


def parts(steps: Sequence[Parts], *, x: str, shares: bool = False) -> Spec:
    """A stack for each step, and beside it, dashed, what hides behind compute; in shares the stack alone."""
    series = list(dict.fromkeys(name for name, _, _ in steps))
    places = list(dict.fromkeys(format_value(x, value) for _, value, _ in steps))
    most = max(sum(v for part, v in of.items() if part != OVERLAPPED) for _, _, of in steps)
    unit = axis_unit("step_s", most)
    names = [part for part in PART_COLUMNS if not (shares and part == OVERLAPPED)]
    names = [part for part in names if any(of.get(part, 0.0) > 0 for _, _, of in steps)]
    values: list[Spec] = []
    for name, place, of in steps:
        step = sum(v for part, v in of.items() if part != OVERLAPPED)
        who = f"{name}, {label(x, place)}" if len(series) > 1 else label(x, place)
        for order, part in enumerate(names):
            seconds = of.get(part, 0.0)
            share = seconds / step if step else 0.0
            bar, whole = (
                ("overlapped", "beside compute") if part == OVERLAPPED else ("step", f"{share:.1%} of the step")
            )
            say = f"{who}: {part} {label('step_s', seconds)}, {whole}"
            amount_of = 100 * share if shares else seconds * unit.factor
            if seconds > 0:
                value = {"c": name, "x": format_value(x, place), "y": amount_of, "part": part, "order": order}
                values.append(value | {"bar": bar, "say": say})
    horizontal = is_horizontal(places)
    axis = {"tickCount": 4, "labelExpr": ax.PLAIN_NUMBER} | ({} if horizontal else {"minExtent": ax.AXIS_WIDTH})
    amount: Spec = {
        "field": "y",
        "type": "quantitative",
        "stack": "zero",
        "axis": axis,
        "title": "share of the step (%)" if shares else f"{unit.word} per step",
    }
    if shares:
        amount["scale"] = {"domain": [0, 100]}
    category = _category(x, places, horizontal=horizontal)
    channels = {"y": category, "x": amount} if horizontal else {"x": category, "y": amount}
    if not shares and OVERLAPPED in names:
        channels["yOffset" if horizontal else "xOffset"] = {"field": "bar", "scale": {"domain": ["step", "overlapped"]}}
    chart: Spec = {
        "mark": {"type": "bar", "strokeWidth": 1},
        "encoding": channels
        | part_channels({name: PARTS[name] for name in names}, ax.legend(names, symbol=20) | {"symbolStrokeWidth": 1})
        | {"order": {"field": "order", "type": "quantitative"}, "description": {"field": "say"}},
        "width": _width(places, horizontal=horizontal),
        "height": {"step": 34, "for": "position"}
        if horizontal
        else FACET_HEIGHT
        if len(series) > 1
        else ax.HEIGHT - 20,
    }
    spec: Spec = {"data": {"values": values}}
    if len(series) > 1:
        header = {"title": None, "labelAngle": 0, "labelAnchor": "start", "labelOrient": "top", "labelPadding": 4}
        facet = {"row": {"field": "c", "type": "nominal", "sort": series, "header": header, "title": None}}
        spec |= {"facet": facet, "spacing": 8, "spec": chart}
    else:
        spec |= chart
    return ax.with_config(spec)


def part_channels(styles: Mapping[str, MarkStyle], shown_as: Spec) -> Spec:
    """The parts' own colours everywhere; dashes show on pale areas only."""

    def channel(values: list[Any]) -> Spec:
        return ax.nominal(list(styles), values, shown_as) | {"field": "part"}

    return {
        "fill": channel([style.fill for style in styles.values()]),
        "stroke": channel([style.light for style in styles.values()]),
        "strokeDash": channel([list(style.dash) if style.fill_light else [1, 0] for style in styles.values()]),
    }
