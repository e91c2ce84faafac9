"""A user's file that is a grid and nothing else, completed to a study."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def completed(name: str, raw: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A user's file may be a grid and nothing else: one at its top, or tables; words for people are made up."""
    top = {key: value for key, value in raw.items() if key in keys}
    rest = {key: value for key, value in raw.items() if key not in top}
    about: dict[str, Any] = {"title": name, "kind": "beyond", "finding": "", "question": f"What do {name}'s runs take?"}
    below = raw.get("grid", [])
    if not isinstance(below, list):
        return about | dict(raw)
    grids = [*([top] if top else []), *below]
    grids = [{"series": _named(grid)} | grid if isinstance(grid, dict) else grid for grid in grids]
    draw = {"title": "Tokens per second per GPU", "mark": "line", "x": "gpus", "y": "tokens_per_s_per_gpu"}
    about |= {"draw": [draw]} if grids else {}
    return about | rest | ({"grid": grids} if grids else {})


def _named(grid: Mapping[str, Any]) -> str:
    """A series for every plan: runs of one differ in their GPUs."""
    plan = grid.get("plan", {})
    axes = [key for key, value in plan.items() if isinstance(value, list)] if isinstance(plan, dict) else []
    return ", ".join(f"{axis} {{{axis}}}" for axis in axes) or "all"
