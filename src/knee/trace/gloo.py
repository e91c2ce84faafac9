"""What a processor did in a trace: operators that compute, and gloo's calls with the operator that issued each.

gloo annotates a reduce-scatter as ``gloo:all_reduce``, and names no group. The operator on the issuing thread says the
collective; the annotations around it say the axis: FSDP's and DTensor's own, or ``knee::AXIS`` where knee's trainer
put one. A group has worker threads of its own, so that one call whose axis is known tells that of its thread's others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from knee.trace.columns import Issued
from knee.trace.spans import Span, nested

CALLS = "gloo:"
ISSUES = "c10d::"
COMM_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor", "gloo")
WAITING = ("autograd", "profiler")
"""Namespaces of operators that wrap others, and wait for communication inside hooks."""
AXIS = "knee::"
PAIRS = ("send", "recv")
OPERATORS = ("cpu_op", "operator")
CATEGORIES = (*OPERATORS, "user_annotation")
NO_ARGS: dict[str, Any] = {}
MOST_ELEMENTS = 1 << 48
"""Of a tensor; a trace that says more is wrong."""


def is_asked(event: Any) -> bool:
    """Whether a processor's event says anything here; frames of Python, say, are most of a trace and do not."""
    return str(event.cat).lower() in CATEGORIES or str(event.name).startswith(CALLS)


def args_asked(event: Any) -> dict[str, Any]:
    """Shapes, of what communicates; nothing else is asked of arguments."""
    if not (isinstance(event.args, dict) and _communicates(str(event.name))):
        return NO_ARGS
    return {key: event.args[key] for key in ("Input Dims", "Input type") if key in event.args}


def host_compute(spans: Iterable[Span]) -> list[Span]:
    """The outermost operators that compute: those that have no communication inside them."""
    operators = [s for s in spans if s.category in OPERATORS or s.name.startswith(CALLS)]
    around = {id(outer) for span, outside in nested(operators) if _communicates(span.name) for outer in outside}
    chosen: list[Span] = []
    taken: set[int] = set()
    for span, outside in nested(operators):
        if id(span) in around or _communicates(span.name) or _namespace(span) in WAITING or "::" not in span.name:
            continue
        if any(id(outer) in taken for outer in outside):
            continue
        taken.add(id(span))
        chosen.append(span)
    return chosen


def _namespace(span: Span) -> str:
    return span.name.partition("::")[0]


def _communicates(name: str) -> bool:
    return name.startswith(CALLS) or name.partition("::")[0] in COMM_NAMESPACES


def gloo_calls(spans: Iterable[Span]) -> list[tuple[Span, Issued]]:
    """Every call of gloo with its operator: the first of its kind and size that was issued before and is still free."""
    spans = list(spans)
    calls = sorted((s for s in spans if s.name.startswith(CALLS)), key=lambda s: s.start_ns)
    if not calls:
        return []
    free = sorted(
        ((span, outside) for span, outside in nested(spans) if span.name.startswith(ISSUES)),
        key=lambda pair: pair[0].start_ns,
    )
    found = []
    for call in calls:
        at = next((i for i, (operator, _) in enumerate(free) if _issued(operator, call)), None)
        if at is None:
            found.append(
                (call, Issued(call.name, str(call.track), None, None, _elements(call), False, _dtype(call), None))
            )
            continue
        operator, outside = free.pop(at)
        elements = max(_elements(operator), _elements(call))
        found.append(
            (
                call,
                Issued(
                    call.name,
                    str(call.track),
                    operator.name,
                    _axis(operator, outside),
                    elements,
                    bool(_elements(operator)),
                    _dtype(call),
                    _ranks(operator),
                ),
            )
        )
    return found


def settle(calls: list[Issued], sizes: Mapping[str, int]) -> list[Issued]:
    """The calls, with axes that follow from others': ``sizes`` are the ranks of this rank's groups by axis.

    An axis that nothing tells is the only one of its size that FSDP does not claim, if there is only one; the world,
    where no other group has the call's size.
    """
    claimed = {call.axis for call in calls if call.axis in ("dp_shard", "dp_replicate")}
    of_thread: dict[str, str] = {}
    for call in calls:
        axis = call.axis
        if axis is None and call.ranks is not None:
            open_to = [name for name, size in sizes.items() if size == call.ranks and name not in (*claimed, "world")]
            axis = open_to[0] if len(open_to) == 1 else None
        if axis not in (None, "world", "pp"):
            of_thread[call.thread] = str(axis)
    sure = ("dp_shard", "dp_replicate", "pp")
    return [
        call if call.axis in sure else call._replace(axis=of_thread.get(call.thread, call.axis or _world(call, sizes)))
        for call in calls
    ]


def _world(call: Issued, sizes: Mapping[str, int]) -> str | None:
    """The group of all ranks, where it is the only one that a call can be of."""
    world, others = sizes.get("world"), {size for name, size in sizes.items() if name != "world"}
    fits = call.ranks == world and world not in others if call.ranks is not None else not others
    return "world" if world is not None and fits else None


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
