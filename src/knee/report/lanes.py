"""Stretches of time in lanes, to zoom into by mouse, touch and keyboard; whole and still without a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from knee.report.html import Markup, tag

WIDE = 1_000.0
"""Width of the drawing; it is stretched to its place."""
BUTTONS = (
    ("in", "Zoom in"),
    ("out", "Zoom out"),
    ("left", "← Earlier"),
    ("right", "Later →"),
    ("all", "All"),
    ("previous", "Previous stretch"),
    ("next", "Next longest stretch"),
)
HELP = (
    "Drag over a part to zoom into it; on a touch screen drag to move. Ctrl with the wheel zooms. With the keyboard, "
    "once the drawing has the focus: + and - zoom, the arrows move, 0 shows all, n and p go from the longest stretch "
    "to the shortest and back."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStyle:
    """How some spans are drawn: a class of the page's style, and how far inside their lane."""

    name: str
    inset: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpan:
    """One drawn stretch, in ticks."""

    row: int
    start: int
    length: int
    look: int
    """Index into the looks; those of lower index are drawn first."""
    kind: int = -1
    """Index into the words; -1: it is only drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A whole drawing."""

    rows: tuple[str, ...]
    total: int
    """Ticks from its left to its right."""
    tick_ns: int
    looks: tuple[LaneStyle, ...]
    spans: tuple[LaneSpan, ...]
    words: tuple[str, ...]
    """What ran in a span, each once."""
    order: tuple[int, ...]
    """Spans that Next goes through."""
    verb: str
    """Between a span's length and its place: `` exposed``."""
    high: int
    label: str
    """For those who do not see it."""
    hint: str
    """What is said before anything is chosen."""


def draw_lanes(lanes: Lanes, help_: str = HELP) -> Markup:
    """The drawing with its buttons and data; ``script`` goes once onto the page."""
    tools = tag(
        "div",
        *(tag("button", words, type="button", name_=name) for name, words in BUTTONS),
        raw=True,
        class_="tools",
        hidden=True,
        role="group",
        aria_label="Zoom and move",
    )
    names = tag(
        "div",
        *(tag("span", name, style=f"height:{lanes.high}px;line-height:{lanes.high}px") for name in lanes.rows),
        raw=True,
        class_="ranks",
        aria_hidden="true",
    )
    plot = tag(
        "div",
        _svg(lanes),
        tag("div", class_="box", hidden=True),
        raw=True,
        class_="plot",
        tabindex="0",
        role="group",
        aria_label=lanes.label.partition(". ")[0],
    )
    data = {
        "total": lanes.total,
        "unit": lanes.tick_ns,
        "rows": lanes.rows,
        "kinds": lanes.words,
        "looks": [look.name for look in lanes.looks],
        "insets": [look.inset for look in lanes.looks],
        "high": lanes.high,
        "verb": lanes.verb,
        "order": lanes.order,
        "spans": [[span.row, span.start, span.length, span.look, span.kind] for span in lanes.spans],
    }
    said = [tag("output", lanes.hint, aria_live="polite"), *([tag("p", help_, class_="help")] if help_ else [])]
    inlined = tag("script", json_in_html(data), raw=True, type="application/json")
    return tag("div", tools, names, plot, _axis(lanes), *said, inlined, raw=True, class_="timeline")


def script() -> Markup:
    """What makes every drawing of a page zoom."""
    return tag("script", resources.files("knee.report").joinpath("timeline.js").read_text(encoding="utf-8"), raw=True)


def json_in_html(data: Any) -> str:
    """JSON that no name can leave: a script element ends at the first ``</``, and ``<!--`` opens a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _svg(lanes: Lanes) -> Markup:
    """A path for each look."""
    scale = WIDE / max(lanes.total, 1)
    paths = "".join(
        f'<path class="{look.name}" d="{_path([s for s in lanes.spans if s.look == i], look, lanes.high, scale)}"/>'
        for i, look in enumerate(lanes.looks)
    )
    tall = lanes.high * len(lanes.rows)
    return tag(
        "svg",
        Markup(f'{paths}<path class="chosen" d=""/>'),
        raw=True,
        viewBox=f"0 0 {WIDE:.0f} {tall}",
        height=str(tall),
        preserveAspectRatio="none",
        role="img",
        aria_label=lanes.label,
    )


def _path(spans: Sequence[LaneSpan], look: LaneStyle, high: int, scale: float) -> str:
    """Numbers only, so nothing to escape; without a width nothing is drawn."""
    tall = high - 2 * look.inset
    parts = []
    for s in spans:
        wide = max(s.length * scale, 0.01)
        parts.append(f"M{_short(s.start * scale)} {s.row * high + look.inset}h{_short(wide)}v{tall}h-{_short(wide)}z")
    return "".join(parts)


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".") or "0"


def _axis(lanes: Lanes) -> Markup:
    """Three ticks; a script makes them finer."""
    marks = (0.0, 1 / 3, 2 / 3)
    total_ms = lanes.total * lanes.tick_ns / 1e6
    ticks = (tag("span", f"{total_ms * at:,.1f} ms", style=f"left:{at:.2%}") for at in marks)
    return tag("div", *ticks, raw=True, class_="axis", aria_hidden="true")
