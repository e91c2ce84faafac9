"""States of the page for the paper's experiments, from the studies' own files."""

from __future__ import annotations

from typing import Any

from knee.serve.answers.address import address_of, query_of
from knee.studies.study_file import Study, StudyGrid, load_study, study_names

METRICS = ("tokens_per_s_per_gpu", "tokens_per_s", "mfu_frac", "exposed_frac", "power_w_per_gpu", "usd_per_mtoken")
"""Quantities that the Scale view draws."""
MOST_SERIES = 6
"""Curves of one preset."""


def presets() -> list[dict[str, Any]]:
    """One for each study of the paper that has training steps."""
    found = []
    for name in study_names():
        study = load_study(name)
        state = state_of(study)
        if state is not None:
            found.append(
                {
                    "study": name,
                    "title": study.title,
                    "place": study.place,
                    "question": study.question,
                    "kind": study.kind,
                    "state": state,
                    "address": address_of(state),
                    "figures": [address_of(_with_metric(state, draw.y)) for draw in study.draw],
                }
            )
    return found


def _with_metric(state: dict[str, Any], metric: Any) -> dict[str, Any]:
    """The state with the chart of a figure's own quantity."""
    return state | ({"metric": metric} if state["view"] == "scale" and metric in METRICS else {})


def state_of(study: Study) -> dict[str, Any] | None:
    """The study's grids as one state: curves over GPU counts, a search, or the step of its first point."""
    if not study.grid:
        return None
    first = study.grid[0]
    counts, state = _many(first.gpus), _base(first)
    several = {"gpus": counts[len(counts) // 2], "counts": ",".join(map(str, counts))}
    if _searched(first):
        if len(counts) > 1:
            return {"view": "scale", **state, **several, "best": True}
        other = _many(first.cluster)[1:]
        compared = {"compare": query_of(state | {"gpus": counts[0], "cluster": other[0]})} if other else {}
        return {"view": "plan", **state, "gpus": counts[0], **compared}
    if len(counts) == 1:
        return {"view": "step", **state, "gpus": counts[0], **_first(first)}
    grids = [grid for grid in study.grid if not _searched(grid) and _many(grid.gpus) == counts]
    curves = [curve for grid in grids for curve in _curves(grid, state)]
    state = {"view": "scale", **state, **several}
    return state | ({"curves": curves[:MOST_SERIES]} if len(curves) > 1 else curves[0])


def _searched(grid: StudyGrid) -> bool:
    """Whether the simulator chooses a part of the plan."""
    return grid.tune or grid.pick != "each"


def _base(grid: StudyGrid) -> dict[str, Any]:
    """What all curves have: the first value of every list."""
    state: dict[str, Any] = {name: _many(getattr(grid, name))[0] for name in ("model", "cluster", "profile", "seq_len")}
    for name in ("local_batch", "global_batch"):
        if getattr(grid, name) is not None:
            state[name] = _many(getattr(grid, name))[0]
    return state


def _first(grid: StudyGrid) -> dict[str, Any]:
    plan = {name: _many(value)[0] for name, value in grid.plan.items()}
    return plan | ({"overrides": {key: _many(value)[0] for key, value in grid.set.items()}} if grid.set else {})


def _curves(grid: StudyGrid, base: dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination of its lists, as what it changes."""
    axes = {name: _many(getattr(grid, name)) for name in ("model", "cluster", "profile", "seq_len")}
    axes |= {name: _many(value) for name, value in grid.plan.items()}
    for name in ("local_batch", "global_batch"):
        if getattr(grid, name) is not None:
            axes[name] = _many(getattr(grid, name))
    curves: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        curves = [curve | ({} if base.get(name) == value else {name: value}) for curve in curves for value in values]
    for key, changed in grid.set.items():
        changes = [{key: value} for value in _many(changed)]
        curves = [curve | {"overrides": curve.get("overrides", {}) | one} for curve in curves for one in changes]
    return curves


def _many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
