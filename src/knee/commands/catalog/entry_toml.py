"""An entry as a complete TOML file that loads again: every value with its unit and source, every field explained."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from knee.specs.catalog import Leaf, Tree, walk
from knee.specs.fields import SPECS, default_of, descriptions, optional_table, unit_words

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
        if isinstance(node, Leaf) or (node is None and not _is_table(hint)):
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


def _is_table(hint: Any) -> bool:
    return is_dataclass(hint) or get_origin(hint) in (dict, tuple)


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
