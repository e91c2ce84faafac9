"""How far a long question is, said to whoever asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Counted = Callable[[str, int, int], None]
"""Hears of what is being done, how many of it are done, and of how many."""


def watched(items: Iterable[T], what: str, total: int, progress: Counted | None) -> Iterator[T]:
    """The same items; progress hears of each one that is done, and once more at the end."""
    if progress is None:
        yield from items
        return
    progress(what, 0, total)
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        if done < total:
            progress(what, done, total)
    progress(what, total, total)
