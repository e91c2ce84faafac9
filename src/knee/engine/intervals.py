"""Sets of time intervals ``[start, end]``, in O(n log n), in seconds or whole nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[Any]
"""Seconds, or whole nanoseconds: what comes out has the unit that came in."""


def merge(start: Times, end: Times) -> tuple[Times, Times]:
    """Return the same set as sorted, disjoint intervals of positive length; those that touch become one."""
    start, end = np.asarray(start), np.asarray(end)
    if not np.all(end >= start):
        raise ValueError("an interval ends before it starts, or has no number as a time")
    positive = end > start
    start, end = start[positive], end[positive]
    if start.size == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    # A new interval begins where a start lies beyond everything that began before it.
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def covered(time: Times, start: Times, end: Times) -> Times:
    """Return how much of all time before each ``time`` lies in one of the disjoint, sorted intervals."""
    before = np.concatenate(([0], np.cumsum(end - start)))
    begun = np.searchsorted(start, time, side="right")
    inside = np.where(begun > 0, np.minimum(time, end[begun - 1]) - start[begun - 1], 0) if len(start) else 0 * time
    full: Times = before[np.maximum(begun - 1, 0)] + inside
    return full


def outside(a: tuple[Times, Times], b: tuple[Times, Times]) -> tuple[Times, Times]:
    """Intervals of A that lie in none of B."""
    (a_start, a_end), (b_start, b_end) = merge(*a), merge(*b)
    borders = np.unique(np.concatenate((a_start, a_end, b_start, b_end)))
    left, right = borders[:-1], borders[1:]

    def within(start: Times, end: Times) -> Times:
        return np.searchsorted(start, left, side="right") > np.searchsorted(end, left, side="right")

    kept = within(a_start, a_end) & ~within(b_start, b_end)
    return merge(left[kept], right[kept])
