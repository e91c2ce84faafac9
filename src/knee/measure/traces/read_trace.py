"""A trace file, read and sorted into compute, communication and copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knee.base.arrays import ByValue
from knee.base.errors import InputError
from knee.measure.kineto.column_cache import cached_columns
from knee.measure.kineto.event_columns import Int64, RankTrace, Step, of_gpu
from knee.measure.kineto.event_stream import HINT, ReportBytes
from knee.measure.kineto.process_groups import Call, ProcessGroups, collective_of
from knee.measure.traces.kernel_classes import BETWEEN_EXPERTS, Classes, Classified, classify


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace(ByValue):
    """One rank's trace, ready to be measured."""

    columns: RankTrace
    classified: Classified
    calls: dict[int, Call]
    """What each communication kernel does, by row."""
    launched_ns: Int64
    """When the host launched each kernel; -1 where that is not in the trace."""
    steps: tuple[Step, ...]
    """Steps in which something was launched."""
    empty_steps: tuple[int, ...]
    """Numbers of the others: traces end with one."""
    border_ns: Int64
    """When each step begins on the device, and, last, when the last one ends there."""


def read_trace(
    path: Path,
    classes: Classes,
    *,
    axes: Mapping[str, str] | None = None,
    cache: bool = True,
    report_bytes: ReportBytes | None = None,
) -> Trace:
    """Read a ``.json`` or ``.json.gz`` trace."""
    columns = cached_columns(path, use=cache, report_bytes=report_bytes)
    if columns.is_host:
        from knee.measure.kineto.cpu_trace import host_calls  # traces of GPUs need none of it

        calls = host_calls(columns, axes)
    elif len(columns):
        groups = ProcessGroups(columns.info, axes)
        calls = {row: groups.call(args, columns.names[columns.name_id[row]]) for row, args in columns.args.items()}
    elif of_gpu(columns):  # what its host did is no answer
        why = (
            f"{columns.cut}, before the first kernel"
            if columns.cut
            else "check that the profiler used ProfilerActivity.CUDA"
        )
        text = f"{path}: {columns.counts.events:,} events of a GPU job, but no kernel"
        raise InputError(text, hint=why, code="no-kernels")
    if not len(columns):
        cut = f": {columns.cut}" if columns.cut else ""
        text = f"{path} has no kernel and no operator among its {columns.counts.events:,} events{cut}"
        raise InputError(text, hint=HINT, code="no-kernels")
    classified = classify(columns, classes, calls)
    calls = _calls(columns, classified, calls)
    launched = _launched(columns)
    busy, empty = _busy_steps(columns, launched)
    return Trace(
        columns=columns,
        classified=classified,
        calls=calls,
        launched_ns=launched,
        steps=busy,
        empty_steps=empty,
        border_ns=_borders(columns, launched, busy),
    )


def _calls(columns: RankTrace, classified: Classified, told: Mapping[int, Call]) -> dict[int, Call]:
    """What each communication kernel does: as its arguments tell, or else by its name."""
    by_name: dict[int, Call] = {}
    found = {row: call for row, call in told.items() if classified.is_comm[row]}
    rows = np.flatnonzero(classified.is_comm)
    for row, name, kind in zip(
        rows.tolist(), columns.name_id[rows].tolist(), classified.class_id[rows].tolist(), strict=True
    ):
        if row in found:
            continue
        if name not in by_name:
            collective = collective_of(columns.names[name])
            if collective is None and classified.names[kind] == BETWEEN_EXPERTS:
                collective = "all_to_all"
            by_name[name] = Call(collective=collective, group=None, message_bytes=0.0, dtype=None)
        found[row] = by_name[name]
    return found


def _launched(columns: RankTrace) -> Int64:
    """When each row was launched, -1 for not known; a processor launches what it runs."""
    if columns.is_host:
        return columns.start_ns
    if not len(columns.launch_correlation):
        return np.full(len(columns), -1)
    at = np.searchsorted(columns.launch_correlation, columns.correlation)
    at = np.minimum(at, len(columns.launch_correlation) - 1)
    known = (columns.launch_correlation[at] == columns.correlation) & (columns.correlation >= 0)
    return np.where(known, columns.launch_ns[at], -1)


def _busy_steps(columns: RankTrace, launched: Int64) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Steps in which something was launched or, where launches are not known, ran; and the numbers of the others."""
    times = np.sort(launched[launched >= 0], kind="stable") if (launched >= 0).any() else columns.start_ns
    busy: list[Step] = []
    empty: list[Step] = []
    for step in columns.steps:
        first, last = np.searchsorted(times, (step.start_ns, step.end_ns))
        (busy if last > first else empty).append(step)
    return tuple(busy), tuple(step.number for step in empty)


def _borders(columns: RankTrace, launched: Int64, steps: tuple[Step, ...]) -> Int64:
    """A step begins on the device with the first kernel that was launched in it; the last ends with its last kernel.

    What lies across a border is cut there, so that the parts add up to the whole. A simulated trace has one step, and
    says when that begins and ends: a stage may wait before its first kernel, and for the host after its last.
    """
    if not steps:
        return np.array([], dtype=np.int64)
    if len(steps) == 1 and (simulated := columns.simulated_step_ns) is not None:
        return np.array(simulated, dtype=np.int64)
    starts = np.array([step.start_ns for step in steps])
    if columns.is_host:
        begins, end = starts, steps[-1].end_ns
    else:
        of_step = np.searchsorted(starts, launched, side="right") - 1
        of_step[launched < 0] = -1
        begins = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(begins, of_step[of_step >= 0], columns.start_ns[of_step >= 0])
        begins = np.where(begins == np.iinfo(np.int64).max, starts, begins)
        end = int(columns.end_ns.max())
    borders = np.maximum.accumulate(np.concatenate((begins, [end])))
    return borders.astype(np.int64)
