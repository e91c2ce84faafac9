"""The weak scaling drawn: throughput, throughput per GPU, time per step, power, tokens per joule, against GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knee.figures.palette import IDEAL, INK, MUTED, PARTS, SERIES
from knee.figures.vega import CONFIG, Spec, load
from knee.study.weak_scaling import PaperPoint, Row

WIDTH, HEIGHT = 312, 220
"""Small enough to read on a phone without shrinking, and to stand side by side on a desk."""
PART_COLUMNS = {
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "bubble": "bubble_s",
    "idle": "idle_s",
    "overlapped": "overlapped_comm_s",
}
GPU_LABEL = "format(datum.value, ',')"
"""Vega expression of a tick: 2,048."""
SHORT_LABEL = "datum.value < 1e6 ? format(datum.value / 1e3, '~f') + 'k' : format(datum.value / 1e6, '~f') + 'M'"
SMALLEST_TICK = 62_500
"""tokens/s; its doublings are round numbers: 125k, 250k, 500k, 1M."""
ROOM = 1.32
"""The GPU axis goes on by this factor beyond the last count, for the names beside its points."""
AXIS_WIDTH = 34
"""Of the labels of every y axis, so that charts under each other line up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart and what belongs beside it."""

    id: str
    title: str
    caption: str
    spec: Spec
    columns: tuple[str, ...]
    """Columns of the records that it shows: the table behind it."""


def figures(rows: Sequence[Row], points: Sequence[PaperPoint]) -> list[Figure]:
    """All figures of the weak scaling, in reading order."""
    return [
        throughput(rows, points),
        throughput_per_gpu(rows, points),
        time_per_step(rows),
        power(rows, points),
        tokens_per_joule(rows, points),
    ]


def throughput(rows: Sequence[Row], points: Sequence[PaperPoint]) -> Figure:
    """Tokens per second of all GPUs, both axes log2, with the ideal line."""
    top = max(row.ideal_tokens_per_s for row in rows)
    ticks = [SMALLEST_TICK * 2**k for k in range(40) if SMALLEST_TICK * 2**k <= top]
    return Figure(
        id="throughput",
        title="Tokens per second, all GPUs",
        caption="Both axes double at every grid line; the wide grey line is ideal scaling from 8 GPUs. Diamonds: the "
        "paper's stated changes, put on the simulated 128 GPUs.",
        columns=("plan", "gpus", "tokens_per_s", "ideal_tokens_per_s"),
        spec=_against_gpus(
            rows,
            points,
            "tokens_per_s",
            ideal="ideal_tokens_per_s",
            ideal_label_gpus=64,
            y={
                "scale": {"type": "log", "base": 2, "nice": False, "domain": [ticks[0], top]},
                "axis": {"values": ticks, "labelExpr": SHORT_LABEL, "labelOverlap": False, "title": "tokens/s"},
            },
        ),
    )


def throughput_per_gpu(rows: Sequence[Row], points: Sequence[PaperPoint]) -> Figure:
    """Tokens per second of one GPU."""
    return Figure(
        id="throughput-per-gpu",
        title="Tokens per second per GPU",
        caption="Flat would be ideal: the wide grey line is FSDP on 8 GPUs. Diamonds: the paper's stated changes, "
        "put on the simulated 128 GPUs.",
        columns=("plan", "gpus", "tokens_per_s_per_gpu", "ideal_tokens_per_s_per_gpu", "mfu_frac"),
        spec=_against_gpus(
            rows,
            points,
            "tokens_per_s_per_gpu",
            ideal="ideal_tokens_per_s_per_gpu",
            y={
                "scale": {"zero": True},
                "axis": {"format": ",.0f", "tickCount": 6, "title": "tokens/s per GPU"},
            },
        ),
    )


def power(rows: Sequence[Row], points: Sequence[PaperPoint]) -> Figure:
    """Watts of one GPU."""
    return Figure(
        id="power",
        title="Power per GPU",
        caption="The axis starts at 560 W, to show a change of a few per cent. Diamonds: the paper's watts, "
        "for TP its 620 W plus 30 W.",
        columns=("plan", "gpus", "power_w_per_gpu"),
        spec=_against_gpus(
            rows,
            points,
            "power_w_per_gpu",
            y={
                "scale": {"domain": [560, 700], "nice": False},
                "axis": {"values": list(range(560, 701, 20)), "title": "W per GPU"},
            },
        ),
    )


def tokens_per_joule(rows: Sequence[Row], points: Sequence[PaperPoint]) -> Figure:
    """Tokens for each joule that the GPUs draw."""
    return Figure(
        id="tokens-per-joule",
        title="Tokens per joule",
        caption="Watts barely fall while tokens do, so each token costs more. Diamonds: derived from the paper's "
        "stated changes of throughput and power, put on the simulated 128 GPUs.",
        columns=("plan", "gpus", "tokens_per_j"),
        spec=_against_gpus(
            rows,
            points,
            "tokens_per_j",
            y={
                "scale": {"zero": True},
                "axis": {"tickCount": 6, "title": "tokens per joule"},
            },
        ),
    )


def time_per_step(rows: Sequence[Row]) -> Figure:
    """Where a step's time goes: a stack per GPU count, with overlapped communication beside it."""
    alt = load("altair")
    values = [
        {
            "plan": row.plan,
            "gpus": row.gpus,
            "part": part,
            "time_s": getattr(row, column),
            "order": order,
            "bar": "overlapped" if part == "overlapped" else "step",
        }
        for row in rows
        for order, (part, column) in enumerate(PART_COLUMNS.items())
        if getattr(row, column) > 0
    ]
    names = list(PART_COLUMNS)
    legend = alt.Legend(columns=3)
    part = {
        "fill": alt.Fill("part:N", legend=legend, scale=alt.Scale(domain=names, range=[PARTS[n].fill for n in names])),
        "stroke": alt.Stroke(
            "part:N", legend=legend, scale=alt.Scale(domain=names, range=[PARTS[n].light for n in names])
        ),
        "strokeDash": alt.StrokeDash(
            "part:N", legend=legend, scale=alt.Scale(domain=names, range=[list(PARTS[n].dash) for n in names])
        ),
    }
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_bar(strokeWidth=1)
        .encode(
            x=alt.X(
                "gpus:O",
                title="GPUs",
                axis=alt.Axis(labelExpr=GPU_LABEL, labelAngle=0, labelOverlap=False, labelFontSize=11, grid=False),
            ),
            xOffset=alt.XOffset("bar:N", scale=alt.Scale(domain=["step", "overlapped"])),
            y=alt.Y("time_s:Q", title="s per step", stack="zero", axis=alt.Axis(tickCount=4, minExtent=AXIS_WIDTH)),
            order=alt.Order("order:Q"),
            **part,
        )
        .properties(width=WIDTH, height=104)
        .facet(
            row=alt.Row(
                "plan:N",
                sort=list(dict.fromkeys(row.plan for row in rows)),
                title=None,
                header=alt.Header(labelAngle=0, labelAnchor="start", labelOrient="top", labelPadding=4),
            ),
            spacing=8,
        )
    )
    return Figure(
        id="time-per-step",
        title="Time per step, by what the GPU does",
        caption="The left bar of each pair is the step: compute, exposed communication, bubble (none without a "
        "pipeline) and idle add up to it. The right bar, dashed, is communication that hides beside compute.",
        columns=("plan", "gpus", "step_s", *PART_COLUMNS.values()),
        spec=_finish(chart),
    )


def _against_gpus(
    rows: Sequence[Row],
    points: Sequence[PaperPoint],
    metric: str,
    *,
    y: dict[str, Any],
    ideal: str | None = None,
    ideal_label_gpus: int | None = None,
) -> Spec:
    """A line for each simulated plan, dots where measured, hollow diamonds where published."""
    alt = load("altair")
    counts = sorted({row.gpus for row in rows})
    axes = {
        "x": _gpu_axis(counts),
        "y": alt.Y("value:Q", scale=alt.Scale(**y["scale"]), axis=alt.Axis(minExtent=AXIS_WIDTH, **y["axis"])),
    }
    layers = _ideal_layers(rows, ideal, ideal_label_gpus, axes) if ideal else []
    values = [{"plan": row.plan, "gpus": row.gpus, "value": getattr(row, metric), "kind": row.kind} for row in rows]
    series = _series(list(dict.fromkeys(row.plan for row in rows)))
    simulated = alt.Data(values=[v for v in values if v["kind"] == "simulated"])
    # later plans are drawn dashed over earlier ones, so that lines on top of each other all show
    layers.append(alt.Chart(simulated).mark_line(strokeWidth=2.2, strokeCap="butt").encode(**axes, **series))
    measured = [v for v in values if v["kind"] == "measured"]
    if measured:
        layers.append(
            alt.Chart(alt.Data(values=measured))
            .mark_point(filled=True, size=45, opacity=1)
            .encode(**axes, color=series["color"])
        )
    layers += _paper_layers([p for p in points if p.metric == metric], axes)
    return _finish(alt.layer(*layers).properties(width=WIDTH, height=HEIGHT))


def _series(plans: Sequence[str]) -> dict[str, Any]:
    """A colour and a dash for each plan, in one legend."""
    alt = load("altair")
    looks = [SERIES[i % len(SERIES)] for i in range(len(plans))]
    legend = alt.Legend(symbolType="stroke", symbolSize=300)
    return {
        "color": alt.Color(
            "plan:N", legend=legend, scale=alt.Scale(domain=plans, range=[look.light for look in looks])
        ),
        "strokeDash": alt.StrokeDash(
            "plan:N", legend=legend, scale=alt.Scale(domain=plans, range=[list(look.dash) for look in looks])
        ),
    }


def _gpu_axis(counts: Sequence[int]) -> Any:
    """log2, a tick at every count; labels are never dropped, not even the last."""
    alt = load("altair")
    return alt.X(
        "gpus:Q",
        scale=alt.Scale(type="log", base=2, domain=[counts[0], counts[-1] * ROOM], nice=False),
        axis=alt.Axis(
            values=list(counts),
            title="GPUs",
            labelExpr=GPU_LABEL,
            labelOverlap=False,
            labelFlush=False,
            labelBound=False,
            labelFontSize=11,
        ),
    )


def _ideal_layers(rows: Sequence[Row], column: str, label_gpus: int | None, axes: dict[str, Any]) -> list[Any]:
    """A wide pale band with its name, drawn first, so that a line on it still shows."""
    alt = load("altair")
    values = [{"gpus": gpus, "value": value} for gpus, value in sorted({(r.gpus, getattr(r, column)) for r in rows})]
    line = alt.Chart(alt.Data(values=values)).encode(**axes)
    named = alt.Chart(alt.Data(values=[v for v in values if v["gpus"] == (label_gpus or values[-1]["gpus"])]))
    place = {"align": "right", "dx": -8, "dy": -8} if label_gpus else {"align": "left", "dx": 7}
    return [
        line.mark_line(color=IDEAL.light, strokeWidth=7, opacity=0.6, strokeCap="round"),
        named.encode(**axes).mark_text(text="ideal", fontSize=11, color=MUTED.light, **place),
    ]


def _paper_layers(points: Sequence[PaperPoint], axes: dict[str, Any]) -> list[Any]:
    """Hollow diamonds, each with the paper's plan beside it."""
    alt = load("altair")
    if not points:
        return []
    last = max(p.gpus for p in points)
    base = alt.Chart(
        alt.Data(
            values=[
                {"gpus": p.gpus, "value": p.value, "plan": p.plan, "kind": "paper", "last": p.gpus == last}
                for p in points
            ]
        )
    ).encode(**axes)
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(domain=["paper"], range=["diamond"]),
        legend=alt.Legend(symbolStrokeColor=INK.light, symbolFillColor="transparent", padding=3),
    )  # on one line with the other legend
    name = {"fontSize": 11, "color": INK.light}
    return [
        base.mark_point(filled=False, size=90, strokeWidth=1.6, stroke=INK.light, opacity=1).encode(shape=shape),
        base.mark_text(align="left", dx=8, **name).encode(text="plan:N").transform_filter("datum.last"),
        base.mark_text(align="center", dy=14, **name).encode(text="plan:N").transform_filter("!datum.last"),
    ]


def _finish(chart: Any) -> Spec:
    spec: Spec = chart.to_dict()
    return spec | {"config": CONFIG}
