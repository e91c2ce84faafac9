"""A rank's communication by collective, group and size, and its kernels by class and by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.measure.kineto.event_columns import KERNEL
from knee.measure.kineto.process_groups import UNKNOWN as UNKNOWN
from knee.measure.kineto.process_groups import bus_bytes
from knee.measure.traces.device_time import NS, Window, clipped, exposed_ns
from knee.measure.traces.read_trace import Trace


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
