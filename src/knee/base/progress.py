"""How far long work is: the one form in which every function that takes long reports it to its caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many of it are done, and of how many (0 where that is not known). The work stops
with whatever exception it raises."""


def silent(what: str, done: int, total: int) -> None:
    """The progress of a caller who did not ask for any."""


def watched(items: Iterable[T], what: str, total: int, progress: Progress | None) -> Iterator[T]:
    """The same items; progress is reported for each one that is done, and once more at the end."""
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
