"""``docs/errors.md`` has every code that an error may have, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from knee.base import errors
from knee.base.errors import KneeError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
BASE = "error"
"""Code of ``KneeError`` itself, which is not raised."""


@cache
def modules() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "knee").rglob("*.py"))


def texts(node: ast.AST | None) -> set[str]:
    """Codes written in an expression."""
    found = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)] if node is not None else []
    return {text for text in found if isinstance(text, str) and CODE.fullmatch(text)}


@cache
def nodes() -> tuple[ast.AST, ...]:
    return tuple(node for tree in modules() for node in ast.walk(tree))


def given() -> Iterator[ast.AST]:
    """What stands where a code is given: ``code=...`` in a call or a signature, and ``code = ...`` in a class."""
    for node in nodes():
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield node.value
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            pairs = [*zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)]
            pairs += [(arg, value) for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
            yield from (value for arg, value in pairs if arg.arg == "code")
        elif isinstance(node, ast.ClassDef):
            yield from (
                one.value
                for one in node.body
                if isinstance(one, ast.Assign) and [ast.unparse(target) for target in one.targets] == ["code"]
            )


def constants() -> dict[str, set[str]]:
    """Names of modules that hold words, such as ``NOT_WHOLE``."""
    found: dict[str, set[str]] = {}
    for tree in modules():
        for node in tree.body:
            if isinstance(node, ast.Assign):
                target = node.targets[0]
                names, values = ([target], [node.value])
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    names, values = target.elts, node.value.elts
                for name, value in zip(names, values, strict=True):
                    if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                        found.setdefault(name.id, set()).update(texts(value))
    return found


def raised() -> set[str]:
    known = constants()
    found: set[str] = set()
    for value in given():
        found |= texts(value)
        found |= {code for name in ast.walk(value) if isinstance(name, ast.Name) for code in known.get(name.id, ())}
    return found - {BASE, "int", "float"}


def documented() -> list[str]:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z0-9-]+)` \| [a-zA-Z`]", text, re.MULTILINE)


def test_every_code_is_documented_once_and_in_order() -> None:
    codes = documented()
    assert codes == sorted(set(codes))
    classes = {one.code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, KneeError)}
    assert raised() - set(codes) - classes == set(), "docs/errors.md lacks a line for these"


def test_every_documented_code_is_one_of_the_source() -> None:
    written = {node.value for node in nodes() if isinstance(node, ast.Constant)}
    assert set(documented()) - written == set()


def test_classes_are_documented_with_their_codes() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for one in (each for each in KneeError.__subclasses__() if each.__module__ == errors.__name__):
        assert f"| `{one.__name__}` | {int(one.exit_code)} | `{one.code}` |" in page
