"""One colour, dash and mark for each thing, everywhere; told apart without colour too.

Hues are Okabe and Ito's, safe for the common colour blindnesses, darkened where a thin line would not show on white.
A spec holds the light colours; a page maps them to the dark ones, so that one SVG serves both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkStyle:
    """How one thing is drawn."""

    light: str
    """On white; unique among all styles, because pages find it by its value."""
    dark: str
    """On near-black."""
    dash: tuple[int, ...] = (1, 0)
    """Of lines and outlines; (1, 0) is solid."""
    fill_light: str | None = None
    """Of areas, where they are paler than their outline."""
    fill_dark: str | None = None

    @property
    def fill(self) -> str:
        """Of areas, on white."""
        return self.fill_light or self.light


INK = MarkStyle(light="#1b1f24", dark="#e6e8eb")
MUTED = MarkStyle(light="#57606a", dark="#a4acb5")
GRID = MarkStyle(light="#d8dde3", dark="#3a4048")
IDEAL = MarkStyle(light="#b9c0c8", dark="#59616b")

PARTS: dict[str, MarkStyle] = {
    "compute": MarkStyle(light="#0072b2", dark="#3d9bd6"),
    "overlapped": MarkStyle(light="#56b4e8", dark="#7cc8f2", dash=(3, 2), fill_light="#cde9f9", fill_dark="#24475a"),
    "exposed": MarkStyle(light="#d55e00", dark="#f07f2e"),
    "bubble": MarkStyle(light="#cc79a7", dark="#dd92bb", dash=(1, 2), fill_light="#e6bfd5", fill_dark="#6b4159"),
    "idle": MarkStyle(light="#8a8f96", dark="#9aa1a9", dash=(5, 2), fill_light="#dddfe2", fill_dark="#41464c"),
}
"""Parts of a step. Kept for them alone: nothing else wears these colours."""

COPIES = MarkStyle(light="#8c8000", dark="#e2d64a", dash=(2, 1), fill_light="#f3ea8c", fill_dark="#5d5714")
"""Copies beside neither compute nor communication: a part that only traces have."""

SERIES: tuple[MarkStyle, ...] = (
    MarkStyle(light="#1b1f25", dark="#e6e8ec"),
    MarkStyle(light="#b27700", dark="#e6a520", dash=(6, 3)),
    MarkStyle(light="#008763", dark="#22b98d", dash=(2, 2)),
    MarkStyle(light="#7a4fa0", dark="#b893e0", dash=(9, 2, 2, 2)),
    MarkStyle(light="#8f4a32", dark="#d99a80", dash=(4, 1)),
    MarkStyle(light="#46627f", dark="#8fb0d0", dash=(12, 3)),
)
"""Plans side by side, in the order of their records."""

BAR = MarkStyle(light="#4a6683", dark="#8aabcb")
"""Bars that need not be told apart."""


def _ramp(light: str, dark: str) -> tuple[MarkStyle, ...]:
    return tuple(MarkStyle(light=a, dark=b) for a, b in zip(light.split(), dark.split(), strict=True))


MORE = _ramp(
    "#e9f4f1 #cfe8e1 #aed9cd #86c6b4 #58ae98 #257a66 #0f5447", "#14231f #1a3630 #225046 #2b6e5f #369079 #52b399 #84d9c0"
)
"""Cells of a heat map from little to much, where much is good or neither: one hue, by lightness."""
WORSE = _ramp(
    "#fdf0e6 #fbdcc4 #f7c29b #f0a26b #e3803f #b9550f #8a3a00", "#261a12 #3d2616 #5c371b #824c1f #b86f2c #d68a45 #f5b884"
)
"""The same where much is lost, in the hue of exposed communication."""
ON_PALE = MarkStyle(light="#1b1f26", dark="#e6e8ed")
ON_MIDDLE = MarkStyle(light="#1b1f27", dark="#0d0f12")
ON_STRONG = MarkStyle(light="#fffffe", dark="#0d0f13")
CELL_TEXT: tuple[MarkStyle, ...] = (ON_PALE, ON_PALE, ON_PALE, ON_PALE, ON_MIDDLE, ON_STRONG, ON_STRONG)
"""Of the number in a cell, by its colour: at least 4.5 to 1 on either ground."""
HATCH = MarkStyle(light="#a9b1ba", dark="#666f79")
"""Cells that cannot be."""

STYLES: tuple[MarkStyle, ...] = (
    *(INK, MUTED, GRID, IDEAL, *PARTS.values(), COPIES, *SERIES, BAR, *MORE, *WORSE),
    *(ON_PALE, ON_MIDDLE, ON_STRONG, HATCH),
)


def dark_of() -> dict[str, str]:
    """Every light colour -> its dark counterpart."""
    pairs = {style.light: style.dark for style in STYLES}
    return pairs | {style.fill_light: style.fill_dark for style in STYLES if style.fill_light and style.fill_dark}
