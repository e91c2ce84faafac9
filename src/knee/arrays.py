"""Columns: what plans, passes and events are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


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
