"""The dotted fields of a spec: what a file or ``--set`` may name, with the unit, text and default of each."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from dataclasses import Field as DeclaredField
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from knee.base import units
from knee.base.errors import InputError
from knee.base.units import example
from knee.specs.catalog import Kind, did_you_mean
from knee.specs.hardware import Cluster, Gpu, NodeNics
from knee.specs.model import Model
from knee.specs.plan import Plan
from knee.specs.profile import Profile

SPECS: dict[str, type] = {"model": Model, "gpu": Gpu, "cluster": Cluster, "profile": Profile, "plan": Plan}
NAMED_UNITS = {"usd_per_gpu_h": "usd_per_h", "nic_rate": "bytes_per_s"}
"""Fields whose dimension is not the end of their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One leaf of a spec. In a list of tables its path has a star for the number: ``fabric.tiers.*.nodes``."""

    path: str
    type: Any
    default: Any = None
    optional: bool = False
    """Whether it is in a table that a file may leave out."""


def unit_of(path: str) -> str | None:
    """The dimension that the name of the field at a dotted path carries; None for counts and words."""
    name = path.rpartition(".")[2]
    return NAMED_UNITS.get(name) or units.dimension(name)


@cache
def fields_of(kind: str) -> dict[str, Field]:
    """Dotted path -> field of a spec, tables opened that it always has; keys of a mapping stand for all its entries."""
    return {field.path: field for field in _open(SPECS[kind], "") if "*" not in field.path and not field.optional}


def field_at(kind: str, path: str) -> Field | None:
    """The field at a full path, which may go through a list: ``fabric.tiers.0.nodes``."""
    return _all_fields(kind).get(_starred(path))


@cache
def _all_fields(kind: str) -> dict[str, Field]:
    """With what a file may say instead of a field, which no spec has."""
    extra = _open(NodeNics, "fabric.") if kind == "cluster" else []
    return {field.path: field for field in (*_open(SPECS[kind], ""), *extra)}


def _starred(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


@cache
def types_of(spec: type) -> dict[str, Any]:
    """Name -> type of the fields of a spec."""
    return get_type_hints(spec)


def _open(spec: type, prefix: str) -> list[Field]:
    hints = types_of(spec)
    opened: list[Field] = []
    for field in fields(spec):
        hint, path = hints[field.name], prefix + field.name
        if is_dataclass(hint) and isinstance(hint, type):
            opened += _open(hint, path + ".")
        elif get_origin(hint) is dict:
            key, value = get_args(hint)
            for name in get_args(key):
                opened += _open(value, f"{path}.{name}.")
        else:
            opened.append(Field(path=path, type=hint, default=field.default))
            if (table := optional_table(hint)) is not None:
                opened += _open(table, path + ".")
            if get_origin(hint) is tuple and is_dataclass(item := get_args(hint)[0]) and isinstance(item, type):
                opened += _open(item, f"{path}.*.")
    return opened


def optional_table(hint: Any) -> type | None:
    """The dataclass of a field that is a table or nothing: ``Experts | None``."""
    options = get_args(hint)
    found = (one for one in options if isinstance(one, type) and is_dataclass(one))
    return next(found, None) if type(None) in options else None


def find_field(kind: str, key: str) -> list[str]:
    """Paths of a spec that a key names: exactly, or by a suffix of whole components."""
    known, starred = _all_fields(kind), _starred(key)
    if "*" in key:
        return []
    if starred in known:
        return [key]
    # Every list on the way to a field needs its number in the key.
    ends = [path for path in known if path.endswith("." + starred) and path.count("*") == starred.count("*")]
    return [path.removesuffix(starred) + key for path in ends]


def known_keys(kind: str, table: str) -> list[str]:
    """Keys that a table of a spec may hold: ``known_keys("cluster", "fabric")``."""
    prefix = _starred(table) + "." if table else ""
    return sorted({path[len(prefix) :].split(".")[0] for path in _all_fields(kind) if path.startswith(prefix)})


Overrides = tuple[tuple[str, str], ...]


def split_overrides(pairs: Iterable[tuple[str, str]]) -> tuple[Overrides, Overrides, Overrides, Overrides]:
    """``--set`` pairs sorted into those of the model, the cluster, the profile and the plan.

    A key may start with ``model.``, ``cluster.``, ``profile.`` or ``plan.``; without it the key must fit one
    of the four only. Keys come back as full paths inside their spec.
    """
    sorted_pairs: dict[str, list[tuple[str, str]]] = {"model": [], "cluster": [], "profile": [], "plan": []}
    for key, text in pairs:
        spec, path = _place(key, tuple(sorted_pairs))
        sorted_pairs[spec].append((path, text))
    model, cluster, profile, plan = (tuple(found) for found in sorted_pairs.values())
    return model, cluster, profile, plan


def _place(key: str, specs: tuple[str, ...]) -> tuple[str, str]:
    first, _, rest = key.partition(".")
    if first in specs and rest:
        return first, resolve_key(first, rest)
    found = [(spec, path) for spec in specs for path in find_field(spec, key)]
    exact = [(spec, path) for spec, path in found if path == key]
    candidates = exact if len(exact) == 1 else found
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise _ambiguous(key, [f"{spec}.{path}" for spec, path in candidates])
    raise _unknown(key, [f"{spec}.{path}" for spec in specs for path in _all_fields(spec)])


def resolve_key(kind: Kind | str, key: str) -> str:
    """The one field of a spec that a ``--set`` key names."""
    found = find_field(kind, key)
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(key, found)
    raise _unknown(key, list(_all_fields(kind)))


class WrongKey(InputError):
    """A key that names no field, or several; ``trouble`` follows the key in the sentence."""

    def __init__(self, key: str, trouble: str, *, hint: str, code: str) -> None:
        super().__init__(f"--set {key}{trouble}", hint=hint, code=code, field=key)
        self.trouble = trouble


def _ambiguous(key: str, paths: list[str]) -> WrongKey:
    hint = "write the full dotted path"
    return WrongKey(key, f" could mean {', '.join(paths)}", hint=hint, code="ambiguous-field")


def _unknown(key: str, paths: list[str]) -> WrongKey:
    paths = [path.replace("*", "0") for path in paths]
    # Compare with full paths and with bare names, since either is what people write.
    names = {path: path for path in paths} | {path.rpartition(".")[2]: path for path in paths}
    close = did_you_mean(key, names) or did_you_mean(key.rpartition(".")[2], names)
    hint = f"did you mean {names[close]}?" if close else "`knee catalog NAME` lists all fields"
    return WrongKey(key, ": there is no such field", hint=hint, code="unknown-field")


@cache
def descriptions(spec: type) -> dict[str, str]:
    """Field -> the text that stands below its declaration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(spec))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found[one.target.id] = " ".join(after.value.value.split()).replace("``", "`")
    return found


def unit_words(name: str) -> str:
    """How a quantity is written: ``3.35 TB/s or 400 Gbit/s``; empty for counts and words."""
    unit = unit_of(name)
    return "" if unit is None else example(unit)


def default_of(one: DeclaredField[Any]) -> Any:
    """The value where a file says nothing; ``MISSING`` where it has to say something."""
    return one.default_factory() if one.default_factory is not MISSING else one.default
