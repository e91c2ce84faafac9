"""Traces made by tests, and times of intervals found the slow way."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

BASE_US = 1669783687389324
"""A real trace's first microsecond: as float64 its nanoseconds are not exact."""
Interval = tuple[int, int]


def us(nanoseconds: int) -> str:
    """A time as Kineto writes it, in microseconds with three decimals."""
    sign, n = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{n // 1000}.{n % 1000:03}"


class Number(str):
    """A number that is written as it stands."""


def dumps(value: Any, colon: str = ": ") -> str:
    """JSON with numbers that a float64 would not hold."""
    if isinstance(value, Number):
        return value[:]
    if isinstance(value, dict):
        return "{" + ", ".join(json.dumps(key) + colon + dumps(one, colon) for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(dumps(one, colon) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def event(
    start: int,
    length: int | None,
    *,
    name: str = "gemm",
    category: str = "kernel",
    stream: int = 7,
    base: int = BASE_US * 1000,
    **args: Any,
) -> dict[str, Any]:
    """A complete event; times are nanoseconds from ``base`` on."""
    times = {"ts": Number(us(base + start))} | ({} if length is None else {"dur": Number(us(length))})
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": stream,
        **times,
        "args": {"stream": stream, "device": 0, **args},
    }


def comm(start: int, length: int, *, stream: int = 20, **options: Any) -> dict[str, Any]:
    return event(start, length, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=stream, **options)


def launch(at: int, correlation: int, **options: Any) -> dict[str, Any]:
    return event(at, 1, name="cudaLaunchKernel", category="cuda_runtime", stream=1, correlation=correlation, **options)


def step(number: int, start: int, length: int, **options: Any) -> dict[str, Any]:
    return event(start, length, name=f"ProfilerStep#{number}", category="user_annotation", stream=1, **options)


def document(events: Sequence[Any], **head: Any) -> str:
    return dumps({"schemaVersion": 1, **head, "traceEvents": list(events)})


def write(path: Path, content: str | bytes) -> Path:
    """Packed where the name ends in .gz."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
    return path


def cut_to(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    low, high = window
    return [(min(max(a, low), high), min(max(b, low), high)) for a, b in intervals]


def cells(intervals: Iterable[Interval]) -> set[int]:
    """Every nanosecond that lies in one of them."""
    return {at for a, b in intervals for at in range(a, b)}


def slow_times(
    compute: Sequence[Interval], communication: Sequence[Interval], copies: Sequence[Interval], window: Interval
) -> dict[str, int]:
    """What ``Times`` should say of a window, one nanosecond after the other."""
    kinds = [cut_to(some, window) for some in (compute, communication, copies)]
    sums = [sum(b - a for a, b in some) for some in kinds]
    c, n, m = map(cells, kinds)
    whole = window[1] - window[0]
    return {
        "window_s": whole,
        "compute_load_s": sums[0],
        "comm_load_s": sums[1],
        "copy_load_s": sums[2],
        "compute_s": len(c),
        "comm_s": len(n),
        "exposed_comm_s": len(n - c),
        "overlapped_comm_s": len(n & c),
        "exposed_copies_s": len(m - n - c),
        "idle_s": whole - len(c | n | m),
    }
