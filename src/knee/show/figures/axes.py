"""Axes and legends of Vega-Lite, without the defaults that drop a label, merge legends or widen a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, log2
from typing import Any

from knee.show.figures.labels import COUNTS, axis_unit, format_value, heading
from knee.show.figures.palette import INK, SERIES, MarkStyle
from knee.show.figures.vega import CONFIG, SCHEMA, Spec

WIDTH, HEIGHT = 312, 200
"""Small enough to read on a phone without shrinking, and to stand side by side on a desk."""
AXIS_WIDTH = 34
"""Of the labels of every y axis, so that charts under each other line up."""
NARROW = "iljtfr.,:;|'()[] -"
"""Characters of half the width."""
LOG_COLUMNS = (
    *("gpus", "nodes", "seq_len", "message_bytes", "nic_bytes_per_s", "global_batch", "local_batch", "tp", "pp", "cp"),
    *("ep", "experts", "degree", "fsdp_ranks", "params", "days", "run_flop", "knee_flop", "usd", "mwh", "co2e_kg"),
)
DIAMOND = "M0,-1L1,0L0,1L-1,0ZM0,-.62L-.62,0L0,.62L.62,0Z"
"""A hollow diamond as an area with a hole, so that dots and diamonds share one legend."""
PLAIN_NUMBER = "format(datum.value, ',~r')"
SHORT_NUMBER = (
    "abs(datum.value) >= 1e6 ? format(datum.value / 1e6, '~f') + 'M' : "
    "abs(datum.value) >= 1e3 ? format(datum.value / 1e3, '~f') + 'k' : format(datum.value, ',~r')"
)
LARGE_NUMBER = (
    "datum.value >= 1e12 ? format(datum.value / 1e12, '~f') + 'T' : datum.value >= 1e9 ? "
    "format(datum.value / 1e9, '~f') + 'B' : format(datum.value / 1e6, '~f') + 'M'"
)
SHORT_FROM, LARGE_FROM = 1e4, 1e10
"""Axes that go so far have k and M for thousands and millions, on all of their labels."""
TITLED = {"series": None, "who": None, "model": None, "cluster": None, "gpu": None}
"""Columns whose values say what they are."""


def is_number(value: Any) -> bool:
    """A number that can stand on an axis."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def text_width(text: str, size: float = 12.0) -> float:
    """About how many pixels a label takes."""
    return size * sum(0.3 if c in NARROW else 0.7 if c.isupper() or c in "mw%" else 0.56 for c in text)


def x_axis(column: str, values: Sequence[Any], *, room: float = 0.0) -> Spec:
    """Of lines: log2 with a tick at every value, linear, or words; at its end ``room`` pixels stay free."""
    distinct = list(dict.fromkeys(values))
    if not all(map(is_number, distinct)):
        return {
            "field": "x",
            "type": "ordinal",
            "title": title_of(column),
            "scale": {"type": "point", "domain": distinct, "padding": 0.4},
            "axis": {"labelAngle": 0, "labelOverlap": False, "grid": False},
        }
    numbers, number = sorted(map(float, distinct)), {"field": "x", "type": "quantitative"}
    if column not in LOG_COLUMNS or numbers[0] <= 0 or len(numbers) < 2:
        unit = axis_unit(column, numbers[-1])
        return number | {"title": heading(column, unit), "scale": {"zero": False}, "axis": _named(column, numbers)}
    doublings = log2(numbers[-1] / numbers[0])
    end = numbers[-1] * 2 ** (doublings * room / (WIDTH - room))
    # labels are never dropped, not even the last
    axis = _named(column, fitting(column, numbers)) | {"labelOverlap": False, "labelFlush": False, "labelBound": False}
    scale = {"type": "log", "base": 2, "domain": [numbers[0], end], "nice": False}
    return number | {"title": title_of(column), "scale": scale, "axis": axis}


def title_of(column: str) -> str | None:
    """An axis's title; none where its labels say what they are. Sizes carry their own unit."""
    return TITLED.get(column, heading(column))


def fitting(column: str, numbers: Sequence[float]) -> list[float]:
    """As many of the values as have room for their labels, the first always."""
    widest = max(text_width(format_value(column, number), 11) for number in numbers) + 7
    every = max(1, ceil(len(numbers) * widest / (WIDTH + widest)))
    return list(numbers[::every])


def _named(column: str, numbers: Sequence[float]) -> Spec:
    """Ticks at these values with our own words: Vega's would be powers of ten."""
    words = {_key(number): format_value(column, _whole(number)) for number in numbers}
    return {
        "values": list(numbers),
        "labelExpr": f"({json.dumps(words, ensure_ascii=False)})['' + datum.value]",
        "labelFontSize": 11,
    }


def _whole(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def _key(number: float) -> str:
    """A number as JavaScript writes it."""
    return repr(number) if number >= 1e21 else str(_whole(number))


def y_axis(column: str, values: Sequence[float], *, zero: bool = True, log: bool = False) -> tuple[Spec, float]:
    """Of lines and bars, and what a stored value is multiplied by."""
    most, least = max(values), min(values)
    unit = axis_unit(column, most)
    base: Spec = {"field": "y", "type": "quantitative", "title": heading(column, unit)}
    short = most * unit.factor >= SHORT_FROM
    large = column in COUNTS and most >= LARGE_FROM
    words = LARGE_NUMBER if large else SHORT_NUMBER if short else PLAIN_NUMBER
    axis: Spec = {"minExtent": AXIS_WIDTH, "labelExpr": words}
    if log and least > 0:
        low, high = least * unit.factor, most * unit.factor
        # doublings of round numbers: 125k, 250k, 500k, 1M
        start = 1e9 if large else 1e6 if high >= 1e4 else 1.0
        first, last = floor(log2(low / start)), ceil(log2(high / start))
        ticks = [start * 2.0**k for k in range(first, last + 1)]
        scale: Spec = {"type": "log", "base": 2, "nice": False, "domain": [ticks[0], ticks[-1]]}
        return base | {"scale": scale, "axis": axis | {"values": ticks, "labelOverlap": False}}, unit.factor
    # bars and lines that go below zero start there
    return base | {"scale": {"zero": zero, "nice": True}, "axis": axis | {"tickCount": 5}}, unit.factor


def series_styles(names: Sequence[str]) -> dict[str, MarkStyle]:
    """A style for each; the second six have the first six's colours and other dashes."""
    count = len(SERIES)
    return {
        name: replace(SERIES[i % count], dash=SERIES[(i + i // count) % count].dash) for i, name in enumerate(names)
    }


def legend(names: Sequence[str], *, symbol: float = 30.0) -> Spec:
    """In as many columns as fit over the chart."""
    widest = max((text_width(name) for name in names), default=0.0) + symbol + 12
    return {"columns": max(1, min(len(names), int((WIDTH + AXIS_WIDTH) // widest)))}


def nominal(names: Sequence[str], values: Sequence[Any], shown_as: Spec | None) -> Spec:
    """A channel that tells series apart; the same legend for all channels of a field makes one legend."""
    return {
        "field": "c",
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(values)},
        "legend": shown_as,
    }


def line_channels(styles: Mapping[str, MarkStyle]) -> Spec:
    """Colour and dash of lines."""
    names = list(styles)
    shown_as = legend(names) | {"symbolType": "stroke", "symbolSize": 300}
    return {
        "color": nominal(names, [style.light for style in styles.values()], shown_as),
        "strokeDash": nominal(names, [list(style.dash) for style in styles.values()], shown_as),
    }


def kind_channel(kinds: Sequence[str]) -> Spec:
    """Dots for what was measured, hollow diamonds for what was published."""
    shapes = {"measured": "circle", "published": DIAMOND}
    return {
        "field": "k",
        "type": "nominal",
        "scale": {"domain": list(kinds), "range": [shapes[k] for k in kinds]},
        "legend": {"symbolFillColor": INK.light, "symbolStrokeWidth": 0, "symbolSize": 90, "padding": 3},
    }


def with_config(spec: Spec, *, legends: Sequence[Sequence[str]] = ()) -> Spec:
    """With the schema and the shared style; several legends stand under each other where they would widen the chart."""
    config = CONFIG | {"aria": True}
    total = sum(sum(text_width(name) + 42 for name in names) for names in legends)
    if len(legends) > 1 and total > WIDTH + AXIS_WIDTH:
        layout = {"top": {"anchor": "start", "direction": "vertical", "margin": 4}}
        config = config | {"legend": CONFIG["legend"] | {"layout": layout}}
    return {"$schema": SCHEMA} | spec | {"config": config}
