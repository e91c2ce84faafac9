"""Study files: what is run, what is drawn, what the paper says and how that is judged. Data, checked as it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from knee.errors import InputError
from knee.specs.catalog import ROOT, did_you_mean, read_toml
from knee.study.claims import Claim
from knee.study.quantities import Quantity, Where

FOLDER = ROOT / "studies"
FORBID: dict[str, str] = {"extra": "forbid"}

Pick = Literal["each", "fastest", "least", "beyond"]
Mark = Literal["line", "bar", "parts", "shares", "heat", "growth"]
One = str | int | float | bool
Many = One | tuple[One, ...]
"""A value, or a list of them, which is an axis of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Training steps: the product of everything that is a list."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    series: str
    """Name of a curve or group; ``{tp}`` stands for that axis."""
    model: Many
    cluster: Many
    profile: Many
    gpus: Many
    local_batch: Many | None = None
    global_batch: Many | None = None
    seq_len: Many = 4096
    plan: Mapping[str, Many] = field(default_factory=dict)
    set: Mapping[str, Many] = field(default_factory=dict)
    """As ``--set``: ``"fabric.nic_bytes_per_s" = ["200 Gbit/s", "400 Gbit/s"]``."""
    tune: bool = False
    """What a plan leaves open of schedule, virtual stages and micro-batch is the fastest that fits."""
    pick: Pick = "each"
    """``fastest``: of the plans only the fastest that fits; ``least``: the one with the least model parallelism;
    ``beyond``: the fastest with more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """Collectives on idle links."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    series: str
    cluster: str
    collective: Literal["all_reduce", "all_gather", "reduce_scatter"]
    nodes: tuple[int, ...]
    message: tuple[str, ...]
    """Sizes, with their unit."""
    published: str | None = None
    """Source in knee's own table of bandwidths whose readings stand beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One chart."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    title: str
    mark: Mark
    x: str
    y: str = ""
    """Of lines and bars; of a heat map its rows."""
    shows: str = ""
    """Of a heat map: the colour."""
    color: str = "series"
    """Column that tells lines or bars apart."""
    caption: str = ""
    at: Where = field(default_factory=dict)
    ideal: Literal["", "scaled", "flat"] = ""
    """A line through the first point of the first series: in proportion to the GPUs, or level."""
    zero: bool = True
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A value that the paper states, or that follows from what it states, to be drawn as a hollow diamond."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    series: str
    metric: str
    x: One
    value: float | None = None
    times: float | None = None
    """Instead of a value: a factor on the run ``of``, for what is stated as a change only."""
    of: Where = field(default_factory=dict)
    how: str = "stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One figure or table of the paper, or one question beyond it."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID

    name: str
    title: str
    kind: Literal["paper", "beyond"]
    place: str = ""
    """Where in the paper."""
    question: str
    paper: str = ""
    """What the paper says of it, in our words."""
    finding: str
    """One sentence; ``{name}`` stands for a value below."""
    value: Mapping[str, Quantity] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    """Where the paper is silent."""
    needs: tuple[str, ...] = ()
    """Studies whose runs the claims are also about."""
    grid: tuple[Grid, ...] = ()
    bandwidths: tuple[Bandwidths, ...] = ()
    hardware: tuple[str, ...] = ()
    """Clusters whose data sheets are its rows."""
    draw: tuple[Draw, ...] = ()
    published: tuple[Published, ...] = ()
    timeline: tuple[Where, ...] = ()
    """Runs whose step can be looked into."""
    claim: tuple[Claim, ...] = ()


def study_names(kind: str | None = None) -> list[str]:
    """All studies in the paper's order, then those beyond it; or those of one kind."""
    named = {path.stem: path for path in FOLDER.glob("*.toml") if path.stem != UNCOUNTED}
    known = sorted(named, key=_order)
    return [name for name in known if kind is None or (_is_paper(name) == (kind == "paper"))]


UNCOUNTED = "uncounted"
"""The file with the paper's statements that are not claims, and why."""


def _is_paper(name: str) -> bool:
    return re.fullmatch(r"fig\d+[ab]?|table\d+", name) is not None


def _order(name: str) -> tuple[int, int, str]:
    found = re.search(r"\d+", name)
    group = 0 if name.startswith("fig") and found else 1 if _is_paper(name) else 2
    return group, int(found[0]) if found and group == 0 else 0, name


@cache
def load_study(name: str) -> Study:
    """A study of the catalogue, or of a TOML file."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and name not in study_names():
        close = did_you_mean(name, study_names())
        guess = f"did you mean {close}? " if close else ""
        raise InputError(f"there is no study {name!r}", hint=f"{guess}`knee study list` has all")
    raw = read_toml(path)
    if name.endswith(".toml"):
        raw = _completed(path.stem, raw)
    return _checked(path.stem, _laid_over_common(raw), where=path.name)


def _completed(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A user's file may be a grid and nothing else: one at its top, or tables; words for people are made up."""
    top = {key: value for key, value in raw.items() if key in {f.name for f in fields(Grid)}}
    rest = {key: value for key, value in raw.items() if key not in top}
    grids = [*([top] if top else []), *raw.get("grid", [])]
    grids = [{"series": _named(grid)} | grid if isinstance(grid, dict) else grid for grid in grids]
    about = {"title": name, "kind": "beyond", "question": f"What do the runs of {name} take?", "finding": ""}
    return about | rest | ({"grid": grids} if grids else {})


def _named(grid: Mapping[str, Any]) -> str:
    """A series for every plan: runs of one differ in their GPUs."""
    plan = grid.get("plan", {})
    axes = [key for key, value in plan.items() if isinstance(value, list)] if isinstance(plan, dict) else []
    return ", ".join(f"{axis} {{{axis}}}" for axis in axes) or "all"


def _laid_over_common(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Every grid with what ``[common]`` says once for all; plans are joined option by option."""
    common = dict(raw.get("common", {}))
    grids = [
        common | grid | {"plan": common.get("plan", {}) | grid.get("plan", {})}
        if isinstance(grid, dict) and isinstance(common, dict)
        else grid
        for grid in raw.get("grid", [])
    ]
    rest = {key: value for key, value in raw.items() if key != "common"}
    return rest | ({"grid": grids} if grids else {})


def _checked(name: str, raw: dict[str, Any], *, where: str) -> Study:
    try:
        return _adapter().validate_python({"name": name} | raw)
    except ValidationError as error:
        lines = [_mistake(e["loc"], e["msg"], e["input"]) for e in error.errors()]
        shown = "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
        raise InputError(f"{where}: {shown}", hint="`knee study show fig6` is a study that works") from None


def _mistake(place: Sequence[str | int], message: str, given: object) -> str:
    at = ".".join(map(str, place))
    if message.startswith("Unexpected keyword argument"):
        return f"{at} is not known"
    if message.startswith(("Missing required", "Field required")):
        return f"{at} is missing"
    return f"{at}: {message[:1].lower()}{message[1:]}, not {given!r}"


@cache
def _adapter() -> TypeAdapter[Study]:
    return TypeAdapter(Study)


@cache
def uncounted() -> dict[str, str]:
    """Statements of the paper that no claim is made of -> why."""
    found = read_toml(FOLDER / f"{UNCOUNTED}.toml")
    return {str(key): str(why) for key, why in found.items()}
