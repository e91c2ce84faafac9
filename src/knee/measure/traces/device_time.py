"""A rank's device time in a stretch of its trace: busy, exposed, by collective and size, by kernel class and name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from knee.base.arrays import Bools
from knee.engine.events import covered, merge
from knee.measure.kineto.event_columns import COPY, FILL, KERNEL, Int64
from knee.measure.kineto.process_groups import UNKNOWN as UNKNOWN
from knee.measure.kineto.process_groups import bus_bytes
from knee.measure.traces.read_trace import Trace

# Where a rank's device was during a stretch of its trace, to the nanosecond.

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


def rows_inside(trace: Trace, window: Window) -> Bools:
    """Which rows the window has: those with time in it, and those of no length that lie in it."""
    (start, end), c = clipped(trace, window), trace.columns
    instant = (c.start_ns == c.end_ns) & (c.start_ns >= window.start_ns) & (c.start_ns <= window.end_ns)
    return np.asarray((end > start) | instant, dtype=np.bool_)


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

    def load(rows: Bools) -> Int64:  # kernels that run at the same time count twice
        until = _since(edges, c.start_ns[rows]) - _since(edges, c.end_ns[rows])
        return np.asarray(until[1] - until[0], dtype=np.int64)

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


# When communication held the device up: the stretches with communication and no compute, and what ran in them.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLoad:
    """Calls of one collective in one group with one size of message."""

    collective: str
    group: str
    group_size: int | None
    message_bytes: float | None
    """Of the whole message; None where the trace does not say."""
    calls: int
    load_s: float
    exposed_s: float
    """Beside no compute, while such a call ran."""
    shortest_s: float
    median_s: float
    longest_s: float
    bus_bytes_per_s: float | None
    """Of the median call, as nccl-tests counts; a call includes waiting for peers."""
    best_bus_bytes_per_s: float | None
    """Of the shortest call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLoad:
    """Kernels of one class or name."""

    name: str
    kernel_class: str
    communication: bool
    calls: int
    load_s: float


def collective_loads(trace: Trace, window: Window) -> list[CollectiveLoad]:
    """Return the load of each collective, group and size, the largest first."""
    rows = np.array(sorted(trace.calls), dtype=np.int64)
    if not len(rows):
        return []
    start, end = clipped(trace, window)
    compute = trace.classified.is_compute
    exposed = exposed_ns(start[rows], end[rows], (start[compute], end[compute]))
    length = (end - start)[rows]
    kinds: dict[tuple[str, str, int | None, float], list[int]] = {}
    outside = (length == 0) & (trace.columns.end_ns[rows] > trace.columns.start_ns[rows])
    for i, (row, is_outside) in enumerate(zip(rows.tolist(), outside.tolist(), strict=True)):
        if is_outside:
            continue
        call = trace.calls[row]
        group = (call.group.name, call.group.size) if call.group is not None else (UNKNOWN, None)
        kinds.setdefault((call.collective or UNKNOWN, *group, call.message_bytes), []).append(i)
    found = []
    for (collective, name, size, message), index in kinds.items():
        lasted = length[index]
        median, shortest = float(np.median(lasted)) / NS, int(lasted.min()) / NS
        carried = bus_bytes(collective, size, message)
        found.append(
            CollectiveLoad(
                collective=collective,
                group=name,
                group_size=size,
                message_bytes=message or None,
                calls=len(index),
                load_s=int(lasted.sum()) / NS,
                exposed_s=int(exposed[index].sum()) / NS,
                shortest_s=shortest,
                median_s=median,
                longest_s=int(lasted.max()) / NS,
                bus_bytes_per_s=carried / median if carried and median else None,
                best_bus_bytes_per_s=carried / shortest if carried and shortest else None,
            )
        )
    return sorted(found, key=lambda load: -load.load_s)


def kernel_loads(trace: Trace, window: Window) -> list[KernelLoad]:
    """By name, the largest load first."""
    start, end = clipped(trace, window)
    c, of = trace.columns, trace.classified
    kernels = (c.kind == KERNEL) & ((end > start) | (c.start_ns == c.end_ns))
    # a name may be communication on one stream and compute on another
    key = c.name_id[kernels] * 2 + of.is_comm[kernels]
    load, calls = np.zeros(2 * len(c.names), dtype=np.int64), np.bincount(key, minlength=2 * len(c.names))
    np.add.at(load, key, (end - start)[kernels])
    class_of = np.zeros(len(c.names), dtype=np.int64)
    class_of[c.name_id[kernels]] = of.class_id[kernels]
    return [
        KernelLoad(
            name=c.names[i // 2],
            kernel_class=of.names[class_of[i // 2]],
            communication=bool(i % 2),
            calls=int(calls[i]),
            load_s=int(load[i]) / NS,
        )
        for i in np.argsort(-load, kind="stable").tolist()
        if calls[i]
    ]


def class_loads(kernels: list[KernelLoad]) -> list[KernelLoad]:
    """Add up the same by class."""
    sums: dict[tuple[str, bool], KernelLoad] = {}
    for kernel in kernels:
        key = (kernel.kernel_class, kernel.communication)
        none = replace(kernel, name=kernel.kernel_class, calls=0, load_s=0.0)
        before = sums.get(key, none)
        sums[key] = replace(before, calls=before.calls + kernel.calls, load_s=before.load_s + kernel.load_s)
    return sorted(sums.values(), key=lambda load: -load.load_s)
