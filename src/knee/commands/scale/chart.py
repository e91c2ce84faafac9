"""A scaling curve drawn: in the terminal as bars, or as Vega-Lite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knee.show.figures.axes import nominal, series_styles
from knee.show.figures.palette import IDEAL, INK
from knee.show.figures.vega import CONFIG, SCHEMA, Spec, load
from knee.specs.metrics import METRICS

PER_GPU = METRICS["tokens_per_s_per_gpu"].label
WIDTH, HEIGHT = 340, 240
BAR = 40
"""Characters of the longest bar."""
EIGHTHS = " ▏▎▍▌▋▊▉"
GPU_AXIS = {
    "title": "GPUs",
    "labelExpr": "format(datum.value, ',')",
    "labelOverlap": False,
    "labelFlush": False,
    "labelBound": False,
    "labelFontSize": 11,
}
TOKENS_LABEL = "datum.value < 1e6 ? format(datum.value / 1e3, '~f') + 'k' : format(datum.value / 1e6, '~f') + 'M'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSeries:
    """One curve: usable counts only."""

    name: str
    gpus: tuple[int, ...]
    tokens_per_s: tuple[float, ...]
    tokens_per_j: tuple[float | None, ...]
    knee_gpus: int
    open: bool
    """The knee is at the last count or beyond."""
    low_gpus: int | None = None
    """Ends of the knee's range, where its band is known."""
    high_gpus: int | None = None

    @property
    def per_gpu(self) -> list[float]:
        """Tokens/s of one GPU."""
        return [tokens / gpus for tokens, gpus in zip(self.tokens_per_s, self.gpus, strict=True)]


def bars(series: Sequence[ScaleSeries]) -> list[str]:
    """Lines of text: tokens/s per GPU at every count, all curves on one scale."""
    most = max(value for one in series for value in one.per_gpu)
    wide = max(len(f"{n:,}") for one in series for n in one.gpus)
    lines = []
    for one in series:
        lines.append(f"{PER_GPU}, {one.name}")
        for gpus, value in zip(one.gpus, one.per_gpu, strict=True):
            eighths = round(BAR * 8 * value / most)
            bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            knee = "" if gpus != one.knee_gpus else "  <- knee, or beyond" if one.open else "  <- knee"
            if not knee and one.low_gpus is not None and one.low_gpus <= gpus <= (one.high_gpus or 0):
                knee = "  <- within the knee's range"
            lines.append(f"  {gpus:>{wide},} {bar:<{BAR}} {value:,.0f} ({value / one.per_gpu[0]:.0%} of ideal){knee}")
    return lines


def chart_of(series: Sequence[ScaleSeries]) -> Any:
    """As altair's own chart, which a notebook shows and others may change."""
    spec = spec_of(series)
    config = spec["config"]
    # Vega-Lite draws it, but altair's schema does not have it
    legend = {key: value for key, value in config["legend"].items() if key != "layout"}
    return load("altair").Chart.from_dict(spec | {"config": config | {"legend": legend}})


def spec_of(series: Sequence[ScaleSeries]) -> Spec:
    """Tokens/s and tokens/s per GPU against GPUs, with the ideal line and the knee of each curve."""
    values: list[Spec] = [
        {
            "curve": one.name,
            "gpus": gpus,
            "tokens_per_s": tokens,
            "per_gpu": per_gpu,
            "ideal": one.per_gpu[0] * gpus,
            "ideal_per_gpu": one.per_gpu[0],
            "knee": gpus == one.knee_gpus,
            "label": "knee or beyond" if one.open else "knee",
            "in_range": one.low_gpus is not None and one.low_gpus <= gpus <= (one.high_gpus or 0),
        }
        for one in series
        for gpus, tokens, per_gpu in zip(one.gpus, one.tokens_per_s, one.per_gpu, strict=True)
    ]
    least, most = min(v["tokens_per_s"] for v in values), max(v["ideal"] for v in values)
    # doublings of round numbers: 125k, 250k, 500k, 1M
    ticks = [tick for k in range(-20, 30) if least <= (tick := 1e6 * 2.0**k) <= most]
    log = {
        "scale": {"type": "log", "base": 2, "nice": False},
        "axis": {
            "title": METRICS["tokens_per_s"].label,
            "values": ticks,
            "labelExpr": TOKENS_LABEL,
            "labelOverlap": False,
        },
    }
    level = {"scale": {"zero": True}, "axis": {"title": PER_GPU, "format": ",.0f"}}
    charts = [_chart(values, "tokens_per_s", "ideal", log), _chart(values, "per_gpu", "ideal_per_gpu", level)]
    return {"$schema": SCHEMA, "hconcat": charts, "config": CONFIG}


def _chart(values: list[Spec], column: str, ideal: str, axis: Spec) -> Spec:
    counts = sorted({value["gpus"] for value in values})
    x = {
        "field": "gpus",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2, "domain": [counts[0], counts[-1]], "nice": False},
        "axis": GPU_AXIS | {"values": counts},
    }
    on_ideal, on_curve = ({"x": x, "y": {"field": name, "type": "quantitative"} | axis} for name in (ideal, column))
    styles = series_styles(list(dict.fromkeys(value["curve"] for value in values)))
    legend = {"symbolType": "stroke", "symbolSize": 300, "columns": 1, "direction": "vertical"}
    channels = {
        "color": nominal(list(styles), [style.light for style in styles.values()], legend) | {"field": "curve"},
        "strokeDash": nominal(list(styles), [list(style.dash) for style in styles.values()], legend)
        | {"field": "curve"},
    }
    knee = {"transform": [{"filter": "datum.knee"}], "encoding": on_curve}
    ring = {"type": "point", "filled": False, "size": 120, "strokeWidth": 1.8, "stroke": INK.light, "opacity": 1}
    layers = [
        {
            "mark": {"type": "line", "color": IDEAL.light, "strokeWidth": 5, "opacity": 0.6},
            "encoding": on_ideal | {"detail": {"field": "curve", "type": "nominal"}},
        },
        {"mark": {"type": "line", "strokeWidth": 2.2, "strokeCap": "butt"}, "encoding": on_curve | channels},
        {
            "transform": [{"filter": "datum.in_range"}],
            "mark": {"type": "line", "strokeWidth": 9, "opacity": 0.25, "color": INK.light},
            "encoding": on_curve | {"detail": {"field": "curve", "type": "nominal"}},
        },
        {
            "transform": [{"filter": f"datum.gpus === {counts[-1]}"}],
            "mark": {"type": "text", "text": "ideal", "dx": -16, "dy": 12, "align": "right", "fontSize": 11},
            "encoding": on_ideal,
        },
        knee | {"mark": ring},
        {
            "transform": [{"filter": "datum.knee"}],
            "mark": {"type": "text", "dy": -13, "align": "right", "fontSize": 11, "color": INK.light},
            "encoding": on_curve | {"text": {"field": "label", "type": "nominal"}},
        },
    ]
    return {"width": WIDTH, "height": HEIGHT, "data": {"values": values}, "layer": layers}


def table_of(series: Sequence[ScaleSeries]) -> list[dict[str, str]]:
    """The values behind the charts, in words."""
    return [
        {
            "curve": one.name,
            "GPUs": f"{gpus:,}",
            METRICS["tokens_per_s"].label: f"{tokens:,.0f}",
            PER_GPU: f"{per_gpu:,.0f}",
            METRICS["tokens_per_j"].heading: "" if per_j is None else f"{per_j:.4g}",
        }
        for one in series
        for gpus, tokens, per_gpu, per_j in zip(one.gpus, one.tokens_per_s, one.per_gpu, one.tokens_per_j, strict=True)
    ]
