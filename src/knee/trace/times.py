"""Where a rank's device was during a stretch of its trace, to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from knee.columns import Bools
from knee.metrics.intervals import covered, exposed_s, merge
from knee.metrics.step import unions_of
from knee.trace.columns import COPY, FILL, Int64
from knee.trace.read import Trace

NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of a trace; what reaches over its ends is cut there."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of one rank. Sums are called loads; the others are unions, and

    ``window_s = compute_s + exposed_comm_s + exposed_copies_s + idle_s``, ``comm_s = exposed_comm_s +
    overlapped_comm_s``.
    """

    window_s: float
    compute_load_s: float
    """Summed time of kernels that compute."""
    comm_load_s: float
    """Summed time of kernels that communicate; those that run at the same time count twice."""
    copy_load_s: float
    """Summed time of memory copies."""
    fill_load_s: float
    """Summed time of memory fills."""
    compute_s: float
    comm_s: float
    exposed_comm_s: float
    """Communication and no compute."""
    overlapped_comm_s: float
    exposed_copies_s: float
    """Copies and fills beside neither compute nor communication."""
    idle_s: float
    """Nothing at all."""
    bubble_s: float | None
    """Part of ``exposed_comm_s``: waiting in transfers between pipeline stages, beyond the shortest of their size. None
    where transfers are not told from all-to-alls, and in simulated traces: there a stage waits without a kernel, and
    that is ``idle_s``."""

    def over(self, steps: int) -> Times:
        """A step's share."""
        shares: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            shares[f.name] = None if value is None else value / steps
        return Times(**shares)


def mean_times(times: list[Times]) -> Times:
    """Over ranks."""
    means: dict[str, Any] = {}
    for f in fields(Times):
        values = [getattr(t, f.name) for t in times]
        means[f.name] = None if None in values else sum(values) / len(values)
    return Times(**means)


def clipped(trace: Trace, window: Window) -> tuple[Int64, Int64]:
    """Starts and ends of all rows, cut to the window; those outside it have no length."""
    c = trace.columns
    return np.clip(c.start_ns, window.start_ns, window.end_ns), np.clip(c.end_ns, window.start_ns, window.end_ns)


def exposed_ns(start: Int64, end: Int64, compute: tuple[Int64, Int64]) -> Int64:
    """How much of each interval lies beside no compute."""
    merged = merge(*compute)
    inside = covered(end, *merged) - covered(start, *merged)
    return np.asarray(end - start - inside, dtype=np.int64)


def _near(trace: Trace, window: Window) -> slice:
    """Rows among which are all that reach into a window: a step should not cost the whole trace."""
    c = trace.columns
    first = np.searchsorted(trace.reached_ns, window.start_ns, side="right")
    return slice(int(first), int(np.searchsorted(c.start_ns, window.end_ns)))


def times_of(trace: Trace, window: Window) -> Times:
    """Loads and unions within a window."""
    c, near = trace.columns, _near(trace, window)
    start, end = (np.clip(times[near], window.start_ns, window.end_ns) for times in (c.start_ns, c.end_ns))
    length, kind = end - start, c.kind[near]
    of = trace.classified
    is_compute, is_comm, is_copy = of.is_compute[near], of.is_comm[near], trace.is_copy[near]

    def spans(rows: Bools) -> tuple[Int64, Int64]:
        return start[rows], end[rows]

    found = unions_of(spans(is_compute), spans(is_comm))
    copies = exposed_s(*spans(is_copy), *spans(~is_copy))
    whole = window.end_ns - window.start_ns
    return Times(
        window_s=whole / NS,
        compute_load_s=_sum(length, is_compute),
        comm_load_s=_sum(length, is_comm),
        copy_load_s=_sum(length, kind == COPY),
        fill_load_s=_sum(length, kind == FILL),
        compute_s=found.compute / NS,
        comm_s=(found.exposed + found.overlapped) / NS,
        exposed_comm_s=found.exposed / NS,
        overlapped_comm_s=found.overlapped / NS,
        exposed_copies_s=copies / NS,
        idle_s=(whole - found.compute - found.exposed - copies) / NS,
        bubble_s=_bubble_s(trace, window),
    )


def _sum(length: Int64, rows: Bools) -> float:
    return int(length[rows].sum()) / NS


def _bubble_s(trace: Trace, window: Window) -> float | None:
    """Exposed waiting in transfers between stages: what they last before as much is left as the shortest of their size
    and partner takes."""
    of = trace.transfers
    if of is None:
        return None
    near = _near(trace, window)
    some = slice(*np.searchsorted(of.rows, (near.start, near.stop)))
    rows, moves = of.rows[some], of.moves_ns[some]
    if not len(rows):
        return 0.0
    c, compute = trace.columns, trace.classified.is_compute[near]
    busy = (np.clip(times[near][compute], window.start_ns, window.end_ns) for times in (c.start_ns, c.end_ns))
    begin = np.clip(c.start_ns[rows], window.start_ns, window.end_ns)
    until = np.clip(moves, window.start_ns, window.end_ns)  # a stage waits first, and then the message moves
    # transfers on several streams wait at the same time: a union, as all of exposed communication is
    return exposed_s(begin, until, *busy) / NS
