"""A trace drawn: where each rank's and each step's time went, transfer and waiting, kernels by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.measure.traces.device_time import KernelLoad, Times
from knee.measure.traces.rank_waits import Waiting
from knee.show.figures.axes import with_config
from knee.show.figures.bars import part_channels
from knee.show.figures.palette import COPIES, INK, PARTS, SERIES, MarkStyle
from knee.show.figures.vega import Spec
from knee.specs.metrics import METRICS

WIDTH = 340
MS = 1e3
BREAKDOWN: dict[str, MarkStyle] = {
    "compute_s": PARTS["compute"],
    "exposed_comm_s": PARTS["exposed"],
    "exposed_copies_s": COPIES,
    "idle_s": PARTS["idle"],
    "overlapped_comm_s": PARTS["overlapped"],
}
"""What a bar is made of; the last horizontal beside compute, in a bar of its own."""
OVERLAPPED = "overlapped_comm_s"
WAITING: dict[str, tuple[str, MarkStyle]] = {"transfer": ("transfer_s", SERIES[2]), "waiting": ("waiting_s", SERIES[1])}
KINDS: dict[str, MarkStyle] = {"compute": PARTS["compute"], "communication": SERIES[2]}
LONGEST_LABEL = 28


def breakdown(bars: Mapping[str, Times], *, title: str) -> Spec:
    """A stack for each bar, which adds up to its window, and a thinner one of what was hidden."""
    values = [
        {
            "bar": name,
            "part": METRICS[field].label,
            "ms": getattr(times, field) * MS,
            "order": order,
            "row": "hidden" if field == OVERLAPPED else "window",
        }
        for name, times in bars.items()
        for order, field in enumerate(BREAKDOWN)
        if getattr(times, field) > 0
    ]
    styles = {METRICS[field].label: style for field, style in BREAKDOWN.items()}
    spec = _bars(values, list(bars), title=title, styles=styles, step=26 if len(bars) <= 16 else 18)
    spec["encoding"]["yOffset"] = {
        "field": "row",
        "type": "nominal",
        "scale": {"domain": ["window", "hidden"], "paddingInner": 0.1},
    }
    return spec


def waiting(ranks: Sequence[Waiting]) -> Spec:
    """Transfer and waiting of each rank's collectives."""
    values = [
        {"bar": str(rank.rank), "part": part, "ms": getattr(rank, field) * MS, "order": order}
        for rank in ranks
        for order, (part, (field, _)) in enumerate(WAITING.items())
    ]
    styles = {part: style for part, (_, style) in WAITING.items()}
    names = [str(rank.rank) for rank in ranks]
    return _bars(values, names, title="rank", styles=styles, step=22 if len(ranks) <= 16 else 16)


def classes(loads: Sequence[KernelLoad]) -> Spec:
    """Kernel time by class, the largest first, each with its share."""
    total = sum(load.load_s for load in loads)
    values = [
        {
            "bar": class_label(load),
            "part": "communication" if load.communication else "compute",
            "ms": load.load_s * MS,
            "order": 0,
            "share": f"{load.load_s / total:.1%}" if total else "",
        }
        for load in loads
    ]
    bars = _bars(values, [str(value["bar"]) for value in values], title=None, styles=KINDS, step=22)
    place = {"y": bars["encoding"]["y"], "x": bars["encoding"]["x"]}
    share = {
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11, "color": INK.light, "aria": False},
        "encoding": place | {"text": {"field": "share", "type": "nominal"}},
    }
    mark, encoding = bars.pop("mark"), bars.pop("encoding")
    return bars | {"layer": [{"mark": mark, "encoding": encoding}, share]}


def class_label(load: KernelLoad) -> str:
    """A class's name, short enough for an axis."""
    name = load.name if len(load.name) <= LONGEST_LABEL else load.name[: LONGEST_LABEL - 1] + "…"
    return name.replace("_", " ")


def _bars(
    values: list[dict[str, Any]], names: list[str], *, title: str | None, styles: Mapping[str, MarkStyle], step: int
) -> Spec:
    """Horizontal stacks of milliseconds, one row for each name, in their order."""
    longest_ms = max((value["ms"] for value in values), default=0.0)
    spec = {
        "width": WIDTH,
        "height": {"step": step, "for": "position"},
        "data": {
            "values": [value | {"say": f"{value['bar']}: {value['part']} {value['ms']:,.3f} ms"} for value in values]
        },
        "mark": {"type": "bar", "strokeWidth": 1},
        "encoding": {
            "y": {
                "field": "bar",
                "type": "ordinal",
                "title": title,
                "scale": {"domain": list(dict.fromkeys(names)), "paddingInner": 0.25, "paddingOuter": 0.1},
                "axis": {"labelOverlap": False, "grid": False, "ticks": False, "labelLimit": 200},
            },
            "x": {
                "field": "ms",
                "type": "quantitative",
                "stack": "zero",
                "title": "ms",
                "axis": {"tickCount": 5, "format": ",~r" if longest_ms < 1 else ",~f"},
            },
            "order": {"field": "order", "type": "quantitative"},
            "description": {"field": "say"},
        }
        | part_channels(styles, {"columns": 2}),
    }
    return with_config(spec)
