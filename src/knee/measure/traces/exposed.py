"""When communication held the device up: the stretches with communication and no compute, and what ran in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.engine.intervals import covered, merge
from knee.measure.kineto.event_columns import Int64
from knee.measure.traces.device_time import Window, clipped
from knee.measure.traces.read_trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """One stretch, in nanoseconds of the trace's columns."""

    start_ns: int
    end_ns: int
    row: int
    """The communication kernel that fills most of it; of equals the longer one."""


def exposed_intervals(trace: Trace, window: Window) -> list[Exposed]:
    """In order and apart from each other; their lengths add up to ``exposed_comm_s`` of the window."""
    start, end = clipped(trace, window)
    of = trace.classified
    begin, finish = _beside((start[of.is_comm], end[of.is_comm]), (start[of.is_compute], end[of.is_compute]))
    rows = np.flatnonzero(of.is_comm & (end > start))
    row = rows[_fills_most(start[rows], end[rows], begin, finish)]
    return [
        Exposed(start_ns=a, end_ns=b, row=r)
        for a, b, r in zip(begin.tolist(), finish.tolist(), row.tolist(), strict=True)
    ]


def _beside(comm: tuple[Int64, Int64], compute: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """Time in an interval of the first set and in none of the second, as sorted, disjoint intervals."""
    a, b = merge(*comm), merge(*compute)
    borders = np.unique(np.concatenate((*a, *b)))
    alone = (np.diff(covered(borders, *a)) > 0) & (np.diff(covered(borders, *b)) == 0)
    edge = np.diff(np.concatenate(([0], alone.astype(np.int8), [0])))
    return borders[np.flatnonzero(edge > 0)], borders[np.flatnonzero(edge < 0)]


def _fills_most(start: Int64, end: Int64, begin: Int64, finish: Int64) -> Int64:
    """For each of the disjoint stretches, the kernel (index) that lasts longest inside it."""
    first = np.searchsorted(finish, start, side="right")
    count = np.maximum(np.searchsorted(begin, end, side="left") - first, 0)
    # a kernel may end inside its first and its last stretch; it fills those between, where the longest kernel counts
    reaches = np.flatnonzero(count)
    last = first + count - 1
    place = np.empty(len(start), dtype=np.int64)
    by_length = np.lexsort((np.arange(len(start)), end - start))
    place[by_length] = np.arange(len(start))
    within = np.flatnonzero(count > 2)
    longest = _largest_over(first[within] + 1, last[within] - 1, place[within], len(begin))
    filled = np.flatnonzero(longest >= 0)
    kernel = np.concatenate((reaches, reaches, by_length[longest[filled]]))
    stretch = np.concatenate((first[reaches], last[reaches], filled))
    inside = np.minimum(end[kernel], finish[stretch]) - np.maximum(start[kernel], begin[stretch])
    order = np.lexsort((place[kernel], inside, stretch))
    most = np.searchsorted(stretch[order], np.arange(len(begin)), side="right") - 1
    return np.asarray(kernel[order][most], dtype=np.int64)


def _largest_over(first: Int64, last: Int64, value: Int64, size: int) -> Int64:
    """For each of ``size`` places the largest value whose range has it, -1 for none: a range is two that overlap, of a
    length that is a power of two, and those are halved until they are single places."""
    largest = np.full(size, -1)
    level = np.frexp(last - first + 1)[1] - 1
    for bits in range(int(level.max(initial=0)), -1, -1):
        these = level == bits
        np.maximum.at(largest, first[these], value[these])
        np.maximum.at(largest, last[these] + 1 - (1 << bits), value[these])
        if bits:
            half, whole = (1 << bits) // 2, largest.copy()
            np.maximum(largest[half:], whole[:-half], out=largest[half:])
    return largest
