"""Exact arithmetic on sets of time intervals ``[start, end]``, in O(n log n), in seconds or whole nanoseconds.

Only differences of neighbouring times are ever summed, and they are summed exactly (``math.fsum``), so a
short overlap beside long intervals keeps its digits. Intervals may come in any order and may overlap.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knee.arrays import Bools

Times = NDArray[Any]
"""Seconds, or whole nanoseconds: what comes out has the unit that came in."""


def merge(start: Times, end: Times) -> tuple[Times, Times]:
    """The same set as sorted, disjoint intervals of positive length; those that touch become one."""
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


def union_s(start: Times, end: Times) -> float:
    """Time with at least one interval active."""
    begin, finish = merge(start, end)
    return math.fsum(finish - begin)


def overlap_s(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> float:
    """Time with both an interval of A and an interval of B active."""
    length, in_a, in_b = _sweep(a_start, a_end, b_start, b_end)
    return math.fsum(length[in_a & in_b])


def exposed_s(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> float:
    """Time with an interval of A and no interval of B active."""
    length, in_a, in_b = _sweep(a_start, a_end, b_start, b_end)
    return math.fsum(length[in_a & ~in_b])


def exposed_and_overlapped_s(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> tuple[float, float]:
    """Time with an interval of A and none of B active, and time with both: one sweep for the two."""
    length, in_a, in_b = _sweep(a_start, a_end, b_start, b_end)
    return math.fsum(length[in_a & ~in_b]), math.fsum(length[in_a & in_b])


def _sweep(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> tuple[Times, Bools, Bools]:
    """Cut time at every border of either set: length of each piece, and whether it lies in A and in B."""
    a, b = merge(a_start, a_end), merge(b_start, b_end)
    borders = np.sort(np.concatenate((*a, *b)))  # a border of both makes a piece of no length
    left = borders[:-1]
    return np.diff(borders), _inside(left, *a), _inside(left, *b)


def _inside(time: Times, start: Times, end: Times) -> Bools:
    """Whether each time lies in ``[start, end)`` of one of the disjoint, sorted intervals."""
    begun = np.searchsorted(start, time, side="right")
    ended = np.searchsorted(end, time, side="right")
    active: Bools = begun > ended
    return active


def covered(time: Times, start: Times, end: Times) -> Times:
    """How much of all time before each ``time`` lies in one of the disjoint, sorted intervals."""
    before = np.concatenate(([0], np.cumsum(end - start)))
    begun = np.searchsorted(start, time, side="right")
    inside = np.where(begun > 0, np.minimum(time, end[begun - 1]) - start[begun - 1], 0) if len(start) else 0 * time
    full: Times = before[np.maximum(begun - 1, 0)] + inside
    return full
