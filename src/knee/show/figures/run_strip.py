"""A month of a run as a strip: one line for each day, coloured by what the GPUs did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from knee.show.figures.axes import WIDTH, legend, nominal, with_config
from knee.show.figures.palette import BAR, SERIES
from knee.show.figures.vega import Spec

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
        "color": nominal(names, [SPANS[name].light for name in names], legend(names)),
        "tooltip": [{"field": "say"}],
    }
    chart = {"data": {"values": values}, "mark": {"type": "bar", "height": {"band": 0.86}}, "encoding": encoding}
    return with_config(chart | {"width": WIDTH, "height": LINE * max(len(days), 2)}, legends=[names])


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
