"""What the catalogue has: entries, and every value of them with its source."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from knee.base.errors import InputError
from knee.engine.reliability.goodput import conditions_of
from knee.engine.reliability.goodput import default_of as default_rate
from knee.engine.workload.parameters import active_parameter_count, mtp_parameter_count, parameter_count
from knee.show.result import Result
from knee.specs.catalog import KINDS, ROOT, Kind, Leaf, Tree, is_path, nearest, read_toml, walk
from knee.specs.check import Mistake, build, raise_mistakes
from knee.specs.constants import constant, constant_rows
from knee.specs.data_sheets import complete, kind_of_file
from knee.specs.fields import SPECS, default_of, descriptions, optional_table, unit_words
from knee.specs.hardware import Cluster
from knee.specs.load import describe, read_tree

# An entry as a complete TOML file that loads again: every value with its unit and source, every field explained.

WIDTH = 100


def entry_toml(kind: str, tree: Tree) -> str:
    """The file's text. What most values share as their source stands once, at the top."""
    spec = SPECS[kind]
    shared = Counter((leaf.source.kind, leaf.source.text) for _, leaf in walk(tree)).most_common(1)[0][0]
    head = [f"# A {kind}. Every field is listed; a field that is commented out has the default value shown.", ""]
    head += [f"source = {_word(shared[1])}", f"kind = {_word(shared[0])}", ""]
    return "\n".join([*head, *_table(spec, tree, "", shared)]).rstrip() + "\n"


def _table(spec: type, tree: Tree, path: str, shared: tuple[str, str]) -> Iterator[str]:
    """Values first, since a table's header ends the values of the one around it."""
    hints, words = get_type_hints(spec), descriptions(spec)
    for one in fields(spec):
        node, hint = tree.get(one.name), hints[one.name]
        if isinstance(node, Leaf) or (node is None and not (is_dataclass(hint) or get_origin(hint) in (dict, tuple))):
            yield from _comment(words.get(one.name, ""), "" if node else unit_words(one.name))
            yield _line(one.name, node, shared) if isinstance(node, Leaf) else _default(one.name, default_of(one))
    for one in fields(spec):
        node, hint = tree.get(one.name), hints[one.name]
        below = f"{path}.{one.name}".lstrip(".")
        if isinstance(node, list):
            for item in node:
                yield from ("", f"[[{below}]]", *_table(get_args(hint)[0], item, below, shared))
        elif isinstance(node, dict) and get_origin(hint) is dict:
            for key, inner in node.items():
                assert isinstance(inner, dict)
                yield from ("", f"[{below}.{key}]", *_table(get_args(hint)[1], inner, f"{below}.{key}", shared))
        elif isinstance(node, dict):
            yield from ("", f"[{below}]", *_table(optional_table(hint) or hint, node, below, shared))


def _comment(words: str, unit: str) -> list[str]:
    """What the field means; a value that is there shows its unit itself."""
    text = f"{words} Written as {unit}." if unit else words
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH)]


def _line(name: str, leaf: Leaf, shared: tuple[str, str]) -> str:
    value = _word(leaf.value)
    if name == "name" or (leaf.source.kind, leaf.source.text) == shared:
        return f"{name} = {value}"
    return f"{name} = {{ value = {value}, kind = {_word(leaf.source.kind)}, source = {_word(leaf.source.text)} }}"


def _default(name: str, value: Any) -> str:
    return f"# {name} = {'none' if value in (None, MISSING) else _word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, float):
        return repr(value)
    # a JSON string, number or flag is a TOML one
    return json.dumps(value, ensure_ascii=False)


CONSTANTS = "constants"
SOURCES = {"counts": "counts_source", "params": "range_source", "tokens": "range_source", "flop": "range_source"}
"""Field of a table of ``knee budget`` -> that of its own source, where it has one."""
APART = ("kind", "source", "assumed", "not_published", *SOURCES.values())
LONG = 40
"""Letters of a value that is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogValue:
    """One value with where it comes from."""

    field: str
    value: Any
    """In base SI units, or a word."""
    shown: str
    """As it was written, with its unit; empty where the value is a sentence, which then is the source."""
    kind: str
    """What the source is: vendor, measured, published, fitted or assumed."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CatalogEntry(Result):
    """A model, GPU, cluster or profile, a table of ``knee budget``, or the constants of the cost model."""

    kind: str
    name: str
    path: str = ""
    """Of a file; empty for an entry of the catalogue."""

    @property
    def spec(self) -> Any:
        """The model, GPU, cluster or profile; for other kinds, the table of the file."""
        if self.kind == CONSTANTS:
            return {name: constant(*name.split(".", 1)) for name, *_ in constant_rows()}
        if self.kind in budget_tables():
            return budget_tables()[self.kind][self.name]
        return _spec(self.kind, self._tree(), self.path or self.name)

    @property
    def values(self) -> tuple[CatalogValue, ...]:
        """Every value of the entry."""
        spec = self.spec
        if self.kind in budget_tables():
            return tuple(_budget_value(field, value, spec) for field, value in spec.items() if field not in APART)
        described = constant_rows() if self.kind == CONSTANTS else describe(cast(Kind, self.kind), self._tree())
        found = tuple(
            CatalogValue(
                field=path,
                value=spec[path] if self.kind == CONSTANTS else _at(spec, path),
                shown=shown,
                kind=source_kind,
                source=source,
            )
            for path, shown, source_kind, source in described
        )
        return _with_reliability(spec, found) if self.kind == "cluster" else found

    @property
    def parameters(self) -> dict[str, int]:
        """Of a model: ``total`` without the layers of multi-token prediction, ``active`` (those that one token uses),
        and ``mtp``, those of multi-token prediction. Other kinds have none."""
        if self.kind != "model":
            return {}
        model = self.spec
        return {
            "total": parameter_count(model),
            "active": active_parameter_count(model),
            "mtp": mtp_parameter_count(model),
        }

    def to_toml(self) -> str:
        """A complete TOML file of the model, GPU, cluster or profile, which knee can load."""
        if self.kind not in KINDS:
            text = f"{self.name} is not one of {', '.join(KINDS)}, so it cannot be written as a file"
            raise InputError(text, code="unknown-choice", field="name")
        return entry_toml(self.kind, self._tree())

    def _tree(self) -> Tree:
        mistakes: list[Mistake] = []
        tree = read_tree(cast(Kind, self.kind), self.path or self.name)
        complete(self.kind, tree, mistakes)
        raise_mistakes(self.path or self.name, mistakes)
        return tree

    def _data(self) -> dict[str, Any]:
        counts = {"parameters": self.parameters} if self.kind == "model" else {}
        return {"name": self.name, "kind": self.kind, **counts, "values": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """One row per value."""
        return [asdict(value) for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CatalogEntries(Result):
    """All entries of the catalogue, by kind."""

    entries: tuple[CatalogEntry, ...]

    def _data(self) -> dict[str, Any]:
        names: dict[str, list[str]] = {}
        for entry in self.entries:
            names.setdefault(f"{entry.kind}s" if entry.kind in KINDS else entry.kind, []).append(entry.name)
        return names | {CONSTANTS: [name for name, *_ in constant_rows()]}

    def rows(self) -> list[dict[str, Any]]:
        """One row per entry."""
        return [{"kind": entry.kind, "name": entry.name} for entry in self.entries]

    def named(self, name: str) -> tuple[CatalogEntry, ...]:
        """The entries of a name: one, or one of each kind that has it; of a path the entry that its file describes."""
        found = tuple(entry for entry in self.entries if entry.name == name)
        if is_path(name) or (not found and Path(name).is_dir()):
            return (file_entry(name if is_path(name) else f"./{name}"),)
        if not found:
            text = f"nothing named {name!r} is in the catalogue"
            hint = nearest(name, [entry.name for entry in self.entries]) or "`knee catalog` lists all"
            raise InputError(text, hint=hint, code="unknown-name", field="name")
        return found


def file_entry(path: str) -> CatalogEntry:
    """What a user's file describes."""
    kind = "model" if not path.endswith(".toml") else kind_of_file(Path(path))
    leaf = read_tree(kind, path)["name"]
    assert isinstance(leaf, Leaf)
    return CatalogEntry(kind=kind, name=str(leaf.value), path=path)


@cache
def budget_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """What ``knee budget`` rests on: kind -> name -> what its file has."""
    laws = read_toml(ROOT / "scaling_laws.toml")
    return {
        "scaling_laws": {name: raw for name, raw in laws.items() if "form" in raw},
        "critical_batches": laws["critical_batch"],
        "families": read_toml(ROOT / "shape_families.toml"),
        "training_runs": read_toml(ROOT / "training_runs.toml"),
    }


def _with_reliability(cluster: Cluster, values: tuple[CatalogValue, ...]) -> tuple[CatalogValue, ...]:
    """Values of a cluster, with the defaults of what it does not say of its reliability."""
    found = {value.field: value for value in values if value.field != "reliability"}
    for name in conditions_of(cluster).defaults:
        value, source = default_rate("defaults", name)
        text, kind = f"default: {source.text}", source.kind
        field = f"reliability.{name}"
        found[field] = CatalogValue(field=field, value=value, shown=str(source.value), kind=kind, source=text)
    return tuple(found.values())


def _budget_value(field: str, value: Any, raw: dict[str, Any]) -> CatalogValue:
    shown, kind, source = _written(value), raw["kind"], raw.get(SOURCES.get(field, "")) or raw["source"]
    if field in raw.get("not_published", ()):
        kind, source = "assumed", raw["assumed"]
    elif isinstance(value, str) and len(value) > LONG:
        shown, source = "", value
    return CatalogValue(field=field, value=value, shown=shown, kind=kind, source=source)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return (" to " if isinstance(value[0], int | float) else ", ").join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _spec(kind: str, tree: Tree, label: str) -> Any:
    mistakes: list[Mistake] = []
    spec = build(kind, tree, mistakes)
    raise_mistakes(label, mistakes)
    return spec


def _at(spec: Any, path: str) -> Any:
    """The value at a dotted path; () and the like as lists, which JSON has."""
    for part in path.split("."):
        if isinstance(spec, tuple):
            spec = spec[int(part)]
        else:
            spec = spec[part] if isinstance(spec, dict) else getattr(spec, part)
    return list(spec) if isinstance(spec, tuple) else spec
