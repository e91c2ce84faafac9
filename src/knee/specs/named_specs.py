"""Specs by name or from a file: ``load_model("llama2-7b")``, ``load_cluster("mine.toml")``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from knee.base import units
from knee.base.errors import InputError
from knee.specs.catalog import Kind, Leaf, Source, SourceKind, Tree, entry_names, is_path, read_entry, read_path
from knee.specs.check import SET, Mistake, build, raise_mistakes, sources_of
from knee.specs.data_sheets import REPLACES, complete
from knee.specs.fields import field_at, resolve_key, unit_of
from knee.specs.hardware import Cluster
from knee.specs.model import Model
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


def catalog_entries(kind: Kind) -> list[str]:
    """Names in the catalogue."""
    return entry_names(kind)


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
            raise InputError(
                f"{SET} {path}: there is no number {table} among {len(items)}, counted from 0",
                hint="`knee catalog NAME` lists them; use a file to add more",
                code="out-of-range",
                field=path,
            )
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
            raise InputError(
                f"{SET} {path}: a list of tables cannot be given as an option",
                hint=f"change one value, such as {path}.0.NAME, or use a file",
                code="not-an-override",
                field=path,
            )
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
