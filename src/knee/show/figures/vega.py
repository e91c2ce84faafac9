"""Vega-Lite specs and how they are drawn, with what belongs beside a chart.

The extra ``report`` (altair, vl-convert and Jinja2) is loaded when needed, and a missing one is named with its install
command.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from knee.base.errors import InputError, MissingExtra, argument
from knee.base.files import check_writable
from knee.base.processes import core_count, process_pool
from knee.show.figures.palette import GRID, INK, MUTED

# The extra ``report``: altair, vl-convert and Jinja2, loaded when needed, and how to install what is missing. Specs
# are plain dictionaries: altair takes longer to import than most answers take to compute, so that it is loaded only
# where its own chart is asked for.

INSTALL = "pip install 'knee[report]'"
FONT = "Helvetica, Arial, sans-serif"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
PAPER = "#ffffff"
"""The ground of a picture that stands alone."""
ENDINGS = (".svg", ".png", ".html", ".json")
"""Of files that a picture can be written into."""

Spec = dict[str, Any]

CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "aria": False,  # the page labels the picture and has its table; a label on every mark would drown both
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor"), MUTED.light),
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), GRID.light),
        **{"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 6, "labelPadding": 4},
    },
    "header": {"labelColor": INK.light, "labelFontSize": 12, "labelFontWeight": "bold"},
    "legend": {
        "labelColor": INK.light,
        "labelFontSize": 12,
        "title": None,
        "orient": "top",
        "direction": "horizontal",
        "columnPadding": 12,
        "symbolSize": 120,
        "symbolStrokeWidth": 2,
        "offset": 8,
        "padding": 0,
        "layout": {"top": {"anchor": "start", "direction": "horizontal", "margin": 10}},
    },
}


def load(name: str, what: str = "figures") -> Any:
    """A module of the extra, or one sentence with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{what} need {name.replace('_', '-')}, which is not installed: {INSTALL}") from error


def check_picture(file: str, *, hint: str = "for example figure.svg") -> None:
    """Refuse, before anything is drawn, a file of no known ending or one that cannot be written."""
    if not file.endswith(ENDINGS):
        text = f"{argument('plot')} {file!r}: the file name must end in one of {', '.join(ENDINGS)}"
        raise InputError(text, hint=hint, code="unknown-choice", field="plot")
    check_writable(file, "plot")


def to_svg(spec: Spec) -> str:
    """A Vega-Lite spec as SVG, without a network or a browser."""
    pool = _pool.get()
    if pool is not None:
        with suppress(Exception):  # the process was killed, say, or the chart is wrong, which shows below
            return pool.submit(draw_svg, spec).result()
    return draw_svg(spec)


def draw_svg(spec: Spec) -> str:
    """A Vega-Lite spec as SVG, drawn by this process."""
    return str(load("vl_convert").vegalite_to_svg(spec, allowed_base_urls=[]))


_pool: ContextVar[ProcessPoolExecutor | None] = ContextVar("pool", default=None)
FIRST = {"$schema": SCHEMA, "data": {"values": [{}]}, "mark": "point", "encoding": {"x": {"datum": 1}}}


@contextmanager
def drawing_beside() -> Iterator[None]:
    """Draw the charts of the block in a second process, where there is a core for it. It draws one now, because Vega
    takes a second to start."""
    if core_count() < 2:
        yield
        return
    with process_pool(1) as pool:
        pool.submit(draw_svg, FIRST)
        token = _pool.set(pool)
        try:
            yield
        finally:
            _pool.reset(token)


def standalone(spec: Spec, title: str = "") -> Spec:
    """A spec for a file of its own: on white, with its title and air around it."""
    name = {"text": title, "anchor": "start", "color": INK.light, "fontSize": 14, "offset": 10}
    return spec | ({"title": name} if title else {}) | {"background": PAPER, "padding": 14}


def to_png(spec: Spec, scale: float = 2.0) -> bytes:
    """A Vega-Lite spec as PNG on white."""
    return bytes(load("vl_convert").vegalite_to_png(spec | {"background": PAPER}, scale=scale, allowed_base_urls=[]))


def svg_to_png(svg: str, scale: float = 2.0) -> bytes:
    """A picture that was drawn before, as PNG."""
    return bytes(load("vl_convert").svg_to_png(svg, scale=scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, its words, and the rows behind it."""

    id: str
    """Unique in a page: ``fig6-1-tokens-per-second-per-gpu``."""
    title: str
    caption: str
    spec: Spec | None
    """None where there is nothing to draw."""
    columns: tuple[str, ...] = ()
    """Of the table behind it; empty: all columns of the first row."""
    rows: tuple[Mapping[str, Any], ...]
    published: tuple[Mapping[str, Any], ...] = ()
    """What was published, as rows of a table of its own."""
