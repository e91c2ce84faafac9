"""One colour, dash and mark for each thing, everywhere; told apart without colour too.

Hues are Okabe and Ito's, safe for the common colour blindnesses, darkened where a thin line would not show on white.
A spec holds the light colours; a page maps them to the dark ones, so that one SVG serves both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one thing is drawn."""

    light: str
    """On white; unique among all looks, because pages find it by its value."""
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


INK = Look(light="#1b1f24", dark="#e6e8eb")
MUTED = Look(light="#57606a", dark="#a4acb5")
GRID = Look(light="#d8dde3", dark="#3a4048")
IDEAL = Look(light="#b9c0c8", dark="#59616b")

PARTS: dict[str, Look] = {
    "compute": Look(light="#0072b2", dark="#3d9bd6"),
    "overlapped": Look(light="#56b4e8", dark="#7cc8f2", dash=(3, 2), fill_light="#cde9f9", fill_dark="#24475a"),
    "exposed": Look(light="#d55e00", dark="#f07f2e"),
    "bubble": Look(light="#cc79a7", dark="#dd92bb", dash=(1, 2), fill_light="#e6bfd5", fill_dark="#6b4159"),
    "idle": Look(light="#8a8f96", dark="#9aa1a9", dash=(5, 2), fill_light="#dddfe2", fill_dark="#41464c"),
}
"""Parts of a step. Kept for them alone: nothing else wears these colours."""

COPIES = Look(light="#8c8000", dark="#e2d64a", dash=(2, 1), fill_light="#f3ea8c", fill_dark="#5d5714")
"""Copies beside neither compute nor communication: a part that only traces have."""

SERIES: tuple[Look, ...] = (
    Look(light="#1b1f25", dark="#e6e8ec"),
    Look(light="#b27700", dark="#e6a520", dash=(6, 3)),
    Look(light="#008763", dark="#22b98d", dash=(2, 2)),
)
"""Plans side by side, in the order of their records."""

LOOKS: tuple[Look, ...] = (INK, MUTED, GRID, IDEAL, *PARTS.values(), COPIES, *SERIES)


def dark_of() -> dict[str, str]:
    """Every light colour -> its dark counterpart."""
    pairs = {look.light: look.dark for look in LOOKS}
    return pairs | {look.fill_light: look.fill_dark for look in LOOKS if look.fill_light and look.fill_dark}
