"""Study files: what is run, what is drawn, what the paper says and how that is judged. Data, checked as it is read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr

from knee.base.errors import InputError, SpecError, argument
from knee.base.units import parse
from knee.commands.study.claims import Claim
from knee.commands.study.failure_rows import LongRun, ReplicaExchange, Wall
from knee.commands.study.quantities import Quantity, Where
from knee.specs.catalog import ROOT, is_path, nearest, read_layers, read_toml
from knee.specs.check import validate
from knee.specs.defaults import DEFAULT_FAMILY, DEFAULT_LAW, DEFAULT_SEQ_LEN
from knee.specs.fields import WrongKey, fields_of, split_overrides
from knee.specs.metrics import DERIVED, OTHERS, STEP
from knee.specs.plan import KNOBS

# Every column that a row may have: what study files may name.

LABELS = (
    *("study", "series", "kind", "model", "cluster", "profile", "gpus", "nodes", "global_batch", "local_batch"),
    *("seq_len", "set", "plan", "degree", "trust", "low_frac", "high_frac", "experts", "gpu", "node_gpus"),
    *("collective", "message", "compared", "size", "flop_size", "span", "cause", "cells", "dp"),
)
"""Of the question, and of what a row is about."""
COLUMNS: tuple[str, ...] = (*LABELS, *KNOBS, *STEP, *DERIVED, *OTHERS)
"""Of training steps, of bandwidths, of data sheets and of budgets."""

# What a study file says once for several grids, and where the files lie that it names.

NAMED = ("model", "cluster", "profile", "hardware")
TABLES = ("grid", "common", "bandwidths", "budget", "long_run", "wall")
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


# Changes of every grid of a study: another model, other counts of GPUs.

CHANGES = ("model", "cluster", "profile", "gpus", "local_batch", "global_batch", "seq_len")
NAMES = ("model", "cluster", "profile")
"""Of them, those that are names."""

GridChanges = Mapping[str, object] | Sequence[tuple[str, str]]
"""A key of the grid to its values: ``{"gpus": [8, 16]}``, or pairs with values by commas, as behind ``--set``."""


def changes_of(given: GridChanges) -> dict[str, tuple[Any, ...]]:
    """What is changed of every grid: a key to its values."""
    changes: dict[str, tuple[Any, ...]] = {}
    for key, value in given.items() if isinstance(given, Mapping) else given:
        if key not in CHANGES:
            text = f"{argument('overrides')} {key}: the keys of a grid are {', '.join(CHANGES)}"
            hint = nearest(key, CHANGES) or "change other values in a study file"
            raise InputError(text, hint=hint, code="not-an-override", field=key)
        values = _values(value)
        changes[key] = tuple(values if key in NAMES else (_number(key, text) for text in values))
    if {"local_batch", "global_batch"} <= changes.keys():
        option = argument("overrides")
        raise InputError(
            f"{option} local_batch and {option} global_batch are both given",
            hint="give one of them",
            code="contradiction",
            field="local_batch",
        )
    return changes


def _values(value: object) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [str(one) for one in value] if isinstance(value, Iterable) else [str(value)]


def _number(key: str, text: str) -> float | int:
    option = f"{argument('overrides')} {key}={text}"
    try:
        value = float(text) if key == "local_batch" else int(text)
    except ValueError:
        raise InputError(f"{option}: it must be a number", code="not-a-number", field=key) from None
    if not 0 < value < float("inf"):
        raise InputError(f"{option}: it must be a finite number above 0", code="out-of-range", field=key)
    return value


# A user's file that is a grid and nothing else, completed to a study.


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


FOLDER = ROOT / "studies"
WORKS = f"docs/studies.md has all keys; {FOLDER / 'fig6.toml'} is a study that works"

Pick = Literal["each", "fastest", "least", "beyond"]
Mark = Literal["line", "bar", "parts", "shares", "heat", "growth", "strip"]
One = str | int | float | bool
Many = One | Annotated[tuple[One, ...], Field(min_length=1)]
"""A value, or a list of them, which is an axis of the grid."""
Names = StrictStr | Annotated[tuple[StrictStr, ...], Field(min_length=1)]
MOST = 10**12
"""Of anything that is counted: products of two such numbers are still exact enough to be refused in words."""
Count = Annotated[StrictInt, Field(gt=0, le=MOST)]
Counts = Count | Annotated[tuple[Count, ...], Field(min_length=1)]
Share = Count | Annotated[StrictFloat, Field(gt=0, le=MOST, allow_inf_nan=False)]
Shares = Share | Annotated[tuple[Share, ...], Field(min_length=1)]


def _split(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Keys of ``set`` by the spec that they change; an unknown one is told as a field of the file."""
    try:
        return split_overrides(pairs)
    except WrongKey as error:
        text = f"set {error.field}{error.trouble}: {error.hint}"
        raise SpecError(text, code=error.code, field=f"set.{error.field}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyGrid:
    """Training steps: the product of everything that is a list."""

    series: str
    """Name of the curve or group; ``{tp}`` is replaced by the value of that axis."""
    model: Names
    """Models, by name or path."""
    cluster: Names
    """Clusters, by name or path."""
    profile: Names
    """Software profiles, by name or path."""
    gpus: Counts
    """Numbers of GPUs."""
    local_batch: Shares | None = None
    """Sequences per GPU and step."""
    global_batch: Counts | None = None
    """Sequences per step over all GPUs."""
    seq_len: Counts = DEFAULT_SEQ_LEN
    """Tokens per sequence."""
    plan: Mapping[str, Many] = field(default_factory=dict)
    """Options of the parallel plan, as in `knee simulate`: ``tp``, ``pp``, ``sharding`` ..."""
    set: Mapping[str, Many] = field(default_factory=dict)
    """As ``--set``: ``"fabric.nic_bytes_per_s" = ["200 Gbit/s", "400 Gbit/s"]``."""
    tune: bool = False
    """Whether knee chooses the schedule, virtual stages and micro-batch size that ``plan`` does not set."""
    pick: Pick = "each"
    """Which plans are kept: ``each``; the ``fastest`` that fits; the one with the ``least`` model parallelism that
    fits; or the fastest with more model parallelism than that (``beyond``)."""

    def __post_init__(self) -> None:
        if (self.local_batch is None) == (self.global_batch is None):
            code = "missing-field" if self.local_batch is None else "contradiction"
            text = "local_batch or global_batch is needed, and only one of them"
            raise SpecError(text, code=code, field="local_batch")
        known = fields_of("plan")
        for name, value in self.plan.items():
            if name not in known:
                text = ": ".join(filter(None, (f"plan has no {name}", nearest(name, known))))
                raise SpecError(text, code="unknown-field", field=f"plan.{name}")
            for one in value if isinstance(value, tuple) else (value,):
                if known[name].type is int and (isinstance(one, bool) or not isinstance(one, int) or one < 0):
                    text = f"plan.{name} should be a whole number, not {one!r}"
                    raise SpecError(text, code="not-a-number", field=f"plan.{name}")
        _split((key, "") for key in self.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """Bandwidths of collectives on idle links."""

    series: str
    """Name of the curve; ``{nodes}`` and ``{message}`` are replaced by their values."""
    cluster: str
    """Cluster, by name or path."""
    collective: Literal["all_reduce", "all_gather", "reduce_scatter"]
    """Collective operation."""
    nodes: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Numbers of nodes."""
    message: Annotated[tuple[str, ...], Field(min_length=1)]
    """Message sizes, with their unit."""
    published: str | None = None
    """Source in knee's table of published bandwidths whose values are drawn too."""

    def __post_init__(self) -> None:
        try:
            self.series.format(nodes=1, message="")
        except (LookupError, ValueError, AttributeError, TypeError):
            text = f"series {self.series!r} may name {{nodes}} and {{message}} only"
            raise SpecError(text, code="unknown-field", field="series") from None
        for text in self.message:
            if not 0 < parse(text, "bytes") < inf:  # which refuses what is no size at all
                raise SpecError(f"message {text!r} should be above 0, and finite", code="out-of-range", field="message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The best model that some days train on several counts of GPUs, all of which are used."""

    series: str
    """Name of the curve."""
    cluster: str
    """Cluster, by name or path."""
    profile: str
    """Software profile, by name or path."""
    gpus: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Numbers of GPUs. All GPUs are used."""
    days: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]
    """Days of training."""
    seq_len: Count = DEFAULT_SEQ_LEN
    """Tokens per sequence."""
    law: str = DEFAULT_LAW
    """Scaling law, by its name in the catalogue."""
    family: str = DEFAULT_FAMILY
    """Family of model shapes that is searched."""
    set: Mapping[str, str] = field(default_factory=dict)
    """As ``--set``, for the cluster and the profile."""

    def __post_init__(self) -> None:
        for_model, _, _, for_plan = _split(self.set.items())
        if for_model or for_plan:
            key = (*for_model, *for_plan)[0][0]
            text = f"set {key}: shapes and plans are what a budget searches"
            raise SpecError(text, code="not-an-override", field=f"set.{key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One chart of a study."""

    title: str
    """Title of the chart."""
    mark: Mark
    """Kind of chart."""
    x: str
    """Column of the horizontal axis."""
    y: str = ""
    """Column of the vertical axis."""
    shows: str = ""
    """Column that a heat map shows as colour."""
    color: str = "series"
    """Column that gives lines or bars their colour."""
    caption: str = ""
    """Text below the chart."""
    at: Where = field(default_factory=dict)
    """Columns and their values that select the rows."""
    ideal: Literal["", "scaled", "flat"] = ""
    """Ideal line through the first point of the first series: proportional to the GPUs (``scaled``) or ``flat``."""
    zero: bool = True
    """Whether the vertical axis begins at zero."""
    log: bool = False
    """Whether the vertical axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A value that the paper states, or that follows from what it states, to be drawn as a hollow diamond."""

    series: str
    """Series that the value belongs to."""
    metric: str
    """Column that the value belongs to."""
    x: One
    """Position on the horizontal axis."""
    value: float | None = None
    """The value, in the unit of the column."""
    times: float | None = None
    """Instead of ``value``: a factor on the run ``of``, for values that are published only as a change."""
    of: Where = field(default_factory=dict)
    """The run that ``times`` applies to."""
    how: str = "stated"
    """How the value is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One figure or table of the paper, or one question beyond it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    """Holds for every table of the file: pydantic hands it down."""

    name: str
    """Name of the study: its file's name."""
    title: str
    """Title of the page."""
    kind: Literal["paper", "beyond"]
    """``paper`` for studies of the paper, ``beyond`` for your own."""
    place: str = ""
    """Place in the paper, such as Figure 3."""
    question: str
    """The question that the study answers."""
    paper: str = ""
    """What the paper says about it, in our words."""
    finding: str
    """One sentence that states the result; ``{name}`` is replaced by a value below."""
    value: Mapping[str, Quantity] = field(default_factory=dict)
    """Numbers that the finding uses."""
    assumptions: tuple[str, ...] = ()
    """What the study assumes where the paper is silent."""
    needs: tuple[str, ...] = ()
    """Other studies whose runs the claims use."""
    grid: tuple[StudyGrid, ...] = ()
    """Training steps to simulate."""
    bandwidths: tuple[Bandwidths, ...] = ()
    """Collectives on idle links."""
    budget: tuple[Budgets, ...] = ()
    """Budgets for which the best model is searched."""
    long_run: tuple[LongRun, ...] = ()
    """Months of training, with failures and without."""
    exchange: tuple[ReplicaExchange, ...] = ()
    """Replicas on slow links, beside published tables."""
    wall: tuple[Wall, ...] = ()
    """The largest runs that clusters could train."""
    hardware: tuple[str, ...] = ()
    """Clusters whose data-sheet values become rows."""
    draw: tuple[Draw, ...] = ()
    """Charts."""
    published: tuple[Published, ...] = ()
    """Published values to draw with the simulated ones."""
    timeline: tuple[Where, ...] = ()
    """Runs whose step is drawn as a timeline."""
    claim: tuple[Claim, ...] = ()
    """Claims, each with its tests."""

    def __post_init__(self) -> None:
        months = self.long_run or self.exchange or self.wall
        if not (self.grid or self.bandwidths or self.budget or self.hardware or self.needs or months):
            text = "the study has nothing to run: [[grid]], [[bandwidths]], [[budget]], hardware or needs is missing"
            raise SpecError(text, code="missing-field", field="grid")
        ids = Counter(claim.id for claim in self.claim)
        if twice := sorted(one for one, count in ids.items() if count > 1):
            raise SpecError(f"claim {twice[0]} is given twice", code="contradiction", field="claim")
        try:
            named = {name for _, name, _, _ in Formatter().parse(self.finding) if name is not None}
        except ValueError as error:
            text = f"finding: {error} (write a literal brace twice)"
            raise SpecError(text, code="not-a-format", field="finding") from None
        if unknown := sorted(named - self.value.keys()):
            text = f"finding names {{{unknown[0]}}}, and [value.{unknown[0]}] is missing"
            raise SpecError(text, code="missing-field", field=f"value.{unknown[0]}")
        for place, word in _columns_named(self):
            if word not in COLUMNS:
                text = "; ".join(filter(None, (f"{place}: no row has {word!r}", nearest(word, COLUMNS))))
                raise SpecError(text, code="unknown-field", field=place)


def _columns_named(study: Study) -> Iterator[tuple[str, str]]:
    parts: list[tuple[str, object]] = [(f"value.{name}", quantity) for name, quantity in study.value.items()]
    parts += [(f"draw.{i}", draw) for i, draw in enumerate(study.draw)]
    parts += [(f"published.{i}", one) for i, one in enumerate(study.published)]
    parts += [(f"claim {claim.id}", test) for claim in study.claim for test in claim.test]
    parts += [(f"{place}.of", of) for place, part in parts if isinstance(of := getattr(part, "of", None), Quantity)]
    parts += [(place, than) for place, part in parts for than in getattr(part, "has", ())]
    for place, part in parts:
        axes = ("x", "y", "shows", "color") if isinstance(part, Draw) else ()
        for name in ("metric", "over", "column", "published", "pick", "label", *axes):
            word = getattr(part, name, "")
            if isinstance(word, str) and word:
                yield place, word.removeprefix("-")
        for name in ("at", "base", "other_at", "other_base", "least", "of"):
            where = getattr(part, name, None)
            if isinstance(where, Mapping):
                yield from ((f"{place}.{name}", key) for key in where if key != "study")
        for name in ("same", "each"):
            yield from ((f"{place}.{name}", word) for word in getattr(part, name, ()))
    for where in study.timeline:
        yield from (("timeline", key) for key in where)


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


def load_study(name: str) -> Study:
    """A study of the catalogue, or of a TOML file, which is read each time: it may have changed."""
    if name.endswith(".toml"):
        return _read_study(Path(name), by_user=True)
    if name not in study_names():
        hint = " ".join(filter(None, (nearest(name, study_names()), "`knee study list` shows all")))
        raise InputError(f"there is no study {name!r}", hint=hint, code="unknown-name", field="study")
    return _catalog_study(name)


@cache
def _catalog_study(name: str) -> Study:
    return _read_study(FOLDER / f"{name}.toml", by_user=False)


def _read_study(path: Path, *, by_user: bool) -> Study:
    raw = read_layers(path, anchored=anchored, named=_named_study)
    if by_user:
        raw = completed(path.stem, raw, {f.name for f in fields(StudyGrid)})
    found = check_study(path.stem, laid_over_common(raw, where=path.name, hint=WORKS), where=path.name)
    # A text such as "1e400" becomes infinite only when the field is read as a number.
    if (place := not_finite(raw) or not_finite(asdict(found))) is not None:
        text = f"{path.name}: {place} is not a finite number"
        raise InputError(text, hint="nan and inf are not accepted", code="not-finite", field=place)
    return found


def _named_study(name: str) -> Path | None:
    """The file of a study of the catalogue, which others may build on."""
    return FOLDER / f"{name}.toml" if name in study_names() else None


def check_study(name: str, raw: dict[str, Any], *, where: str) -> Study:
    """The study of a file's data, or SpecError with all its mistakes; ``where`` is what errors call the file."""
    return validate(Study, {"name": name} | raw, where, hint=WORKS, relative=True, also=("common",))


@cache
def uncounted() -> dict[str, str]:
    """Statements of the paper that no claim is made of -> why."""
    found = read_toml(FOLDER / f"{UNCOUNTED}.toml")
    return {str(key): str(why) for key, why in found.items()}
