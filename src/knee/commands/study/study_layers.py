"""What a study file says once for several grids, and where the files lie that it names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.specs.catalog import is_path

NAMED, TABLES = (
    ("model", "cluster", "profile", "hardware"),
    (
        *("grid", "common", "bandwidths", "budget"),
        *("long_run", "wall"),
    ),
)
"""Keys whose words name specs, and the tables that have them."""


def anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of clusters, models and profiles are relative to the file that names them."""
    return {
        key: _moved(value, folder) if key in NAMED else _anchored_below(value, folder) if key in TABLES else value
        for key, value in raw.items()
    }


def _anchored_below(node: Any, folder: Path) -> Any:
    if isinstance(node, list):
        return [_anchored_below(item, folder) for item in node]
    return anchored(node, folder) if isinstance(node, dict) else node


def _moved(ref: Any, folder: Path) -> Any:
    if isinstance(ref, list):
        return [_moved(one, folder) for one in ref]
    return str(folder / ref) if isinstance(ref, str) and is_path(ref) else ref


def laid_over_common(raw: Mapping[str, Any], *, where: str, hint: str) -> dict[str, Any]:
    """Every grid with what ``[common]`` says once for all; plans are joined option by option."""
    common, grids = raw.get("common", {}), raw.get("grid", [])
    if not isinstance(common, dict) or (common and not grids):
        text = f"{where}: common should be a table, [common], and is laid under every [[grid]]"
        raise InputError(text, hint=hint, code="wrong-type", field="common")
    rest = {key: value for key, value in raw.items() if key != "common"}
    if not isinstance(grids, list):
        return rest
    return rest | {"grid": [_over(common, grid) if isinstance(grid, dict) else grid for grid in grids]}


def _over(common: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    # a grid with a batch of its own has no use for the common one, whichever of the two that is
    under = {key: value for key, value in common.items() if key not in BATCHES or not BATCHES & grid.keys()}
    plans = [part.get("plan", {}) for part in (common, grid)]
    joined = {"plan": plans[0] | plans[1]} if all(isinstance(plan, dict) for plan in plans) else {}
    return under | grid | joined


BATCHES = {"local_batch", "global_batch"}


def not_finite(node: Any, place: str = "") -> str | None:
    """The place of the first number that is infinite or not a number."""
    if isinstance(node, (dict, list, tuple)):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        found = (not_finite(value, f"{place}.{key}".removeprefix(".")) for key, value in items)
        return next((where for where in found if where is not None), None)
    return place if isinstance(node, float) and not math.isfinite(node) else None
