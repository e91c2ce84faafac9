"""``--perfetto``: a trace that has only the stretches of exposed communication and what surrounds them.

Perfetto opens it at once where the whole trace takes minutes, and knee reads it back: its steps and its exposed
communication are those of the whole. What Perfetto is known to do shapes the file:

* It reads times as float64, and drops slices that then overlap by a nanosecond. Times begin at 0, where it is exact.
* It drops slices that overlap on a track. Kernels that overlap on their stream go to a second thread of its name.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.arrays import Bools
from knee.base.errors import InputError
from knee.base.files import write_bytes
from knee.engine.events import DTYPE_BYTES, merge
from knee.measure.kineto.decode import KEYS
from knee.measure.kineto.event_columns import DEVICE_KINDS, Int64
from knee.measure.kineto.kineto_writer import SUFFIXES, microseconds, packed
from knee.measure.kineto.process_groups import TORCH_DTYPES, Call
from knee.measure.traces.analyse import Analysis, RankAnalysis
from knee.measure.traces.device_time import UNKNOWN, Exposed, clipped, exposed_intervals, rows_inside
from knee.specs.metrics import METRICS

MARGIN_NS = 100_000
"""Shown before and after each stretch: some twenty kernels."""
STEPS, EXPOSED, FIRST_EXTRA = 1_000_000, 2_000_000, 3_000_000
"""Threads that are no stream, numbered beyond them: steps, exposed communication, and second threads of a stream."""
CATEGORIES = {number: name for name, number in DEVICE_KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTrace:
    """The small trace that was written."""

    path: Path
    kernels: int
    """Kernels, copies and fills that it has."""
    of_kernels: int
    """Those that the window has."""
    intervals: int
    """Stretches of exposed communication, of all ranks together."""
    exposed_comm_s: float
    """Their sum."""
    bytes: int
    """Size of the file."""
    aligned: bool
    """Whether ranks whose clocks have no time in common were moved to begin together."""


def write_small(analysis: Analysis, path: Path) -> SmallTrace:
    """Write it, all ranks into one file; packed where its name ends in .gz.

    Who reads it as the trace of one rank, knee among them, gets the first: kernels of others have categories of their
    own, as those of several ranks together would be nobody's.
    """
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: a trace is a .json or .json.gz file", hint=f"write to {path}.json")
    zeros, aligned = _zeros(analysis.ranks)
    ranks = [_Rank(rank, zeros[i], is_first=not i) for i, rank in enumerate(analysis.ranks)]
    kept, of_all = sum(int(rank.kept.sum()) for rank in ranks), sum(int(rank.inside.sum()) for rank in ranks)
    first = analysis.ranks[0].trace.columns
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": first.device_name}] if first.device_name else [],
        "distributedInfo": first.info | {"rank": first.rank},
        "displayTimeUnit": "ms",
        "knee": {"kernels": kept, "of_kernels": of_all, "margin_ns": MARGIN_NS, "zero_ns": first.first_ns + zeros[0]}
        | ({"simulated": True} if first.is_simulated else {})
        | ({"step_ns": [time - zeros[0] for time in step]} if (step := first.simulated_step_ns) else {}),
    }
    lines = (line for rank in ranks for line in rank.lines())
    text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
    data = packed(text, path)
    write_bytes(path, data)
    return SmallTrace(
        path=path,
        kernels=kept,
        of_kernels=of_all,
        intervals=sum(len(rank.exposed) for rank in ranks),
        exposed_comm_s=sum(one.end_ns - one.start_ns for rank in ranks for one in rank.exposed) / 1e9,
        bytes=len(data),
        aligned=aligned,
    )


def _zeros(ranks: Sequence[RankAnalysis]) -> tuple[list[int], bool]:
    """What is time 0, in each rank's own time: the same moment, or else the start of each window."""
    begun = [rank.trace.columns.first_ns + rank.window.start_ns for rank in ranks]
    ended = [rank.trace.columns.first_ns + rank.window.end_ns for rank in ranks]
    if max(begun) > min(ended):
        return [rank.window.start_ns for rank in ranks], True
    return [min(begun) - rank.trace.columns.first_ns for rank in ranks], False


class _Rank:
    """One rank's part of the file."""

    def __init__(self, rank: RankAnalysis, zero: int, *, is_first: bool) -> None:
        self.rank, self.zero, self.is_first = rank, zero, is_first
        self.start, self.end = clipped(rank.trace, rank.window)
        self.inside = rows_inside(rank.trace, rank.window)
        self.exposed: list[Exposed] = exposed_intervals(rank.trace, rank.window)
        self.kept: Bools = self._wanted()

    def _wanted(self) -> Bools:
        """Rows around exposed communication, and those without which the others would be read differently."""
        of, stream = self.rank.trace.classified, self.rank.trace.columns.stream
        begin = np.array([one.start_ns for one in self.exposed], dtype=np.int64)
        finish = np.array([one.end_ns for one in self.exposed], dtype=np.int64)
        near = self._meets(begin - MARGIN_NS, finish + MARGIN_NS)
        # steps and the window begin and end with a kernel
        borders = [self.rank.window.start_ns, *(part.window.start_ns for part in self.rank.steps)]
        rows = np.flatnonzero(self.inside)
        first = rows[np.unique(self.start[rows], return_index=True)[1]]  # of rows that begin together, one
        near[first[np.isin(self.start[first], borders)]] = True
        near[np.flatnonzero(self.inside & (self.end == self.end[self.inside].max(initial=0)))[:1]] = True
        # without the compute beside it, hidden communication would become exposed
        calls = near & of.is_comm & self.inside
        near |= of.is_compute & self._meets(self.start[calls], self.end[calls])
        near &= self.inside
        # a kernel that counts as compute for its stream's sake needs one that does so by itself; one outside the
        # window, cut to it, has no length
        plain = of.is_compute & ~of.counted_as_compute
        rows = np.flatnonzero(plain & np.isin(stream, np.unique(stream[near & of.counted_as_compute])))
        rows = rows[np.lexsort((rows, ~self.inside[rows], stream[rows]))]
        near[rows[np.unique(stream[rows], return_index=True)[1]]] = True
        return near

    def _meets(self, begin: Int64, finish: Int64) -> Bools:
        """Whether each row has time in common with one of the intervals."""
        begin, finish = merge(begin, finish)
        if not len(begin):
            return np.zeros(len(self.start), dtype=np.bool_)
        at = np.searchsorted(finish, self.start, side="right")
        begins = begin[np.minimum(at, len(begin) - 1)]
        return np.asarray((at < len(begin)) & (begins < np.maximum(self.end, self.start + 1)), dtype=np.bool_)

    def lines(self) -> Iterator[str]:
        """Yield the events as JSON."""
        c = self.rank.trace.columns
        device = f" {c.device_name}" if c.device_name else ""
        yield _metadata("process_name", self.rank.rank, 0, name=f"rank {self.rank.rank}{device}")
        yield _metadata("process_sort_index", self.rank.rank, 0, sort_index=self.rank.rank)
        yield from self._steps()
        yield from self._exposed()
        yield from self._kernels()

    def _steps(self) -> Iterator[str]:
        yield from self._thread(STEPS, "steps", 0)
        category = self._category("user_annotation")
        for part in self.rank.steps:
            if part.step is not None:
                window = part.window
                yield self._slice(f"ProfilerStep#{part.step}", category, STEPS, window.start_ns, window.end_ns, {})

    def _exposed(self) -> Iterator[str]:
        yield from self._thread(EXPOSED, METRICS["exposed_comm_s"].label, 1)
        c = self.rank.trace.columns
        for one in self.exposed:
            call = self.rank.trace.calls[one.row]
            group = call.group.name if call.group is not None else None
            name = f"{call.collective or UNKNOWN} {group}" if group else call.collective or UNKNOWN
            args = {
                "collective": call.collective,
                "group": group,
                "group_size": call.group.size if call.group is not None else None,
                "message_bytes": call.message_bytes or None,
                "duration_us": microseconds(one.end_ns - one.start_ns),
                "call_us": microseconds(int(c.end_ns[one.row] - c.start_ns[one.row])),
                "kernel": c.names[c.name_id[one.row]],
            }
            args = {key: value for key, value in args.items() if value is not None}
            yield self._slice(name, "exposed", EXPOSED, one.start_ns, one.end_ns, args)

    def _kernels(self) -> Iterator[str]:
        trace = self.rank.trace
        c = trace.columns
        rows = np.flatnonzero(self.kept)
        # cut to the window, rows may have a new order
        rows = rows[np.lexsort((self.end[rows], self.start[rows]))].tolist()
        devices = np.unique(c.device[rows]).tolist()
        lanes: dict[tuple[int, int], _Lanes] = {}
        used: set[int] = set()
        for row in rows:
            key = int(c.device[row]), int(c.stream[row])
            begin, end = int(self.start[row]), int(self.end[row])
            tracks = lanes.setdefault(key, _Lanes())
            at = tracks.take(begin, end)
            if at == len(tracks.threads):
                thread = key[1] if key[1] not in used and 0 < key[1] < STEPS else FIRST_EXTRA + len(used)
                used.add(thread)
                tracks.threads.append(thread)
                place = f"GPU {key[0]} stream {key[1]}" if len(devices) > 1 else f"stream {key[1]}"
                yield from self._thread(thread, place, 2 + min(max(key[1], 0), STEPS))
            category = self._category(CATEGORIES[int(c.kind[row])])
            yield self._slice(c.names[c.name_id[row]], category, tracks.threads[at], begin, end, self._args(row))

    def _args(self, row: int) -> dict[str, Any]:
        """What knee reads of a kernel, with Kineto's words; and what a person may want to know."""
        trace = self.rank.trace
        c = trace.columns
        args: dict[str, Any] = {"device": int(c.device[row]), "stream": int(c.stream[row])}
        if c.correlation[row] >= 0:
            args["correlation"] = int(c.correlation[row])
        if trace.launched_ns[row] >= 0 and not c.is_host:
            args["launched before, us"] = microseconds(int(c.start_ns[row] - trace.launched_ns[row]))
        if self.end[row] - self.start[row] < c.end_ns[row] - c.start_ns[row]:
            args["whole duration, us"] = microseconds(int(c.end_ns[row] - c.start_ns[row]))
        if (call := trace.calls.get(row)) is not None:
            known = c.args.get(row)
            own = known._asdict() if known is not None else _call_args(call)
            args = {KEYS[field]: value for field, value in own.items() if value is not None} | args
        return args

    def _category(self, name: str) -> str:
        return name if self.is_first else f"{name} of rank {self.rank.rank}"

    def _thread(self, thread: int, name: str, order: int) -> Iterator[str]:
        yield _metadata("thread_name", self.rank.rank, thread, name=name)
        yield _metadata("thread_sort_index", self.rank.rank, thread, sort_index=order)

    def _slice(self, name: str, category: str, thread: int, start: int, end: int, args: dict[str, Any]) -> str:
        begin, duration = microseconds(start - self.zero), microseconds(end - start)
        return (
            f'{{"ph": "X", "cat": {json.dumps(category)}, "name": {json.dumps(name)}, "pid": {self.rank.rank}, '
            f'"tid": {thread}, "ts": {begin}, "dur": {duration}, "args": {json.dumps(args)}}}'
        )


class _Lanes:
    """The threads of a stream, so many that no two kernels overlap on one."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.free: list[int] = []
        self.busy: list[tuple[int, int]] = []
        """(until when, lane); both lists are heaps."""

    def take(self, begin: int, end: int) -> int:
        """The first lane that is free; the number after the last one where none is."""
        while self.busy and self.busy[0][0] <= begin:
            heapq.heappush(self.free, heapq.heappop(self.busy)[1])
        at = heapq.heappop(self.free) if self.free else len(self.threads)
        heapq.heappush(self.busy, (end, at))
        return at


def _call_args(call: Call) -> dict[str, Any]:
    """A call that has no arguments in its trace, as NCCL would have written it; with a collective always, so that it
    is read as communication whatever its name."""
    elements = round(call.message_bytes / DTYPE_BYTES[call.dtype]) if call.dtype else None
    group = call.group
    return {
        "collective": call.collective or UNKNOWN,
        "in_elements": elements,
        "out_elements": elements,
        "dtype": TORCH_DTYPES[call.dtype] if call.dtype else None,
        "group_size": group.size if group is not None else None,
        "group": group.name if group is not None else None,
        "group_description": group.name if group is not None else None,
        "group_ranks": str(list(group.ranks)) if group is not None and call.ranks_known else None,
    }


def _metadata(what: str, process: int, thread: int, **args: str | int) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": process, "tid": thread, "args": args})
