"""What a processor did in a trace: operators that compute, and gloo's calls with the operator that issued each.

gloo annotates a reduce-scatter as ``gloo:all_reduce``, and names no group. The operator on the issuing thread says the
collective; the annotations around it say the axis: FSDP's and DTensor's own, or ``knee::AXIS`` where knee's trainer
put one. A group has worker threads of its own, so that one call whose axis is known tells that of its thread's others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from knee.trace.spans import Span, nested

CALLS = "gloo:"
ISSUES = "c10d::"
COMM_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor", "gloo")
WAITING = ("autograd", "profiler")
"""Namespaces of operators that wrap others, and wait for communication inside hooks."""
AXIS = "knee::"
PAIRS = ("send", "recv")
MOST_ELEMENTS = 1 << 48
"""Of a tensor; a trace that says more is wrong."""


class Issued(NamedTuple):
    """One call of gloo, and who issued it."""

    call: Span
    operator: Span | None
    axis: str | None
    elements: int
    """Of the largest tensor that the operator had, or else of gloo's."""
    full: bool
    """Whether that is the whole message, not a rank's part."""
    dtype: str
    ranks: int | None
    """Ranks of the group, where the operator's tensors tell: what it gathers over what a rank has."""


def host_compute(spans: Iterable[Span]) -> list[Span]:
    """The outermost operators that compute: those that have no communication inside them."""
    operators = [s for s in spans if s.category == "cpu_op" or s.name.startswith(CALLS)]
    paths = list(nested(operators))
    around = {id(outer) for span, outside in paths if _communicates(span) for outer in outside}
    chosen: list[Span] = []
    taken: set[int] = set()
    for span, outside in paths:
        if id(span) in around or _communicates(span) or _namespace(span) in WAITING or "::" not in span.name:
            continue
        if any(id(outer) in taken for outer in outside):
            continue
        taken.add(id(span))
        chosen.append(span)
    return chosen


def _namespace(span: Span) -> str:
    return span.name.partition("::")[0]


def _communicates(span: Span) -> bool:
    return span.name.startswith(CALLS) or _namespace(span) in COMM_NAMESPACES


def gloo_calls(spans: Iterable[Span]) -> list[Issued]:
    """Every call of gloo with its operator: the first of its kind and size that was issued before and is still free."""
    spans = list(spans)
    calls = sorted((s for s in spans if s.name.startswith(CALLS)), key=lambda s: s.start_ns)
    if not calls:
        return []
    free = sorted(((span, outside) for span, outside in nested(spans) if span.name.startswith(ISSUES)),
                  key=lambda pair: pair[0].start_ns)
    found = []
    for call in calls:
        at = next((i for i, (operator, _) in enumerate(free) if _issued(operator, call)), None)
        if at is None:
            found.append(Issued(call, None, None, _elements(call), False, _dtype(call), None))
            continue
        operator, outside = free.pop(at)
        found.append(Issued(call, operator, _axis(operator, outside), max(_elements(operator), _elements(call)),
                            bool(_elements(operator)), _dtype(call), _ranks(operator)))
    return found


def settle(calls: list[Issued], sizes: Mapping[str, int]) -> list[Issued]:
    """The calls, with axes that follow from others': ``sizes`` are the ranks of this rank's groups by axis.

    An axis that nothing tells is the only one of its size that FSDP does not claim, if there is only one.
    """
    claimed = {call.axis for call in calls if call.axis in ("dp_shard", "dp_replicate")}
    of_thread: dict[Any, str] = {}
    for call in calls:
        axis = call.axis
        if axis is None and call.ranks is not None:
            open_to = [name for name, size in sizes.items() if size == call.ranks and name not in (*claimed, "world")]
            axis = open_to[0] if len(open_to) == 1 else None
        if axis not in (None, "world", "pp"):
            of_thread[call.call.track] = str(axis)
    sure = ("dp_shard", "dp_replicate", "pp")
    return [call if call.axis in sure else call._replace(axis=of_thread.get(call.call.track, call.axis))
            for call in calls]


def _ranks(operator: Span) -> int | None:
    sizes = sorted(_sizes(operator))
    moves_parts = "gather" in operator.name or "scatter" in operator.name
    return sizes[1] // sizes[0] if moves_parts and len(sizes) == 2 and sizes[0] else None


def _issued(operator: Span, call: Span) -> bool:
    """Whether this operator may have issued this call."""
    if operator.start_ns > call.start_ns:
        return False
    kind, name = call.name.removeprefix(CALLS).replace("_", ""), operator.name.replace("_", "")
    reduces = kind == "allreduce" and "reducescatter" in name
    if not (kind in name or reduces):
        return False
    sizes = _sizes(operator)
    return not sizes or _elements(call) in sizes


def _axis(operator: Span, outside: list[Span]) -> str | None:
    """The mesh axis, where what is around the operator tells it."""
    for outer in reversed(outside):
        if outer.name.startswith(AXIS):
            return str(outer.name.removeprefix(AXIS))
        if outer.name.startswith("FSDP::"):
            return "dp_replicate" if "allreduce" in operator.name else "dp_shard"
        if "Redistribute" in outer.name:
            return "tp"
    if any(pair in operator.name for pair in PAIRS):
        return "pp"
    return "world" if "allreduce" in operator.name else None


def _sizes(span: Span) -> set[int]:
    """Elements of each tensor among a span's inputs, of lists of tensors too."""
    sizes: set[int] = set()
    for dims, kind in zip(_list(span, "Input Dims"), _list(span, "Input type"), strict=False):
        if kind == "TensorList":
            sizes |= {_count(one) for one in dims if isinstance(one, list)} if isinstance(dims, list) else set()
        elif kind not in ("", "Scalar", "ScalarList"):
            sizes.add(_count(dims))
    return sizes


def _list(span: Span, key: str) -> list[Any]:
    found = span.args.get(key)
    return found if isinstance(found, list) else []


def _count(dims: Any) -> int:
    """Elements of a tensor; 0 where that cannot be."""
    if not isinstance(dims, list) or not all(isinstance(size, int) and 0 <= size < MOST_ELEMENTS for size in dims):
        return 0
    return count if (count := math.prod(dims)) < MOST_ELEMENTS else 0


def _elements(span: Span) -> int:
    return max(_sizes(span), default=0)


def _dtype(span: Span) -> str:
    return next((str(kind) for kind in _list(span, "Input type") if kind), "")
