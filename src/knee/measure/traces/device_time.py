"""Where a rank's device was during a stretch of its trace, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from knee.base.arrays import Bools
from knee.engine.intervals import covered, merge
from knee.measure.kineto.event_columns import COPY, FILL, Int64
from knee.measure.traces.read_trace import Trace

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
        """Return a step's share."""
        totals: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return Times(**totals | {name: total / steps for name, total in totals.items() if total is not None})


def mean_times(times: list[Times]) -> Times:
    """Return the means over ranks."""
    columns = {f.name: [getattr(t, f.name) for t in times] for f in fields(Times)}
    means: dict[str, Any] = {n: None if None in values else sum(values) / len(values) for n, values in columns.items()}
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


def times_in(trace: Trace, windows: Sequence[Window]) -> list[Times]:
    """Loads and unions within each window: a look at the trace for all, and a look at its sums for each, since a trace
    may have as many steps as kernels, and one kernel may last through all of them."""
    c, of = trace.columns, trace.classified
    edges = np.array([[w.start_ns for w in windows], [w.end_ns for w in windows]], dtype=np.int64)

    def load(rows: Bools) -> Int64:
        return _sum_ns(edges, c.start_ns[rows], c.end_ns[rows])

    compute, comm, kernels, anything = (
        _union_ns(edges, c.start_ns[rows], c.end_ns[rows])
        for rows in (of.is_compute, of.is_comm, of.is_compute | of.is_comm, slice(None))
    )
    lasted = {
        "window_s": edges[1] - edges[0],
        "compute_load_s": load(of.is_compute),
        "comm_load_s": load(of.is_comm),
        "copy_load_s": load(c.kind == COPY),
        "fill_load_s": load(c.kind == FILL),
        "compute_s": compute,
        "comm_s": comm,
        "exposed_comm_s": kernels - compute,
        "overlapped_comm_s": comm + compute - kernels,
        "exposed_copies_s": anything - kernels,
        "idle_s": edges[1] - edges[0] - anything,
    }
    bubbles = _bubble_ns(trace, edges)
    if bubbles is not None:
        lasted["bubble_s"] = bubbles
    each = zip(*(column.tolist() for column in lasted.values()), strict=True)
    return [Times(**{"bubble_s": None} | {n: t / NS for n, t in zip(lasted, one, strict=True)}) for one in each]


def _union_ns(edges: Int64, start: Int64, end: Int64) -> Int64:
    """Time of each window with at least one of the intervals."""
    until = covered(edges, *merge(start, end))
    return np.asarray(until[1] - until[0], dtype=np.int64)


def _sum_ns(edges: Int64, start: Int64, end: Int64) -> Int64:
    """Time of all intervals in each window; those that run at the same time count twice."""
    until = _since(edges, start) - _since(edges, end)
    return np.asarray(until[1] - until[0], dtype=np.int64)


def _since(edges: Int64, times: Int64) -> Int64:
    """Of all times before each edge, how long before, summed. Beyond int64 it wraps around, and differences are right
    all the same."""
    before = np.sort(times, kind="stable")  # quick where they are almost in order, as those of a trace are
    count = np.searchsorted(before, edges)
    return np.asarray(count * edges - np.concatenate(([0], np.cumsum(before)))[count], dtype=np.int64)


def _bubble_ns(trace: Trace, edges: Int64) -> Int64 | None:
    """Exposed waiting in transfers between stages: what they last before as much is left as the shortest of their size
    and partner takes."""
    if trace.columns.is_simulated:
        return None
    pairs = {row: call for row, call in trace.calls.items() if call.collective == "send_recv"}
    if not pairs:
        return np.zeros(edges.shape[1], dtype=np.int64)
    if any(call.group is None for call in pairs.values()):
        return None
    rows = np.array(sorted(pairs))
    sizes: dict[tuple[str, float], int] = {}
    size_of = np.array([sizes.setdefault((pairs[row].key, pairs[row].message_bytes), len(sizes)) for row in rows])
    start, end = trace.columns.start_ns, trace.columns.end_ns
    shortest = np.full(len(sizes), np.iinfo(np.int64).max)
    np.minimum.at(shortest, size_of, end[rows] - start[rows])
    moves = end[rows] - shortest[size_of]  # a stage waits first, and then the message moves
    compute = start[trace.classified.is_compute], end[trace.classified.is_compute]
    # transfers on several streams wait at the same time: a union, as all of exposed communication is
    both = np.concatenate((start[rows], compute[0])), np.concatenate((moves, compute[1]))
    return np.asarray(_union_ns(edges, *both) - _union_ns(edges, *compute), dtype=np.int64)
