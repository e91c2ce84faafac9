"""Columns: what plans, passes and events are made of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from statistics import NormalDist
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
T = TypeVar("T")
N = TypeVar("N", bound=np.generic)


_MIXERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(32))
FEW = 16
"""Rows that are not worth comparing."""


def names_of(kind: type) -> tuple[str, ...]:
    """Names of a dataclass's fields; ``dataclasses.fields`` is slow enough to show in a simulation."""
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return found


_NAMES: dict[type, tuple[str, ...]] = {}


def fingerprint(*columns: Floats | Ints | Bools) -> NDArray[np.uint64]:
    """64 bits of each row that differ where the row does: among 2^15 rows two share them by chance once in 10^10."""
    odd, half = _MIXERS
    mixed = np.full(len(columns[0]), odd)
    shifted = np.empty_like(mixed)
    for column in columns:
        whole = column.astype(np.float64 if column.dtype.kind == "f" else np.int64, copy=False)
        mixed ^= whole.view(np.uint64)
        mixed *= odd
        mixed ^= np.right_shift(mixed, half, out=shifted)
    return mixed


def equal_rows(*columns: Floats | Ints | Bools, few: int = FEW) -> tuple[Ints, Ints]:
    """Rows that differ in any column: (first row of each kind, kind of each row). Up to ``few`` rows are taken to
    differ."""
    if len(columns[0]) <= few:
        every = np.arange(len(columns[0]))
        return every, every
    key = fingerprint(*columns)
    same = _first_equal(key, np.arange(len(key)))
    is_first = np.zeros(len(key), dtype=np.bool_)
    is_first[same] = True
    number = np.cumsum(is_first) - 1
    return np.flatnonzero(is_first), number[same]


def _first_equal(key: NDArray[np.uint64], rows: Ints) -> Ints:
    """For each key one of the ``rows`` with an equal one, the same for all of them: a table of places, which takes a
    fifth of the time of sorting. Keys that meet in a place are told apart in another table."""
    bits = max(int(4 * len(key)).bit_length(), 8)
    place = (key >> np.uint64(64 - bits)).view(np.int64)
    at = np.empty(2**bits, dtype=np.int64)
    at[place] = np.arange(len(key))
    found = at[place]
    others = np.flatnonzero(key[found] != key)
    same = rows[found]
    if len(others):
        same[others] = _first_equal(key[others] * _MIXERS[0], rows[others])
    return same


def distinct(column: NDArray[N]) -> NDArray[N]:
    """The values of a column once each, in ascending order. The first call of ``np.unique`` for them would import
    NumPy's masked arrays, which takes 0.03 s."""
    ordered = np.sort(column, axis=None)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


@cache
def normal_deviations(covered_frac: float) -> float:
    """Standard deviations on each side of the mean that hold this share of a normal distribution, to four digits."""
    return round(NormalDist().inv_cdf((1.0 + covered_frac) / 2.0), 4)


def expanded(columns: T, index: Ints | slice) -> T:
    """A dataclass of columns, or of such dataclasses, with the rows of an index; a number or a word is the same in all
    rows."""
    if isinstance(columns, np.ndarray):
        return cast(T, columns[index])
    if columns is None or isinstance(columns, int | float | tuple):
        return columns
    cut: dict[str, Any] = {
        name: x[index] if isinstance(x := getattr(columns, name), np.ndarray) else expanded(x, index)
        for name in names_of(type(columns))
    }
    return type(columns)(**cut)


def joined(first: T, *others: T) -> T:
    """Dataclasses of columns, or columns, one below the other."""
    if isinstance(first, np.ndarray):
        return cast(T, np.concatenate((first, *cast(Any, others))))
    if first is None or isinstance(first, int | float | tuple):
        return first
    columns = {name: [getattr(first, name), *(getattr(one, name) for one in others)] for name in names_of(type(first))}
    return type(first)(
        **{n: np.concatenate(c) if isinstance(c[0], np.ndarray) else joined(*c) for n, c in columns.items()}
    )


class Columns:
    """A dataclass whose fields are columns, or dataclasses of columns: what is done to all of them at once."""

    __slots__ = ()

    def rows(self, index: Ints | slice) -> Self:
        """Some of the rows."""
        return expanded(self, index)

    def plus(self, other: Self) -> Self:
        """The sum of both, column by column."""
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names_of(type(self))})

    def times(self, factor: Floats | Bools | float) -> Self:
        """Every column times a factor."""
        return type(self)(**{name: factor * getattr(self, name) for name in names_of(type(self))})


def blended(a: T, b: T, share: Floats | float) -> T:
    """Columns between those of two dataclasses, of which the second has that share; exactly one of them at 0 and 1."""
    if a is None or a is b:
        return a
    if isinstance(a, np.ndarray):
        return cast(T, (1.0 - share) * a + share * cast(Any, b))
    names = names_of(type(a))
    return type(a)(**{name: blended(getattr(a, name), getattr(b, name), share) for name in names})


@contextmanager
def extreme_values() -> Iterator[None]:
    """Inside, sizes and rates that no hardware has may overflow to infinity; whoever answers checks that and says so.

    What follows an overflow may also be no number (infinity less infinity). A NaN that no overflow explains is a bug:
    it warns, as outside, and tests make errors of warnings.
    """
    overflowed = False

    def note(kind: str, _flag: int) -> None:
        nonlocal overflowed
        if kind != "invalid value":
            overflowed = True
        elif not overflowed:
            warnings.warn("invalid value (NaN) without an overflow", RuntimeWarning, stacklevel=2)

    with np.errstate(over="call", under="call", divide="call", invalid="call", call=note):
        yield


class ByValue:
    """Equality of a dataclass that has columns, which the generated ``==`` does not compare; with ``eq=False``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self) if field.compare]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        """Equal ones have as many rows; hashing all of them would take long."""
        return hash((type(self), *(getattr(getattr(self, f.name), "size", 0) for f in fields(self))))  # type: ignore[arg-type]


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal; what is not a number equals itself, as in a copy."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    return bool(a == b or (a != a and b != b))
