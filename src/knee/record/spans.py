"""Complete events of a Kineto trace, in whole nanoseconds, and how they lie inside each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One event with a beginning and an end."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    track: tuple[Any, Any]
    """Process and thread; device and stream for kernels."""
    args: Mapping[str, Any]


def spans_of(events: Iterable[Any]) -> list[Span]:
    """Complete events; what has no times is no span."""
    found = []
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or "dur" not in event or "ts" not in event:
            continue
        start = nanoseconds(event["ts"])
        found.append(Span(start, start + max(0, nanoseconds(event["dur"])), str(event.get("name", "")),
                          str(event.get("cat", "")).lower(), (event.get("pid"), event.get("tid")),
                          event.get("args") or {}))
    return found


def nanoseconds(microseconds: str | int) -> int:
    """A number as it stands in the file, exactly: three decimals are nanoseconds."""
    text = str(microseconds)
    if "e" in text or "E" in text:
        return round(float(text) * 1000)
    whole, _, fraction = text.partition(".")
    sign = -1 if whole.startswith("-") else 1
    return int(whole) * 1000 + sign * int((fraction + "000")[:3])


def nested(spans: Iterable[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Each span with those of its thread that it lies in, the outermost first."""
    stack: list[Span] = []
    for span in sorted(spans, key=lambda s: (str(s.track), s.start_ns, -s.end_ns)):
        while stack and (stack[-1].track != span.track or stack[-1].end_ns < span.end_ns
                         or stack[-1].end_ns <= span.start_ns):
            stack.pop()
        yield span, list(stack)
        stack.append(span)
