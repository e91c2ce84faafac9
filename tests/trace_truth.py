"""An independent reading of a trace: the standard library, whole nanoseconds, one sweep over sorted intervals.

Nothing of knee is imported, and nothing is fast.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COMM = re.compile("nccl|rccl|multimem_all_reduce", re.IGNORECASE)
Interval = tuple[int, int]


def true_times(path: Path) -> dict[str, int]:
    """Sums, unions and counts, in nanoseconds: compute is every kernel that does not communicate, exposed is what of
    the union of those that do lies outside the union of compute."""
    compute, comm, copies = _intervals(path)
    unions = {"compute": _union(compute), "comm": _union(comm), "all": _union([*compute, *comm, *copies])}
    length = {name: _length(union) for name, union in unions.items()}
    span = unions["all"][-1][1] - unions["all"][0][0]
    either = _length(_union([*compute, *comm]))
    return {
        "compute_load": _length(compute),
        "compute": length["compute"],
        "comm_load": _length(comm),
        "comm": length["comm"],
        "exposed": either - length["compute"],
        "overlapped": length["comm"] + length["compute"] - either,
        "span": span,
        "idle": span - length["all"],
        "n_compute": len(compute),
        "n_comm": len(comm),
        "n_copies": len(copies),
    }


def _intervals(path: Path) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Of compute, communication and copies."""
    found: dict[str, list[Interval]] = {"compute": [], "comm": [], "copies": []}
    for event in _events(path):
        category = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or "dur" not in event or category not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        kind = "copies" if category != "kernel" else "comm" if COMM.search(event["name"]) else "compute"
        start = _ns(event["ts"])
        found[kind].append((start, start + _ns(event["dur"])))
    return found["compute"], found["comm"], found["copies"]


def _events(path: Path) -> Iterable[dict[str, Any]]:
    data = path.read_bytes()
    # numbers stay as they are written: a float64 does not hold a real trace's nanoseconds
    read = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=str)
    return [event for event in (read["traceEvents"] if isinstance(read, dict) else read) if isinstance(event, dict)]


def _ns(time_us: int | str) -> int:
    whole, _, decimals = str(time_us).partition(".")
    return int(whole) * 1000 + int((decimals + "000")[:3])


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)
