"""Variants of a model, a cluster or a profile as one spec, so that all of them are simulated in one call.

A number in which the variants differ is a column over rows, a row for each plan of each variant; formulas take a column
wherever they take a number. What is no number (a kernel set, a switch) must be the same in all; of names the first
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np

from knee.base.arrays import Floats, Ints, names_of

Spec = TypeVar("Spec")


def side_by_side(variants: Sequence[Spec], index: Ints) -> Spec:
    """One spec for many rows: row i has the numbers of ``variants[index[i]]``."""
    return cast(Spec, _merged(variants, index))


def variant_rows(spec: Spec, index: Ints | slice) -> Spec:
    """The spec of some of the rows; a spec without columns is the same for all rows."""
    return cast(Spec, _cut(spec, index))


def has_columns(spec: object) -> bool:
    """Whether the spec stands for several."""
    return isinstance(spec, _HasColumns)


def columns_of(*specs: object) -> list[Floats]:
    """All columns of these specs: rows with equal ones have the same variant."""
    found: list[Floats] = []
    for spec in specs:
        if isinstance(spec, np.ndarray):
            found.append(spec)
        elif isinstance(spec, tuple):
            found += columns_of(*spec)
        elif has_columns(spec):
            found += columns_of(*(getattr(spec, name) for name in names_of(type(spec))))
    return found


class _HasColumns:
    """What tells a spec with columns from others, without a look at all its fields."""

    __slots__ = ()


@cache
def _with_columns(kind: type) -> type:
    if issubclass(kind, _HasColumns):
        return kind
    return type(kind.__name__, (kind, _HasColumns), {"__slots__": ()})


def _merged(values: Sequence[Any], index: Ints) -> Any:
    first = values[0]
    if all(value is first or value == first for value in values):
        return first
    if isinstance(first, tuple):
        return tuple(_merged(items, index) for items in zip(*values, strict=True))
    if is_dataclass(first):
        kind = type(first)
        every = {name: [getattr(value, name) for value in values] for name in names_of(kind)}
        return _made(kind, {name: own[0] if name == "name" else _merged(own, index) for name, own in every.items()})
    return np.array(values, dtype=np.float64)[index]


def _cut(value: Any, index: Ints | slice) -> Any:
    if isinstance(value, np.ndarray):
        return value[index]
    if isinstance(value, tuple):
        return tuple(_cut(item, index) for item in value)
    if has_columns(value):
        return _made(type(value), {name: _cut(getattr(value, name), index) for name in names_of(type(value))})
    return value


def _made(kind: type, values: dict[str, Any]) -> Any:
    """A spec with these values; each variant was checked when it was made, and a check does not take columns."""
    made: Any = object.__new__(_with_columns(kind))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
