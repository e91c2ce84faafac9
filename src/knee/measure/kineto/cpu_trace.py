"""A processor's trace as columns: operators that compute and gloo's calls stand for a device's kernels."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from knee.base.limits import LONGEST_TRACE_NS
from knee.engine.events import COMM_STREAM, COMPUTE_STREAM, DTYPE_BYTES, RankGroup
from knee.measure.kineto.decode import nanoseconds
from knee.measure.kineto.event_columns import FURTHEST_NS, KERNEL, LaunchCall, RankTrace
from knee.measure.kineto.event_stream import EventStream
from knee.measure.kineto.process_groups import DTYPES, Call, ProcessGroups, collective_of


class NestedSpan(NamedTuple):
    """One event with a beginning and an end."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    track: tuple[Any, Any]
    """Process and thread; device and stream for kernels."""
    args: Mapping[str, Any]


def span_of(event: Any, args: Mapping[str, Any]) -> NestedSpan | None:
    """A complete event with those of its arguments that are asked; None for what has no beginning or no end."""
    if event.ph != "X":
        return None
    start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
    if start is None or duration is None:
        return None
    # a name is in thousands of events: keep it once
    return NestedSpan(
        start,
        start + max(0, duration),
        intern(str(event.name or "")),
        intern(str(event.cat or "").lower()),
        (_track(event.pid), _track(event.tid)),
        args,
    )


def _track(number: Any) -> int | str:
    return number if isinstance(number, (int, str)) else str(number)


def nested(spans: Iterable[NestedSpan]) -> Iterator[tuple[NestedSpan, list[NestedSpan]]]:
    """Each span with those of its thread that it lies in, the outermost first; the list changes with the next span,
    since copies of deep ones would take the square of the trace."""
    stack: list[NestedSpan] = []
    for span in sorted(spans, key=lambda s: (str(s.track), s.start_ns, -s.end_ns)):
        while stack and (
            stack[-1].track != span.track or stack[-1].end_ns < span.end_ns or stack[-1].end_ns <= span.start_ns
        ):
            stack.pop()
        yield span, stack
        stack.append(span)


# What a processor did in a trace: operators that compute, and gloo's calls with the operator that issued each. gloo
# annotates a reduce-scatter as ``gloo:all_reduce``, and names no group. The operator on the issuing thread says the
# collective; the annotations around it say the axis: FSDP's and DTensor's own, or ``knee::AXIS`` where knee's trainer
# put one. A group has worker threads of its own, so that one call whose axis is known tells that of its thread's
# others.

CALLS = "gloo:"
ISSUES = "c10d::"
COMM_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor", "gloo")
WAITING = ("autograd", "profiler")
"""Namespaces of operators that wrap others, and wait for communication inside hooks."""
AXIS = "knee::"
FSDP = "FSDP::"
REDISTRIBUTES = "Redistribute"
MOST_KINDS = 64
"""Of calls that operators are looked for; gloo has a dozen."""
PAIRS = ("send", "recv")
OPERATORS = ("cpu_op", "operator")
CATEGORIES = (*OPERATORS, "user_annotation")
NO_ARGS: dict[str, Any] = {}
MOST_ELEMENTS = 1 << 48
"""Of a tensor; a trace that says more is wrong."""


def host_compute(spans: Iterable[NestedSpan]) -> list[NestedSpan]:
    """The outermost operators that compute: those that have no communication inside them."""
    operators = [s for s in spans if s.category in OPERATORS or s.name.startswith(CALLS)]
    around = _around_communication(operators)
    chosen: list[NestedSpan] = []
    inside: set[int] = set()
    for span, outside in nested(operators):
        if outside and id(outside[-1]) in inside:
            inside.add(id(span))
        elif id(span) not in around and not _communicates(span.name):
            namespace, separator, _ = span.name.partition("::")
            if separator and namespace not in WAITING:
                inside.add(id(span))
                chosen.append(span)
    return chosen


def _around_communication(spans: list[NestedSpan]) -> set[int]:
    found: set[int] = set()
    for span, outside in nested(spans):
        if _communicates(span.name):
            for outer in reversed(outside):
                if id(outer) in found:  # and so are all around it
                    break
                found.add(id(outer))
    return found


def _communicates(name: str) -> bool:
    return name.startswith(CALLS) or name.partition("::")[0] in COMM_NAMESPACES


def gloo_calls(spans: Iterable[NestedSpan]) -> list[tuple[NestedSpan, LaunchCall]]:
    """Every call of gloo with its operator: the first of its kind and size that was issued before and is still free."""
    spans = list(spans)
    calls = sorted((s for s in spans if s.name.startswith(CALLS)), key=lambda s: s.start_ns)
    if not calls:
        return []
    free = _Free(_operators(spans), list(dict.fromkeys(map(_kind, calls)))[:MOST_KINDS])
    return [(call, _issued(call, free.take(call))) for call in calls]


def _operators(spans: list[NestedSpan]) -> list[tuple[NestedSpan, NestedSpan | None]]:
    """Those that issue calls, the first one first, each with the innermost span around it that tells the axis."""
    found = []
    tells: dict[int, NestedSpan | None] = {}
    for span, outside in nested(spans):
        around = tells[id(outside[-1])] if outside else None
        tells[id(span)] = span if span.name.startswith((AXIS, FSDP)) or REDISTRIBUTES in span.name else around
        if span.name.startswith(ISSUES):
            found.append((span, around))
    return sorted(found, key=lambda pair: pair[0].start_ns)


class _Free:
    """Operators that have issued no call yet, by the kinds and sizes of calls that they may have issued."""

    def __init__(self, operators: Sequence[tuple[NestedSpan, NestedSpan | None]], kinds: Sequence[str]) -> None:
        self.operators, self.kinds = operators, kinds
        self.kinds_of: dict[str, list[str]] = {}
        self.waiting: dict[tuple[str, int | None], deque[int]] = {}
        """Kind and size, None for any size -> numbers of operators."""
        self.seen = 0
        self.taken: set[int] = set()

    def take(self, call: NestedSpan) -> tuple[NestedSpan, NestedSpan | None] | None:
        """The first that may have issued a call; calls come in the order of their time."""
        while self.seen < len(self.operators) and self.operators[self.seen][0].start_ns <= call.start_ns:
            self._add(self.seen)
            self.seen += 1
        firsts = [queue[0] for size in (_elements(call), None) if (queue := self._queue(_kind(call), size))]
        if not firsts:
            return None
        self.taken.add(min(firsts))
        return self.operators[min(firsts)]

    def _add(self, number: int) -> None:
        operator = self.operators[number][0]
        if operator.name not in self.kinds_of:
            name = operator.name.replace("_", "")
            reduces = "reducescatter" in name
            kinds = [kind for kind in self.kinds if kind in name or (kind == "allreduce" and reduces)]
            self.kinds_of[operator.name] = kinds
        for kind in self.kinds_of[operator.name]:
            for size in _sizes(operator) or (None,):
                self.waiting.setdefault((kind, size), deque()).append(number)

    def _queue(self, kind: str, size: int | None) -> deque[int]:
        queue = self.waiting.get((kind, size), deque())
        while queue and queue[0] in self.taken:
            queue.popleft()
        return queue


def _kind(call: NestedSpan) -> str:
    return call.name.removeprefix(CALLS).replace("_", "")


def _issued(call: NestedSpan, by: tuple[NestedSpan, NestedSpan | None] | None) -> LaunchCall:
    dtype = next((str(kind) for kind in _list(call, "Input type") if kind), "")
    found = LaunchCall(call.name, str(call.track), None, None, _elements(call), False, dtype, None)
    if by is None:
        return found
    operator, elements = by[0], _elements(by[0])
    found = found._replace(operator=operator.name, axis=_axis(*by), ranks=_ranks(operator))
    return found._replace(elements=max(elements, found.elements), full=bool(elements))


def settle(calls: list[LaunchCall], sizes: Mapping[str, int]) -> list[LaunchCall]:
    """The calls, with axes that follow from others': ``sizes`` are the ranks of this rank's groups by axis.

    An axis that nothing tells is the only one of its size that FSDP does not claim, if there is only one; the world,
    where no other group has the call's size.
    """
    claimed = {call.axis for call in calls if call.axis in ("dp_shard", "dp_replicate")}
    of_thread: dict[str, str] = {}
    open_to: dict[int, list[str]] = {}
    for name, size in sizes.items():
        if name not in claimed and name != "world":
            open_to.setdefault(size, []).append(name)
    for call in calls:
        axis = call.axis
        if axis is None and call.ranks is not None:
            names = open_to.get(call.ranks, [])
            axis = names[0] if len(names) == 1 else None
        if axis not in (None, "world", "pp"):
            of_thread[call.thread] = str(axis)
    sure = ("dp_shard", "dp_replicate", "pp")
    world, others = sizes.get("world"), {size for name, size in sizes.items() if name != "world"}
    return [
        call
        if call.axis in sure
        else call._replace(axis=of_thread.get(call.thread, call.axis or _world(call, world, others)))
        for call in calls
    ]


def _world(call: LaunchCall, world: int | None, others: set[int]) -> str | None:
    """The group of all ranks, where it is the only one that a call can be of."""
    fits = call.ranks == world and world not in others if call.ranks is not None else not others
    return "world" if world is not None and fits else None


def _ranks(operator: NestedSpan) -> int | None:
    sizes = sorted(_sizes(operator))
    moves_parts = "gather" in operator.name or "scatter" in operator.name
    return sizes[1] // sizes[0] if moves_parts and len(sizes) == 2 and sizes[0] else None


def _axis(operator: NestedSpan, around: NestedSpan | None) -> str | None:
    """The mesh axis, where what is around the operator tells it."""
    if around is not None:
        if around.name.startswith(AXIS):
            return str(around.name.removeprefix(AXIS))
        if around.name.startswith(FSDP):
            return "dp_replicate" if "allreduce" in operator.name else "dp_shard"
        return "tp"
    if any(pair in operator.name for pair in PAIRS):
        return "pp"
    return "world" if "allreduce" in operator.name else None


def _sizes(span: NestedSpan) -> set[int]:
    """Elements of each tensor among a span's inputs, of lists of tensors too."""
    sizes: set[int] = set()
    for dims, kind in zip(_list(span, "Input Dims"), _list(span, "Input type"), strict=False):
        if kind == "TensorList":
            sizes |= {_count(one) for one in dims if isinstance(one, list)} if isinstance(dims, list) else set()
        elif kind not in ("", "Scalar", "ScalarList"):
            sizes.add(_count(dims))
    return sizes


def _list(span: NestedSpan, key: str) -> list[Any]:
    found = span.args.get(key)
    return found if isinstance(found, list) else []


def _count(dims: Any) -> int:
    """Elements of a tensor; 0 where that cannot be."""
    if not isinstance(dims, list) or not all(isinstance(size, int) and 0 <= size < MOST_ELEMENTS for size in dims):
        return 0
    return count if (count := math.prod(dims)) < MOST_ELEMENTS else 0


def _elements(span: NestedSpan) -> int:
    return max(_sizes(span), default=0)


def host_columns(trace: RankTrace) -> RankTrace:
    """Read the file once more, for what a processor did; ``trace`` is what the first reading found."""
    found = []
    for event in (one for events in EventStream(path=trace.path, all_args=True).events() for one in events):
        name, args = str(event.name), NO_ARGS
        # frames of Python, say, are most of a trace and say nothing here
        if str(event.cat).lower() not in CATEGORIES and not name.startswith(CALLS):
            continue
        if isinstance(event.args, dict) and _communicates(name):
            args = {key: event.args[key] for key in ("Input Dims", "Input type") if key in event.args}
        if (span := span_of(event, args)) is not None:
            found.append(span)
    spans, first = _sane(found, trace)
    rows: list[tuple[NestedSpan, LaunchCall | None]] = [(span, None) for span in host_compute(spans)]
    rows += gloo_calls(spans)
    rows.sort(key=lambda row: (row[0].start_ns, row[0].end_ns))
    names: dict[str, int] = {}
    ids = [names.setdefault(span.name, len(names)) for span, _ in rows]
    issued = {i: call for i, (_, call) in enumerate(rows) if call is not None}
    unknown = sum(call.operator is None for call in issued.values())
    notes = [
        f"{unknown} of {len(issued)} gloo calls could not be identified: the operator that issued them is "
        "missing from the trace"
    ]
    return replace(
        trace,
        first_ns=first,
        start_ns=np.array([span.start_ns - first for span, _ in rows], dtype=np.int64),
        end_ns=np.array([span.end_ns - first for span, _ in rows], dtype=np.int64),
        kind=np.full(len(rows), KERNEL),
        stream=np.array([COMPUTE_STREAM if call is None else COMM_STREAM for _, call in rows], dtype=np.int64),
        device=np.zeros(len(rows), dtype=np.int64),
        correlation=np.full(len(rows), -1),
        name_id=np.array(ids, dtype=np.int64),
        names=tuple(names),
        is_host=True,
        issued=issued,
        notes=(*trace.notes, *(notes if unknown else ())),
    )


def host_calls(columns: RankTrace, axes: Mapping[str, str] | None) -> dict[int, Call]:
    """What each of gloo's calls does, by row."""
    groups = ProcessGroups(columns.info, axes)
    settled = settle(list(columns.issued.values()), {group.name: group.size for group in groups.known.values()})
    return {row: _call(call, groups) for row, call in zip(columns.issued, settled, strict=True)}


def _sane(spans: list[NestedSpan], trace: RankTrace) -> tuple[list[NestedSpan], int]:
    """Spans without broken clocks, and the time from which all count: the steps' where there are any."""
    starts = sorted(span.start_ns for span in spans)
    middle = trace.first_ns if trace.steps or not starts else starts[len(starts) // 2]
    near = (span for span in spans if abs(span.start_ns - middle) < FURTHEST_NS)
    kept = [span for span in near if span.end_ns - span.start_ns < LONGEST_TRACE_NS]
    return kept, middle if trace.steps else min((span.start_ns for span in kept), default=middle)


def _call(call: LaunchCall, groups: ProcessGroups) -> Call:
    collective = collective_of(call.operator if call.operator is not None else call.name)
    group = groups.on_axis(call.axis)
    ranks_known = group is not None
    if group is None and call.axis is not None:
        world = groups.on_axis(groups.renamed.get("world", "world"))
        group = replace(world, name=call.axis) if world else RankGroup(name=call.axis, size=1)
        ranks_known = world is not None
    if group is not None and call.ranks not in (None, group.size):
        # several axes together
        group, ranks_known = RankGroup(name=group.name, size=call.ranks or 1), False
    dtype = DTYPES.get(call.dtype)
    elements = call.elements * (group.size if collective == "all_gather" and group and not call.full else 1)
    return Call(
        collective=collective,
        group=group,
        message_bytes=float(elements * DTYPE_BYTES[dtype]) if dtype else 0.0,
        dtype=dtype,
        key=groups.key_of(group.name, group, ranks_known) if group is not None else "",
        ranks_known=ranks_known,
    )
