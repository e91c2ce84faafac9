"""A scaling curve drawn: in the terminal as bars, or as Vega-Lite in a file."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.figures.palette import IDEAL, INK, SERIES
from knee.figures.vega import CONFIG, PAPER, Spec, load, to_svg
from knee.files import write_bytes, write_text

ENDINGS = (".svg", ".png", ".html", ".json")
WIDTH, HEIGHT = 340, 240
BAR = 40
"""Characters of the longest bar."""
EIGHTHS = " ▏▎▍▌▋▊▉"
GPU_LABEL = "format(datum.value, ',')"
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
        lines.append(f"tokens/s per GPU, {one.name}")
        for gpus, value in zip(one.gpus, one.per_gpu, strict=True):
            eighths = round(BAR * 8 * value / most)
            bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            knee = "" if gpus != one.knee_gpus else "  <- knee, or beyond" if one.open else "  <- knee"
            lines.append(f"  {gpus:>{wide},} {bar:<{BAR}} {value:,.0f}{knee}")
    return lines


def write(series: Sequence[ScaleSeries], path: str) -> None:
    """Draw into a file; its ending says how."""
    spec = spec_of(series)
    if path.endswith(".json"):
        write_text(Path(path), json.dumps(spec, indent=2) + "\n")
    elif path.endswith(".png"):
        # a file stands alone, so that its ground is not the reader's
        plain = spec | {"config": spec["config"] | {"background": PAPER}}
        write_bytes(Path(path), load("vl_convert").vegalite_to_png(plain, scale=2, allowed_base_urls=[]))
    elif path.endswith(".html"):
        write_text(Path(path), _page(series, to_svg(spec)))
    else:
        write_text(Path(path), to_svg(spec))


def svg_of(series: Sequence[ScaleSeries]) -> str:
    """The picture."""
    return to_svg(spec_of(series))


def chart_of(series: Sequence[ScaleSeries]) -> Any:
    """As altair's own chart, which a notebook shows and others may change."""
    return load("altair").Chart.from_dict(spec_of(series))


def spec_of(series: Sequence[ScaleSeries]) -> Spec:
    """Tokens/s and tokens/s per GPU against GPUs, with the ideal line and the knee of each curve."""
    alt = load("altair")
    values: list[dict[str, Any]] = [
        {
            "curve": one.name,
            "gpus": gpus,
            "tokens_per_s": tokens,
            "per_gpu": per_gpu,
            "ideal": one.per_gpu[0] * gpus,
            "ideal_per_gpu": one.per_gpu[0],
            "knee": gpus == one.knee_gpus and not one.open,
        }
        for one in series
        for gpus, tokens, per_gpu in zip(one.gpus, one.tokens_per_s, one.per_gpu, strict=True)
    ]
    least, most = min(v["tokens_per_s"] for v in values), max(v["ideal"] for v in values)
    # doublings of round numbers: 125k, 250k, 500k, 1M
    ticks = [tick for k in range(-20, 30) if least <= (tick := 1e6 * 2.0**k) <= most]
    both = alt.hconcat(
        _chart(
            series,
            values,
            "tokens_per_s",
            "ideal",
            {"type": "log", "base": 2, "nice": False},
            {"title": "tokens/s", "values": ticks, "labelExpr": TOKENS_LABEL, "labelOverlap": False},
        ),
        _chart(
            series, values, "per_gpu", "ideal_per_gpu", {"zero": True}, {"title": "tokens/s per GPU", "format": ",.0f"}
        ),
    )
    spec: Spec = both.to_dict()
    return spec | {"config": CONFIG}


def _chart(
    series: Sequence[ScaleSeries],
    values: list[dict[str, Any]],
    column: str,
    ideal: str,
    scale: dict[str, Any],
    axis: dict[str, Any],
) -> Any:
    alt = load("altair")
    counts = sorted({value["gpus"] for value in values})
    x = alt.X(
        "gpus:Q",
        scale=alt.Scale(type="log", base=2, domain=[counts[0], counts[-1]], nice=False),
        axis=alt.Axis(
            values=counts,
            title="GPUs",
            labelExpr=GPU_LABEL,
            labelOverlap=False,
            labelFlush=False,
            labelBound=False,
            labelFontSize=11,
        ),
    )
    y = {name: alt.Y(f"{name}:Q", scale=alt.Scale(**scale), axis=alt.Axis(**axis)) for name in (column, ideal)}
    names = [one.name for one in series]
    # nine looks: the second three have the first three's colours, and other dashes
    colours = [SERIES[i % len(SERIES)].light for i in range(len(series))]
    dashes = [list(SERIES[(i + i // len(SERIES)) % len(SERIES)].dash) for i in range(len(series))]
    legend = alt.Legend(symbolType="stroke", symbolSize=300, columns=1, direction="vertical")
    look = {
        "color": alt.Color("curve:N", legend=legend, scale=alt.Scale(domain=names, range=colours)),
        "strokeDash": alt.StrokeDash("curve:N", legend=legend, scale=alt.Scale(domain=names, range=dashes)),
    }
    data = alt.Chart(alt.Data(values=values))
    knee = data.transform_filter("datum.knee").encode(x=x, y=y[column])
    return alt.layer(
        data.mark_line(color=IDEAL.light, strokeWidth=5, opacity=0.6).encode(x=x, y=y[ideal], detail="curve:N"),
        data.mark_line(strokeWidth=2.2, strokeCap="butt").encode(x=x, y=y[column], **look),
        knee.mark_point(filled=False, size=120, strokeWidth=1.8, stroke=INK.light, opacity=1),
        knee.mark_text(text="knee", dy=-13, fontSize=11, color=INK.light),
    ).properties(width=WIDTH, height=HEIGHT)


def _page(series: Sequence[ScaleSeries], svg: str) -> str:
    """One offline page: the picture and the table behind it."""
    rows = "".join(
        f"<tr><td>{html.escape(one.name)}</td><td>{gpus:,}</td><td>{tokens:,.0f}</td><td>{per_gpu:,.0f}</td>"
        f"<td>{'' if per_j is None else f'{per_j:.4g}'}</td></tr>"
        for one in series
        for gpus, tokens, per_gpu, per_j in zip(one.gpus, one.tokens_per_s, one.per_gpu, one.tokens_per_j, strict=True)
    )
    heads = "".join(f"<th>{name}</th>" for name in ("curve", "GPUs", "tokens/s", "tokens/s per GPU", "tokens/J"))
    style = "body{font:14px sans-serif;margin:2em;background:#fff;color:#1b1f24}td,th{padding:2px 12px}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>knee scale</title><style>{style}</style>'
        f"{svg}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></html>\n"
    )
