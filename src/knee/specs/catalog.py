"""Entries of the catalogue and of users' files: reading, inheritance, and where each value comes from.

An entry is a tree of tables whose leaves are ``Leaf``: a value as written, with its source. In a file a leaf
is bare (``layers = 32``) or carries its own source::

    hbm_bytes_per_s = { value = "3.35 TB/s", kind = "vendor", source = "NVIDIA H100 datasheet" }

``source`` and ``kind`` of a table cover every bare value in it. ``base = "other-entry"`` inherits; where a name is
taken, a path is too, relative to the file that it stands in.

A cluster of the catalogue may have other names, by which files of runs and drivers call it: ``aliases`` of its GPU,
``loose_aliases`` that several boards share (with the board that is meant), and ``fabric_aliases`` of its network.
A file of ``gpus/`` may hold clusters too: a table with a line ``gpu = "..."`` is one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from knee.base import files as text_files
from knee.base.errors import InputError
from knee.base.limits import MOST_JSON_BYTES, MOST_TOML_BYTES
from knee.specs.huggingface_families import read_config

Kind = Literal["model", "gpu", "cluster", "profile"]
SourceKind = Literal["vendor", "measured", "published", "fitted", "assumed", "user"]

KINDS: tuple[Kind, ...] = get_args(Kind)
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)
LONGEST_WORD, MOST_WORDS = 80, 1000
"""Words that are compared with a misspelt one."""
CLOSE = 0.65
"""Share of letters that a suggestion has in common with it: 0.67 for tpu and cpu, 0.6 for nan and finland."""
DATA_SHEET = frozenset(("hbm_bytes", "hbm_bytes_per_s", "tdp_w"))
RATES = frozenset(("fp16_flop_per_s", "bf16_flop_per_s"))
"""What a table of a GPU of its own has, and one of these."""
ALIASES = frozenset(("aliases", "loose_aliases", "fabric_aliases"))
"""Keys of a catalogue cluster that hold its other names and no values of the spec."""
ROOT = Path(__file__).parent.parent / "catalog"

_HEADER = re.compile(r"""^\["?((?<=")[A-Za-z0-9_.-]+(?=")|[A-Za-z0-9_-]+)"?\]\s*$""", re.MULTILINE)
"""A table's name: in quotation marks if it has a dot; tables inside an entry have a dot and none."""

_HAS_GPU = re.compile(r"^gpu = ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where one value comes from."""

    value: Any
    """The value as it was written, with its unit."""
    kind: SourceKind
    text: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of an entry, not yet checked."""

    value: Any
    source: Source


Tree: TypeAlias = dict[str, "Leaf | Tree | list[Tree]"]


def entry_names(kind: Kind) -> list[str]:
    """Names of a kind of catalogue entry, in alphabetical order."""
    return sorted(_index(kind))


def read_entry(kind: Kind, name: str) -> Tree:
    """The catalogue entry of that name, with what it inherits."""
    return _resolve(kind, _raw_entry(kind, name), default=None, within=(name,), folder=ROOT)


@cache
def gpu_aliases() -> dict[str, str]:
    """Names of GPUs in files of runs, and the catalogue's own -> the cluster that stands for servers with that GPU."""
    found = {alias: name for name, aliases in _aliases("aliases") for alias in aliases}
    own = {str(_gpu_name(name)): name for name in dict.fromkeys(found.values())}
    return found | own | {alias: name for name, aliases in _aliases("loose_aliases") for alias in aliases}


@cache
def loose_gpu_aliases() -> dict[str, str]:
    """Names that several boards share -> words for the board that is taken."""
    return {alias: board for _, aliases in _aliases("loose_aliases") for alias, board in aliases.items()}


@cache
def fabric_aliases() -> dict[str, str | None]:
    """Words for networks -> the cluster that has it; None where it is what the GPU's usual server has."""
    usual = {name for name, _ in _aliases("aliases")}
    found = {word: None if name in usual else name for name, words in _aliases("fabric_aliases") for word in words}
    return dict(sorted(found.items(), key=lambda item: item[1] is None))


def is_path(ref: str) -> bool:
    """Whether a word names a file, and not an entry of the catalogue."""
    return ref.endswith((".toml", ".json")) or "/" in ref or "\\" in ref


def read_table(kind: Kind, raw: dict[str, Any], *, where: str, folder: Path = Path()) -> Tree:
    """An entry written by a user; ``where`` becomes the source of its bare values, paths are relative to ``folder``."""
    return _resolve(kind, raw, default=("user", where), within=(), folder=folder)


def read_path(kind: Kind, path: Path, within: tuple[str, ...] = ()) -> Tree:
    """The entry of a file: TOML, or a model's ``config.json``."""
    if kind == "model" and path.suffix not in (".toml", ".json") and not path.exists():
        hint = "knee does not download models: save the model's config.json, and give its path"
        raise InputError(f"there is no file or folder {str(path)!r}", hint=hint, code="no-file", field=kind)
    if kind == "model" and (path.suffix == ".json" or path.is_dir()):
        file = path / "config.json" if path.is_dir() else path
        raw = read_config(file, read_text(file, field="model"))
    else:
        raw = {"name": path.stem, **read_toml(path, field=kind)}
    if kind == "cluster" and raw.keys() & DATA_SHEET:
        text, hint = f"{path.name} describes a GPU, not a cluster", f'write a cluster file with gpu = "{path.name}"'
        raise InputError(text, hint=f"{hint}, [node] and [fabric]", code="other-document", field=kind)
    if (other := _other_kind(kind, raw.get("base"))) is not None:
        text = f"{path.name} describes a {other}, not a {kind}: its base is {raw['base']}"
        raise InputError(text, hint=f"give it as the {other}", code="other-document", field=kind)
    within = (*within, os.path.realpath(path))
    return _resolve(kind, raw, default=("user", path.name), within=within, folder=path.parent)


def read_layers(
    path: Path,
    *,
    field: str | None = None,
    anchored: Callable[[dict[str, Any], Path], dict[str, Any]],
    named: Callable[[str], Path | None] = lambda _: None,
    within: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A study, site or job file laid over its ``base``, table by table; lists are replaced as a whole.

    ``anchored`` makes the paths in a file's text independent of its folder; ``named`` finds bases that have a name.
    """
    raw = read_toml(path, field=field)
    base = raw.pop("base", None)
    if base is None:
        return anchored(raw, path.parent)
    if not isinstance(base, str):
        raise InputError(f"{path.name}: base is {base!r}; it must be a path", code="wrong-type", field="base")
    below, here = named(base) or path.parent / base, os.path.realpath(path)
    if here in within:
        text = f"{path.name} inherits from itself: {' -> '.join(map(os.path.basename, (*within, here)))}"
        raise InputError(text, code="contradiction", field="base")
    under = read_layers(below, field="base", anchored=anchored, named=named, within=(*within, here))
    return _merge(under, anchored(raw, path.parent))


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, table by table; lists are replaced as a whole."""
    both = {key for key in base.keys() & over.keys() if isinstance(base[key], dict) and isinstance(over[key], dict)}
    return base | over | {key: _merge(base[key], over[key]) for key in both}


def read_toml(path: Path, *, field: str | None = None) -> dict[str, Any]:
    """A TOML file, or one sentence about what is wrong with it and where; ``field`` names the argument."""
    # a file that is too large is a ValueError, too
    text = read_text(path, most=MOST_TOML_BYTES, field=field)
    try:
        tree = tomllib.loads(text)
        if text_files.is_deep(tree):  # a dotted key nests without a bracket
            raise RecursionError
        return tree
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}", code="not-toml", field=field) from None
    except (ValueError, RecursionError) as error:  # as Python's own parsers end at numbers without end
        why = "it is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
        raise InputError(f"{path} is not valid TOML: {why}", code="not-toml", field=field) from None


@cache
def catalog_file(name: str) -> dict[str, dict[str, Any]]:
    """A file of the catalogue that has no entries of specs, such as ``constants.toml``, as it is written; read once."""
    return read_toml(ROOT / name)


def read_text(path: Path, *, most: int = MOST_JSON_BYTES, field: str | None = None) -> str:
    """A text file, or one sentence about why it cannot be read; ``field`` names the argument."""
    try:
        return text_files.read_text(path, most=most)
    except (OSError, UnicodeDecodeError) as error:
        known = field in KINDS
        hint = "check the path, or use a name from `knee catalog`" if known else None
        raise text_files.cannot_read(path, error, field=field, hint=hint) from None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The closest of the known words, if one is close; long ones are no slips of the pen, and take the square of their
    length."""
    if len(word) > LONGEST_WORD:
        return None
    import difflib

    short = [name for name in islice(known, MOST_WORDS) if len(name) <= LONGEST_WORD]
    close = difflib.get_close_matches(word.lower(), short, n=1, cutoff=CLOSE)
    return close[0] if close else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """``did you mean ...?`` for a misspelt word, if one is close."""
    close = did_you_mean(word, known)
    return f"did you mean {close}?" if close else None


def walk(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every leaf with its dotted path; items of a list are numbered from 0."""
    for key, node in tree.items():
        path = f"{prefix}{key}"
        if isinstance(node, Leaf):
            yield path, node
        elif isinstance(node, list):
            for number, item in enumerate(node):
                yield from walk(item, f"{path}.{number}.")
        else:
            yield from walk(node, path + ".")


# The catalogue's files.


@cache
def _index(kind: Kind) -> dict[str, str]:
    """Entry name -> its text. Headers are found by their text, so that only the entry in question is parsed."""
    own = _entries(f"{kind}s")
    if kind == "gpu":
        return {name: text for name, text in own.items() if not _HAS_GPU.search(text)}
    if kind == "cluster":
        return own | {name: text for name, text in _entries("gpus").items() if _HAS_GPU.search(text)}
    return own


@cache
def _entries(folder: str) -> dict[str, str]:
    return {
        name: text[start:end]
        for path in sorted((ROOT / folder).glob("*.toml"))
        for text in (path.read_text(encoding="utf-8"),)
        for name, start, end in _places(text)
    }


def _aliases(key: str) -> Iterator[tuple[str, Any]]:
    """Each cluster that has the key, in the files' order, and what it says; only their text is parsed."""
    line = f"\n{key} = "
    return ((name, _parsed("cluster", name)[key]) for name, text in _index("cluster").items() if line in text)


def _places(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of each entry of a file: it ends where the next begins, and its tables are between."""
    headers = list(_HEADER.finditer(text))
    for header, after in zip_longest(headers, headers[1:]):
        yield header[1], header.start(), after.start() if after else len(text)


@cache
def _parsed(kind: Kind, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = tomllib.loads(_index(kind)[name])[name]
    return entry


def _raw_entry(kind: Kind, name: str) -> dict[str, Any]:
    if not name.strip():
        hint = "`knee catalog` lists all"
        raise InputError(f"no {kind} is given", hint=hint, code="missing-argument", field=kind)
    if name not in _index(kind):
        raise InputError(f"no {kind} named {name!r}", hint=_name_hint(kind, name), code="unknown-name", field=kind)
    return {"name": name} | {key: value for key, value in _parsed(kind, name).items() if key not in ALIASES}


def _name_hint(kind: Kind, name: str) -> str:
    """What may be meant by a name that no entry of this kind has: a GPU's clusters, a file in this folder, a slip."""
    other = _other_kind(kind, name)
    if other == "gpu" and kind == "cluster":
        having = [cluster for cluster in _index(kind) if _gpu_name(cluster) == name]
        return f"{name} is a GPU; clusters that have it: {', '.join(having) or 'none'}"
    if other is not None:
        return f"{name} is a {other}; `knee catalog` lists every {kind}"
    close = did_you_mean(name, [*_index(kind), *_files_here()])
    return (f"did you mean {close}? " if close else "") + "`knee catalog` lists all"


def _other_kind(kind: Kind, name: object) -> Kind | None:
    """The kind that has an entry of this name, where the kind in question has none."""
    if not isinstance(name, str) or name in _index(kind):
        return None
    return next((other for other in KINDS if name in _index(other)), None)


def _gpu_name(cluster: str) -> object:
    raw = _raw_entry("cluster", cluster)
    return raw["gpu"] if "gpu" in raw else _gpu_name(raw["base"])


def _files_here() -> list[str]:
    try:
        return [name for name in os.listdir() if name.endswith(".toml")]
    except OSError:
        return []


# Sources and inheritance.

_Cover: TypeAlias = tuple[SourceKind, str]


def _resolve(kind: Kind, raw: dict[str, Any], *, default: _Cover | None, within: tuple[str, ...], folder: Path) -> Tree:
    """Annotate an entry, take the GPU of a cluster by name or path, and lay the entry over its base."""
    raw = dict(raw)
    base = raw.pop("base", None)
    gpu = raw.pop("gpu", None) if kind == "cluster" else None
    own = _annotate(raw, default)
    inherited = _base(kind, base, within, folder) if base is not None else {}
    if isinstance(gpu, str):
        # A named GPU replaces the inherited one: merging would keep kernels that the new chip does not have.
        inherited.pop("gpu", None)
        own["gpu"] = read_path("gpu", folder / gpu) if is_path(gpu) else read_entry("gpu", gpu)
    elif isinstance(gpu, dict):
        # So does a whole data sheet; fewer values are changes of the inherited GPU.
        if "base" in gpu or (gpu.keys() >= DATA_SHEET and gpu.keys() & RATES):
            inherited.pop("gpu", None)
        own["gpu"] = _resolve("gpu", gpu, default=_cover(raw, default), within=(), folder=folder)
    elif gpu is not None:
        own["gpu"] = _annotate({"gpu": gpu}, default)["gpu"]
    if kind == "cluster":
        _drop_other_network(inherited.get("fabric"), own.get("fabric"))
    return _merge(inherited, own)


def _drop_other_network(below: object, over: object) -> None:
    """NICs of a node replace an inherited rate of a GPU, and the other way round."""
    if isinstance(below, dict) and isinstance(over, dict):
        if "nic_bytes_per_s" in over:
            below.pop("nics_per_node", None), below.pop("nic_rate", None)
        elif over.keys() & {"nics_per_node", "nic_rate"}:
            below.pop("nic_bytes_per_s", None)


def _base(kind: Kind, name: object, within: tuple[str, ...], folder: Path) -> Tree:
    if not isinstance(name, str):
        text = f"base is {name!r}; it must be the name of a {kind}, or a path"
        raise InputError(text, code="wrong-type", field="base")
    known = os.path.realpath(folder / name) if is_path(name) else name
    if known in within:
        text = f"{kind} {name!r} inherits from itself: {' -> '.join(map(os.path.basename, (*within, known)))}"
        raise InputError(text, code="contradiction", field="base")
    if is_path(name):
        return read_path(kind, folder / name, within)
    return _resolve(kind, _raw_entry(kind, name), default=None, within=(*within, name), folder=ROOT)


def _cover(raw: dict[str, Any], default: _Cover | None) -> _Cover | None:
    """The source that covers a table's bare values: its own, or that of the table around it."""
    text = raw.get("source")
    if not isinstance(text, str):
        return default
    # A fabric has a field named kind; its words are not kinds of source, so the two cannot be confused.
    own = next((kind for kind in SOURCE_KINDS if kind == raw.get("kind")), None)
    return own or (default[0] if default else "assumed"), text


def _annotate(raw: dict[str, Any], default: _Cover | None) -> Tree:
    cover = _cover(raw, default)
    tree: Tree = {}
    for key, value in raw.items():
        if key == "source" or (key == "kind" and value in SOURCE_KINDS):
            continue
        if isinstance(value, dict) and "value" in value:
            tree[key] = _leaf(value["value"], _cover(value, cover))
        elif isinstance(value, dict):
            tree[key] = _annotate(value, cover)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            tree[key] = [_annotate(item, cover) for item in value]
        else:
            tree[key] = _leaf(value, cover)
    return tree


def _leaf(value: Any, cover: _Cover | None) -> Leaf:
    kind, text = cover or ("assumed", "no source given")
    return Leaf(value, Source(value=value, kind=kind, text=text))
