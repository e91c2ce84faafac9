"""What the declarations of a spec say of each field: the text below it, its unit and its default."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from knee.base.units import example
from knee.specs.fields import unit_of


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


def default_of(one: Field[Any]) -> Any:
    """The value where a file says nothing; ``MISSING`` where it has to say something."""
    return one.default_factory() if one.default_factory is not MISSING else one.default


def field_rows(spec: type) -> list[tuple[str, Any, str]]:
    """Name, default and description of each field."""
    words = descriptions(spec)
    return [(one.name, default_of(one), words.get(one.name, "")) for one in fields(spec)]
