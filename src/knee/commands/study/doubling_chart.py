"""What each doubling of the GPUs buys: bars against the ideal and against what still pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from knee.commands.study.quantities import Row
from knee.show.figures.axes import AXIS_WIDTH, WIDTH, with_config
from knee.show.figures.palette import BAR, IDEAL, INK, MUTED, PARTS
from knee.show.figures.vega import Spec
from knee.specs.defaults import THRESHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubling:
    """From one count of GPUs to twice as many."""

    from_gpus: int
    to_gpus: int
    speedup: float
    """Tokens/s over those before; 2 is ideal."""


def doublings_of(rows: Sequence[Row]) -> list[Doubling]:
    """Of one curve; counts that are not twice the last are passed over."""
    ordered = sorted(rows, key=lambda row: int(row["gpus"]))
    return [
        Doubling(from_gpus=a["gpus"], to_gpus=b["gpus"], speedup=b["tokens_per_s"] / a["tokens_per_s"])
        for a, b in pairwise(ordered)
        if b["gpus"] == 2 * a["gpus"]
    ]


def doublings(found: Sequence[Doubling]) -> Spec:
    """A bar for each; those that buy less than what pays are orange."""
    values = [
        {
            "x": f"{d.to_gpus:,}",
            "y": d.speedup,
            "words": f"{d.speedup:.2f}x",
            "c": "pays" if d.speedup >= THRESHOLD else "not",
            "say": f"from {d.from_gpus:,} to {d.to_gpus:,} GPUs: {d.speedup:.2f}x the tokens/s",
        }
        for d in found
    ]
    x = {
        "field": "x",
        "type": "ordinal",
        "title": "doubling to so many GPUs",
        "sort": None,
        "axis": {"labelAngle": 0, "labelOverlap": False, "ticks": False, "labelFontSize": 11},
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "title": "times the tokens/s",
        "scale": {"domain": [1, 2.1], "clamp": True},
        "axis": {"values": [1, 1.25, 1.5, 1.75, 2], "format": ".2f", "minExtent": AXIS_WIDTH},
    }
    color = {
        "field": "c",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": ["pays", "not"], "range": [BAR.light, PARTS["exposed"].light]},
    }
    lines = [{"y": 2.0, "words": "ideal"}, {"y": THRESHOLD, "words": "pays"}]
    dashed = {"type": "rule", "aria": False, "strokeDash": [5, 3], "color": IDEAL.light}
    rule = {"data": {"values": lines}, "mark": dashed, "encoding": {"y": y}}
    named = {
        "data": {"values": lines},
        "mark": {"type": "text", "aria": False, "align": "left", "x": WIDTH + 5, "fontSize": 11, "color": MUTED.light},
        "encoding": {"y": y, "text": {"field": "words"}},
    }
    bar = {
        "mark": {"type": "bar"},
        "encoding": {"x": x, "y": y, "y2": {"datum": 1}, "color": color, "description": {"field": "say"}},
    }
    # in a row over the line of the ideal, because a number on its bar would lie under one line or the other
    above = {"type": "text", "aria": False, "fontSize": 10.5, "baseline": "bottom", "y": 12, "color": INK.light}
    number = {"mark": above, "encoding": {"x": x, "text": {"field": "words"}}}
    return with_config({"width": WIDTH, "height": 170, "data": {"values": values}, "layer": [rule, bar, number, named]})
