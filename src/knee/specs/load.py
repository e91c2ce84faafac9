"""A job from its parts: the defaults that fill what was not said, and job files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from knee.base import units
from knee.base.errors import InputError, SpecError, out_of_range
from knee.specs.catalog import (
    Kind,
    Leaf,
    Source,
    SourceKind,
    Tree,
    did_you_mean,
    is_path,
    read_entry,
    read_layers,
    read_path,
    read_table,
)
from knee.specs.check import (
    NO_NUMBER,
    SET,
    UNKNOWN_FIELD,
    WRONG_TYPE,
    Mistake,
    below,
    build,
    missing_field,
    raise_mistakes,
    sources_of,
)
from knee.specs.data_sheets import REPLACES, complete
from knee.specs.defaults import DEFAULT_PROFILE, DEFAULT_SEQ_LEN
from knee.specs.fields import Overrides, field_at, fields_of, resolve_key, split_overrides, unit_of
from knee.specs.hardware import Cluster
from knee.specs.job import Job, check_described
from knee.specs.model import Model
from knee.specs.notes import Note
from knee.specs.plan import MOST, Plan
from knee.specs.profile import Profile

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[T]):
    """A spec, and where each of its values comes from."""

    spec: T
    sources: dict[str, Source]
    """Dotted field path, such as ``gpu.hbm_bytes_per_s``, to its source."""
    assumptions: tuple[str, ...] = ()
    """Sentences about what was not given and how it was chosen."""


def load_model(ref: str, overrides: Sequence[tuple[str, str]] = ()) -> Loaded[Model]:
    """A model by catalogue name, from a TOML file, or from a Hugging Face ``config.json``."""
    return _load("model", ref, overrides)


def load_cluster(ref: str, overrides: Sequence[tuple[str, str]] = ()) -> Loaded[Cluster]:
    """A cluster by catalogue name or from a TOML file."""
    return _load("cluster", ref, overrides)


def load_profile(ref: str, overrides: Sequence[tuple[str, str]] = ()) -> Loaded[Profile]:
    """A software profile by catalogue name or from a TOML file."""
    return _load("profile", ref, overrides)


def describe(kind: Kind, tree: Tree) -> list[tuple[str, str, SourceKind, str]]:
    """Rows of (field, shown value, kind of source, source) of an entry."""
    mistakes: list[Mistake] = []
    spec = build(kind, tree, mistakes)
    raise_mistakes(kind, mistakes)
    return [
        (path, _show_value(path, _at(spec, path)), source.kind, source.text)
        for path, source in sources_of(kind, tree).items()
    ]


def read_tree(kind: Kind, ref: str, folder: Path = Path()) -> Tree:
    """The unchecked entry that a name or a path stands for; paths are relative to ``folder``."""
    return read_path(kind, folder / ref) if is_path(ref) else read_entry(kind, ref)


def apply_overrides(kind: str, tree: Tree, overrides: Sequence[tuple[str, str]]) -> None:
    """Put ``--set`` values into a tree, in place."""
    for key, text in overrides:
        path = resolve_key(kind, key)
        *tables, name = path.split(".")
        value = _worded_value(kind, path, text)
        node: Any = tree
        for table in tables:
            node = _inside(node, table, path)
        if name in REPLACES:
            node.pop(REPLACES[name], None)
        node[name] = Leaf(value, Source(value=text, kind="user", text=SET))


def _inside(node: Any, table: str, path: str) -> Any:
    """The table of that name, made where there is none, or the item of that number, which must be there."""
    if table.isdecimal():
        items = node if isinstance(node, list) else []
        if int(table) >= len(items):
            text = f"{SET} {path}: there is no number {table} among {len(items)}, counted from 0"
            hint = "`knee catalog NAME` lists them; use a file to add more"
            raise InputError(text, hint=hint, code="out-of-range", field=path)
        return items[int(table)]
    below = node.setdefault(table, {})
    if isinstance(below, Leaf) and not isinstance(below.value, list):
        text = f"{SET} {path}: {table} should be a table, not {below.value!r}"
        raise InputError(text, code="wrong-type", field=path)
    return below


def _load(kind: Kind, ref: str, overrides: Sequence[tuple[str, str]]) -> Loaded[Any]:
    if not overrides and not is_path(ref):
        entry = _catalog_entry(kind, ref)
        return replace(entry, sources=dict(entry.sources))  # whoever changes it changes their own
    return _read(kind, ref, overrides)


@cache
def _catalog_entry(kind: Kind, name: str) -> Loaded[Any]:
    """Only files change while a program runs; telling how much a cluster differs from the known ones reads them all."""
    return _read(kind, name, ())


def _read(kind: Kind, ref: str, overrides: Sequence[tuple[str, str]]) -> Loaded[Any]:
    tree = read_tree(kind, ref)
    apply_overrides(kind, tree, overrides)
    mistakes: list[Mistake] = []
    notes = complete(kind, tree, mistakes)
    spec = build(kind, tree, mistakes)
    raise_mistakes(ref, mistakes)
    return Loaded(spec=spec, sources=sources_of(kind, tree), assumptions=notes)


def _worded_value(kind: str, path: str, text: str) -> Any:
    """Text of an option as a file would have it; numbers and units are read where the file's are."""
    field = field_at(kind, path)
    assert field is not None
    if str(field.type).startswith("tuple"):
        if "str" not in str(field.type):
            text = f"{SET} {path}: a list of tables cannot be given as an option"
            hint = f"change one value, such as {path}.0.NAME, or use a file"
            raise InputError(text, hint=hint, code="not-an-override", field=path)
        return [part.strip() for part in text.replace("-", ",").split(",")]
    return text.strip()


def _at(spec: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(spec, tuple):
            spec = spec[int(part)]
        else:
            spec = spec[part] if isinstance(spec, dict) else getattr(spec, part)
    return spec


def _show_value(path: str, value: Any) -> str:
    unit = unit_of(path)
    if value is None:
        return "none"
    if unit == "frac":
        return f"{value:g}"
    if unit is not None:
        return units.show(value, unit)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


NOT_WHOLE = "batch-not-whole"
"""Code of a local batch that makes no whole number of sequences on so many GPUs."""
_COUNTS = ("gpus", "global_batch", "seq_len")
_JOB_KEYS = ("model", "cluster", "profile", *_COUNTS, "local_batch", "plan")
_USER = Source(value=None, kind="user", text="the plan's options")


def make_job(
    model: Model,
    cluster: Cluster,
    profile: Profile,
    *,
    gpus: int,
    global_batch: int | None = None,
    local_batch: float | None = None,
    seq_len: int | None = None,
    plan_options: Mapping[str, Any] | None = None,
) -> tuple[Job, tuple[str, ...]]:
    """A job, and sentences about the defaults that completed it. A plan option of None was not given."""
    notes: list[str] = []
    check_described(gpus, cluster)
    if seq_len is None:
        seq_len = min(DEFAULT_SEQ_LEN, model.max_seq_len)
        longest = ", the model's maximum" if seq_len < DEFAULT_SEQ_LEN else ""
        text = f"seq_len defaulted to {seq_len:,}{longest}"
        notes.append(Note("default-seq-len", text))
    batch = global_batch_of(gpus, global_batch=global_batch, local_batch=local_batch)
    options = {name: value for name, value in (plan_options or {}).items() if value is not None}
    _fill_degrees(options, gpus, notes)
    if model.experts is not None and gpus > 1 and "ep" not in options:
        notes.append(Note("default-degree", "ep defaulted to 1: every GPU computes all experts of a layer"))
    _fill_micro_batch(options, batch, notes)
    if "precision" not in options and cluster.gpu.bf16_flop_per_s is None:
        options["precision"] = "fp16"
        text = f"precision defaulted to fp16: {cluster.gpu.name} has no bf16 tensor cores"
        notes.append(Note("default-precision", text))
    if options.get("recompute") == "blocks" and "recompute_frac" not in options:
        options["recompute_frac"] = 0.5
        notes.append(Note("default-recompute-frac", "recompute_frac defaulted to 0.5: every second block"))
    plan = _plan(options)
    job = Job(model=model, cluster=cluster, profile=profile, plan=plan, gpus=gpus, global_batch=batch, seq_len=seq_len)
    return job, tuple(notes)


def default_profile_note() -> Note:
    """Said where no profile was named."""
    return Note("default-profile", f"profile defaulted to {DEFAULT_PROFILE}")


def global_batch_of(gpus: int, *, global_batch: int | None, local_batch: float | None) -> int:
    """Sequences of a step: as given, or those of a GPU times the GPUs."""
    if global_batch is not None and local_batch is not None:
        text = f"global_batch {global_batch} and local_batch {local_batch} are both given"
        hint = "give only one of them: global_batch = local_batch * gpus"
        raise SpecError(text, hint=hint, code="contradiction", field="global_batch")
    if global_batch is not None:
        if global_batch > MOST:
            raise out_of_range("global_batch", global_batch, f"more than {MOST:,} is not supported")
        return global_batch
    if local_batch is None:
        hint = "give global_batch (sequences per step) or local_batch (sequences per step and per GPU)"
        raise SpecError("the batch is missing", hint=hint, code="missing-argument", field="global_batch")
    if not 0 < local_batch <= MOST:
        raise out_of_range("local_batch", local_batch, f"it must be above 0 and at most {MOST:,}")
    total = local_batch * gpus
    if total > MOST:
        text = f"local_batch({local_batch:g}) * gpus({gpus}) = {total:,.0f} sequences; more than {MOST:,} is not "
        text += "supported"
        raise SpecError(text, code="out-of-range", field="local_batch")
    if not (total >= 1 and math.isclose(total, round(total), rel_tol=1e-9)):
        text = f"local_batch({local_batch:g}) * gpus({gpus}) = {total:g} is not a whole number of sequences"
        hint = "local_batch is the global batch divided by all GPUs; choose one whose product is a whole number"
        raise SpecError(text, hint=hint, code=NOT_WHOLE, field="local_batch")
    return round(total)


def _fill_degrees(options: dict[str, Any], gpus: int, notes: list[str]) -> None:
    """The data-parallel degree that was left out becomes whatever fills the GPUs."""
    sharding = options.get("sharding", fields_of("plan")["sharding"].default)
    # DDP shards nothing, so its ranks are replicas; HSDP with a shard size given needs the number of copies.
    copies = sharding == "ddp" or (sharding == "hsdp" and "dp_shard" in options)
    open_axis = "dp_replicate" if copies else "dp_shard"
    if open_axis in options:
        return
    other = "dp_shard" if open_axis == "dp_replicate" else "dp_replicate"
    factors = {axis: _degree(options, axis) for axis in (other, "tp", "pp", "cp")}
    used = math.prod(factors.values())
    if gpus % used:
        shown = " * ".join(f"{axis}({size})" for axis, size in factors.items())
        text = f"{shown} does not divide gpus({gpus})"
        raise SpecError(text, hint=f"make the product a divisor of {gpus}", code="does-not-divide", field="gpus")
    options[open_axis] = gpus // used
    all_gpus = "the only GPU" if gpus == 1 else f"the {gpus:,} GPUs"
    notes.append(Note("default-degree", f"{open_axis} defaulted to {gpus // used:,}, which fills {all_gpus}"))


def _degree(options: Mapping[str, Any], axis: str) -> int:
    value = options.get(axis, 1)
    try:
        size = int(value)
    except (TypeError, ValueError):
        text = f"plan.{axis}: should be a whole number, not {value!r}"
        raise SpecError(text, code=NO_NUMBER, field=f"plan.{axis}") from None
    if size < 1:
        raise out_of_range(f"plan.{axis}", size, "it must be at least 1")
    return size


def _fill_micro_batch(options: dict[str, Any], global_batch: int, notes: list[str]) -> None:
    if "micro_batch" in options:
        return
    size, why = 1, "the pipeline bubble is smallest with many microbatches"
    if _degree(options, "pp") == 1:
        size = max(1, global_batch // (_degree(options, "dp_replicate") * _degree(options, "dp_shard")))
        why = "all sequences of a data-parallel rank in one microbatch"
    options["micro_batch"] = size
    notes.append(Note("default-micro-batch", f"micro_batch defaulted to {size}: {why}"))


def _plan(options: Mapping[str, Any]) -> Plan:
    """Checked once: grids ask for the same plan at many points."""
    try:
        return _checked_plan(tuple((name, type(value), value) for name, value in options.items()))
    except TypeError:  # a list cannot be kept
        return _checked_plan.__wrapped__(tuple((name, type(value), value) for name, value in options.items()))


@lru_cache(maxsize=4096)
def _checked_plan(options: tuple[tuple[str, type, Any], ...]) -> Plan:
    mistakes: list[Mistake] = []
    plan = build("plan", _plan_tree({name: value for name, _, value in options}), mistakes, "plan.")
    raise_mistakes("plan", mistakes)
    assert isinstance(plan, Plan)
    return plan


def _plan_tree(options: Mapping[str, Any]) -> Tree:
    placement = options.get("placement")
    if isinstance(placement, str):
        options = {**options, "placement": placement.replace("-", ",").split(",")}
    modules = options.get("recompute_modules")
    if isinstance(modules, str):
        options = {**options, "recompute_modules": modules.split("+")}
    return {name: Leaf(value, _USER) for name, value in options.items()}


def load_job(
    path: str | Path, overrides: Sequence[tuple[str, str]] = (), *, given: Mapping[str, Any] | None = None
) -> Loaded[Job]:
    """A job file: ``model``, ``cluster``, ``profile`` by name, path or table, the sizes, and ``[plan]``.

    What is ``given`` besides, under the same keys, replaces or completes what the file says. Its paths are
    relative to the working directory, the file's to the file.
    """
    path, given = Path(path), given or {}
    label = f"{path.name} with the options given" if given else path.name
    raw = _completed(read_layers(path, anchored=_anchored), given)
    model, cluster, profile, plan = split_overrides(overrides)
    mistakes = _unknown_keys(raw)
    parts: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    notes: list[str] = [] if "profile" in raw else [default_profile_note()]
    named: dict[Kind, Overrides] = {"model": model, "cluster": cluster, "profile": profile}
    for kind, changes in named.items():
        parts[kind] = _part(kind, raw, path, changes, sources, mistakes, notes)
    sizes = _sizes(raw, mistakes)
    options = _options(raw, plan, mistakes)
    raise_mistakes(label, mistakes)
    try:
        job, more = make_job(**parts, **sizes, plan_options=options)
    except SpecError as error:
        raise SpecError(f"{label}: {error.message}", hint=error.hint, code=error.code, field=error.field) from None
    said = {key: raw[key] for key in raw if key in sizes} | {f"plan.{key}": options[key] for key in options}
    changed = {f"plan.{key}" for key, _ in plan}
    sources |= {
        key: Source(value=value, kind="user", text=SET if key in changed else path.name) for key, value in said.items()
    }
    return Loaded(spec=job, sources=sources, assumptions=(*notes, *more))


def _anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of a file are relative to it: of its parts, and of what stands in their tables."""
    return {
        key: _moved(value, folder) if key in ("model", "cluster", "profile") else value for key, value in raw.items()
    }


def _moved(part: Any, folder: Path) -> Any:
    if isinstance(part, str):
        return str(folder / part) if is_path(part) else part
    if isinstance(part, dict):
        return part | {key: _moved(part[key], folder) for key in ("base", "gpu") if key in part}
    return part


def _completed(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The file under what is given; one batch replaces the other, and a plan is joined option by option."""
    batches = {"global_batch", "local_batch"}
    dropped = batches if batches & given.keys() else set()
    whole = {key: value for key, value in raw.items() if key not in dropped} | dict(given)
    plan = raw.get("plan", {})
    if "plan" in given:
        # A plan of the file that is no table stays, to be told.
        whole["plan"] = {**plan, **given["plan"]} if isinstance(plan, dict) else plan
    return whole


def _unknown_keys(raw: Mapping[str, Any]) -> list[Mistake]:
    mistakes = []
    for key in raw:
        if key not in _JOB_KEYS:
            close = did_you_mean(key, _JOB_KEYS) or did_you_mean(key, fields_of("plan"))
            guess = f"; did you mean {'plan.' if close not in _JOB_KEYS else ''}{close}?" if close else ""
            text = f"is not a key of a job{guess}"
            mistakes.append(Mistake(code=UNKNOWN_FIELD, place=key, text=text, predicate=True))
    return mistakes


def _part(
    kind: Kind,
    raw: Mapping[str, Any],
    path: Path,
    changes: Sequence[tuple[str, str]],
    sources: dict[str, Source],
    mistakes: list[Mistake],
    notes: list[str],
) -> Any:
    """The model, cluster or profile of a job file; None with its mistakes noted."""
    given = raw.get(kind, DEFAULT_PROFILE if kind == "profile" else None)
    try:
        if isinstance(given, str):
            tree = read_tree(kind, given)
        elif isinstance(given, dict):
            tree = read_table(kind, {"name": f"{path.stem}-{kind}", **given}, where=path.name)
        else:
            text = f"should be a name, a path or a table, not {given!r}"
            mistakes.append(missing_field(kind) if given is None else Mistake(code=WRONG_TYPE, place=kind, text=text))
            return None
        apply_overrides(kind, tree, changes)
    except InputError as error:
        mistakes.append(Mistake(code=error.code, place=kind, text=error.message, hint=error.hint))
        return None
    notes += complete(kind, tree, mistakes, f"{kind}.")
    sources |= {f"{kind}.{field}": source for field, source in sources_of(kind, tree).items()}
    return build(kind, tree, mistakes, f"{kind}.")


def _sizes(raw: Mapping[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    for key in _COUNTS:
        value = raw.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool):
            mistakes.append(Mistake(code=NO_NUMBER, place=key, text=f"should be a whole number, not {value!r}"))
        elif value < 1:
            mistakes.append(below(key, value, "it must be at least 1"))
    local = raw.get("local_batch", 1.0)
    if not isinstance(local, (int, float)) or isinstance(local, bool):
        mistakes.append(Mistake(code=NO_NUMBER, place="local_batch", text=f"should be a number, not {local!r}"))
    if "gpus" not in raw:
        mistakes.append(missing_field("gpus"))
    return {key: raw.get(key) for key in (*_COUNTS, "local_batch")}


def _options(raw: Mapping[str, Any], changes: Sequence[tuple[str, str]], mistakes: list[Mistake]) -> dict[str, Any]:
    """Options of the plan as given; only their shape is checked here, as the degrees are not complete yet."""
    given = raw.get("plan", {})
    if not isinstance(given, dict):
        mistakes.append(Mistake(code=WRONG_TYPE, place="plan", text=f"should be a table, not {given!r}"))
        return {}
    options = {**given, **dict(changes)}
    found: list[Mistake] = []
    build("plan", _plan_tree(options), found, "plan.")
    # What concerns the plan as a whole is said again, and rightly, once it is complete.
    mistakes += [mistake for mistake in found if mistake.place != "plan"]
    return options


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_forget: list[Callable[[], None]] = []
MOST_KEPT = 1024
"""A grid may change a value of the catalogue in every point: not all of them are kept."""


def kept_for_a_question(read: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """As ``lru_cache``, until ``forget_files``."""
    kept = lru_cache(maxsize=MOST_KEPT)(read)
    _forget.append(kept.cache_clear)
    return kept  # type: ignore[return-value]  # lru_cache's type loses the arguments


def forget_files() -> None:
    """Where a question begins that may name files: a study, a sweep, a validation or a calibration."""
    for forget in _forget:
        forget()
