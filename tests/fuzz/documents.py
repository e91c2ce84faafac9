"""Trees as JSON, TOML and CSV, with tokens that stand for themselves."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from types import NoneType
from typing import Any

from fuzz import mutate
from fuzz.values import Raw, said

BARE = re.compile(r"[A-Za-z0-9_-]+")
MARK = "\x01raw{}\x01"
"""Stands for a token while json writes what surrounds it."""


def json_text(tree: Any, *, indent: int | None = None) -> str:
    """JSON as any program may have written it, right or wrong."""
    tokens: list[Raw] = []
    text = json.dumps(_marked(tree, tokens), indent=indent)
    for number, token in enumerate(tokens):
        text = text.replace(json.dumps(MARK.format(number)), token, 1)
    return text


def _marked(tree: Any, tokens: list[Raw]) -> Any:
    kind = type(tree)
    if kind in (str, float, bool, NoneType):
        return tree
    if kind is dict:
        return {key if isinstance(key, str) else str(key): _marked(one, tokens) for key, one in tree.items()}
    if kind in (list, tuple):
        return [_marked(one, tokens) for one in tree]
    if isinstance(tree, int) and not isinstance(tree, bool) and abs(tree) > 10**300:
        tree = Raw(digits(tree))
    if isinstance(tree, Raw):
        tokens.append(tree)
        return MARK.format(len(tokens) - 1)
    return tree


def digits(number: int) -> str:
    """A whole number of any size: Python itself refuses to write more than 4,300 digits."""
    if abs(number) < 10**4000:
        return str(number)
    return f"{'-' if number < 0 else ''}1{'0' * 5000}"


def toml_text(tree: Mapping[str, Any]) -> str:
    """TOML: tables under headings, what is deeper in one line."""
    lines = [f"{_key(key)} = {_toml(one)}" for key, one in tree.items() if not _is_table(one)]
    for key, one in tree.items():
        if isinstance(one, dict):
            lines += ["", f"[{_key(key)}]", *(f"{_key(name)} = {_toml(inner)}" for name, inner in one.items())]
        elif _is_table(one):
            for table in one:
                lines += ["", f"[[{_key(key)}]]", *(f"{_key(name)} = {_toml(inner)}" for name, inner in table.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    listed = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    return isinstance(value, dict) or bool(listed)


def _key(key: Any) -> str:
    return str(key) if BARE.fullmatch(str(key)) else json.dumps(str(key))


def _toml(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return digits(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps("none" if value is None else str(value))


def csv_text(rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> str:
    """CSV of rows that need not have the same columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column, "")) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return digits(value)
    return "" if value is None else said(value)


def encoded(rng: Random, text: str, *, damage: float = 0.15) -> bytes:
    """A file's bytes, damaged with some chance."""
    data = text.encode("utf-8", "surrogatepass")
    return mutate.change_bytes(rng, data) if rng.random() < damage else data
