"""Stretches of time in lanes, to zoom into by mouse, touch and keyboard; whole and still without a script.

This is the one drawing that Vega does not make. A page holds Vega's pictures as SVG, which does not zoom. Vega's own
runtime zooms, but it would add about a megabyte of script to every page, and an element for each of thousands of spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

WIDTH = 1_000.0
"""Of the drawing; it is stretched to its place. The template and timeline.js have the same number."""
TICKS = (0.0, 1 / 3, 2 / 3)
"""Places of the axis's labels; the script makes them finer."""


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
    style: int
    """Index into the styles; those of lower index are drawn first."""
    kind: int = -1
    """Index into the words; -1: it is only drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A whole drawing."""

    block: ClassVar[str] = "lanes"
    rows: tuple[str, ...]
    total: int
    """Ticks from its left to its right."""
    tick_ns: int
    styles: tuple[LaneStyle, ...]
    spans: tuple[LaneSpan, ...]
    words: tuple[str, ...]
    """What ran in a span, each once."""
    order: tuple[int, ...]
    """Spans that Next goes through."""
    verb: str
    """Between a span's length and its place: `` exposed``."""
    row_height: int
    """Pixels of a lane."""
    label: str
    """For those who do not see it."""
    hint: str
    """What is said before anything is chosen."""
    help: bool = True
    """Whether it says how to zoom."""

    def paths(self) -> Iterator[tuple[str, str]]:
        """Each style with all of its spans as one path."""
        for number, style in enumerate(self.styles):
            yield style.name, "".join(self._box(span) for span in self.spans if span.style == number)

    def _box(self, span: LaneSpan) -> str:
        scale, inset = WIDTH / max(self.total, 1), self.styles[span.style].inset
        x, y = _short(span.start * scale), span.row * self.row_height + inset
        width = _short(max(span.length * scale, 0.01))  # without a width nothing is drawn
        return f"M{x} {y}h{width}v{self.row_height - 2 * inset}h-{width}z"

    def ticks(self) -> Iterator[tuple[str, str]]:
        """Place and label of each."""
        total_ms = self.total * self.tick_ns / 1e6
        for at in TICKS:
            yield f"{at:.2%}", f"{total_ms * at:,.1f} ms"

    def data(self) -> dict[str, Any]:
        """What timeline.js reads."""
        return {
            "total": self.total,
            "unit": self.tick_ns,
            "rows": self.rows,
            "kinds": self.words,
            "looks": [style.name for style in self.styles],
            "insets": [style.inset for style in self.styles],
            "high": self.row_height,
            "verb": self.verb,
            "order": self.order,
            "spans": [[span.row, span.start, span.length, span.style, span.kind] for span in self.spans],
        }


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".") or "0"
