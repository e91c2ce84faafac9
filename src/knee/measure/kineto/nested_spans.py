"""Complete events of a Kineto trace, in whole nanoseconds, and how they lie inside each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Any, NamedTuple

from knee.measure.kineto.decode import nanoseconds


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
