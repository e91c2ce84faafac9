"""When communication held the device up: the stretches with communication and no compute, and what ran in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.metrics.intervals import covered, merge
from knee.trace.columns import Int64
from knee.trace.read import Trace
from knee.trace.times import Window, clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """One stretch, in nanoseconds of the trace's columns."""

    start_ns: int
    end_ns: int
    row: int
    """The communication kernel that fills most of it; of equals the longer one."""


def exposed_intervals(trace: Trace, window: Window) -> list[Exposed]:
    """In order and apart from each other; their lengths add up to ``times_of(trace, window).exposed_comm_s``."""
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
    # one pair for every kernel and every stretch that it reaches into
    kernel = np.repeat(np.arange(len(start)), count)
    stretch = np.arange(len(kernel)) - np.repeat(np.cumsum(count) - count - first, count)
    inside = np.minimum(end[kernel], finish[stretch]) - np.maximum(start[kernel], begin[stretch])
    order = np.lexsort(((end - start)[kernel], inside, stretch))
    last = np.searchsorted(stretch[order], np.arange(len(begin)), side="right") - 1
    return np.asarray(kernel[order][last], dtype=np.int64)
