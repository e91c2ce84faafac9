"""What the points of one question share is read once; the next one reads its files again, which may have changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_forget: list[Callable[[], None]] = []
MOST_KEPT = 1024
"""A grid may change a value of the catalogue in every point: not all of them are kept."""


def kept_for_a_question(read: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """As ``lru_cache``, until ``forget_files``."""
    kept = lru_cache(maxsize=MOST_KEPT)(read)
    _forget.append(kept.cache_clear)
    return kept  # type: ignore[return-value]  # lru_cache's type loses the arguments


def forget_files() -> None:
    """Where a question begins that may name files: a study, a sweep, a validation or a calibration."""
    for forget in _forget:
        forget()
