"""What can be asked: names, and every control with its unit, range and default, from the specs and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import knee
from knee.commands.budget.model_family import family_names
from knee.commands.budget.scaling_laws import law_names
from knee.commands.serve.answers.published_points import sources_of_bands
from knee.commands.serve.answers.questions import address_of, query_of
from knee.commands.study.study_file import Study, StudyGrid, load_study, study_names
from knee.engine.energy import grid_names
from knee.engine.workload.parameters import active_parameter_count, parameter_count
from knee.specs.catalog import entry_names
from knee.specs.defaults import DEFAULT_GRID, DEFAULT_PROFILE, DEFAULT_SEQ_LEN
from knee.specs.fields import descriptions
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.metrics import METRICS, VIEWS
from knee.specs.plan import KNOBS, MOST, Knob, Plan

# States of the page for the paper's experiments, from the studies' own files.

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
                    **{key: getattr(study, key) for key in ("title", "place", "question", "kind")},
                    "state": state,
                    "address": address_of(state),
                    "figures": [address_of(_with_metric(state, draw.y)) for draw in study.draw],
                }
            )
    return found


def _with_metric(state: dict[str, Any], metric: Any) -> dict[str, Any]:
    """The state with the chart of a figure's own quantity."""
    return state | ({"metric": metric} if state["view"] == "scale" and metric in VIEWS["scaling chart"] else {})


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


ControlKind = Literal["choice", "integer", "number", "logarithmic", "switch", "words"]
LABELS = {
    "model": "Model",
    "cluster": "Cluster",
    "profile": "Software profile",
    "gpus": "GPUs",
    "local_batch": "Sequences per GPU and step",
    "global_batch": "Sequences per step",
    "seq_len": "Tokens per sequence",
    "tokens": "Training tokens",
    "grid": "Electricity grid",
    "pue": "PUE of the site",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One argument that a person can change."""

    name: str
    label: str
    kind: ControlKind
    group: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    step: float | None = None
    default: Any = None
    """What is taken where nothing is given; None: knee chooses, and its assumptions say so."""
    help: str = ""
    kept: bool = False
    """Whether a search for a plan takes it as given; it chooses the other fields of the plan."""
    needs: str | None = None
    """Degree of the plan without which it means nothing."""


def catalog_view(body: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as other answers
    """The answer of ``/api/catalog``."""
    return {
        "version": knee.__version__,
        "models": [_model(name) for name in entry_names("model")],
        "clusters": [_cluster(name) for name in entry_names("cluster")],
        "profiles": [_profile(name) for name in entry_names("profile")],
        "grids": grid_names(),
        "laws": law_names(),
        "families": family_names(),
        "controls": [asdict(control) for control in controls()],
        "metrics": {name: metric.as_json() for name, metric in METRICS.items()},
        "defaults": {"model": "llama2-7b", "cluster": "dgx-h100", "gpus": 256, "local_batch": 2},
        "presets": presets(),
        "sources": sources_of_bands(),
    }


def _model(name: str) -> dict[str, Any]:
    spec = load_model(name).spec
    return {
        "name": name,
        "params": parameter_count(spec),
        "active_params": active_parameter_count(spec),
        **{key: getattr(spec, key) for key in ("layers", "hidden", "max_seq_len")},
        "experts": spec.experts is not None,
    }


def _cluster(name: str) -> dict[str, Any]:
    spec = load_cluster(name).spec
    return {
        "name": name,
        "gpu": spec.gpu.name,
        "node_gpus": spec.node.gpus,
        "max_gpus": spec.max_gpus,
        "hbm_bytes": spec.gpu.hbm_bytes,
        "usd_per_gpu_h": spec.usd_per_gpu_h,
    }


def _profile(name: str) -> dict[str, Any]:
    spec = load_profile(name).spec
    return {"name": name, "kernels": spec.kernels, "attention": spec.attention}


@cache
def controls() -> tuple[Control, ...]:
    """Every control, in the order in which a page shows them."""
    most_gpus = max(load_cluster(name).spec.max_gpus for name in entry_names("cluster"))
    words = descriptions(Plan)
    return (
        _control("model", "choice", "job", choices=tuple(entry_names("model"))),
        _control("cluster", "choice", "job", choices=tuple(entry_names("cluster"))),
        _control("gpus", "logarithmic", "job", unit="GPUs", least=1, most=most_gpus),
        _control("local_batch", "logarithmic", "job", unit="sequences", least=1 / 64, most=1024),
        _control("global_batch", "logarithmic", "job", unit="sequences", least=1, most=MOST),
        _control("seq_len", "logarithmic", "job", unit="tokens", least=128, most=1 << 20, default=DEFAULT_SEQ_LEN),
        _control("profile", "choice", "stack", choices=tuple(entry_names("profile")), default=DEFAULT_PROFILE),
        _control("tokens", "logarithmic", "run", unit="tokens", least=1e9, most=1e14),
        _control("grid", "choice", "run", choices=tuple(grid_names()), default=DEFAULT_GRID),
        _control("pue", "number", "run", least=1.0, most=3.0, step=0.01),
        *(_plan_control(knob, words.get(knob.name, "")) for knob in KNOBS.values()),
    )


def _control(name: str, kind: ControlKind, group: str, **settings: Any) -> Control:
    """A control beside the plan; a logarithmic one is moved by doublings."""
    settings |= {"step": 2} if kind == "logarithmic" else {}
    return Control(name=name, label=LABELS[name], kind=kind, group=group, **settings)


def _plan_control(knob: Knob, text: str) -> Control:
    base: dict[str, Any] = {
        "name": knob.name,
        "label": knob.label or knob.name.replace("_", " ").capitalize(),
        "group": "plan",
        "default": list(knob.default) if knob.many else knob.default,
        "help": text,
        "kept": knob.search == "kept",
        "needs": knob.needs,
    }
    if knob.kind is bool:
        return Control(kind="switch", **base)
    if knob.choices:
        return Control(kind="words" if knob.many else "choice", choices=knob.choices, **base)
    most = knob.slider or knob.most or MOST
    if knob.kind is int:
        kind: ControlKind = "logarithmic" if knob.doubles else "integer"
        return Control(kind=kind, least=knob.least, most=most, step=2 if knob.doubles else 1, **base)
    return Control(kind="number", least=float(knob.least), most=float(most), step=0.05, **base)
