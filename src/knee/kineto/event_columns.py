"""One rank's trace as columns: kernels, copies, launches and steps, in whole nanoseconds from the first of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from knee.arrays import ByValue
from knee.errors import InputError
from knee.kineto.decode import KEYS, NO_ARGS, Args, nanosecond_column, nanoseconds, plain, whole_column
from knee.kineto.decode import Int64 as Int64
from knee.kineto.event_stream import HINT, EventStream, ReportBytes
from knee.limits import LONGEST_TRACE_NS, MOST_KERNELS

COLUMNS = ("start", "end", "kind", "stream", "device", "correlation", "name")
KERNEL, COPY, FILL = range(3)
DEVICE_KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
STEP = re.compile(r"ProfilerStep#(\d{1,18})")
FURTHEST_NS = 1 << 61
"""Beyond any trace: what lies so far from the first event has a broken clock."""
MISSING = -(1 << 63)
"""In a column: no number."""
FAR = MISSING + 1
"""In a column: a time beyond ``FURTHEST_NS``."""
TOGETHER = 16
"""Blocks whose events become columns together: enough that it costs little, few enough that they take no memory."""
RANK_IN_NAME = (
    re.compile(r"(?<!node)(?<!node[-_])rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE),
    re.compile(r"worker[-_]?(\d{1,9})(?!\d)", re.IGNORECASE),
)
"""The first that fits counts: a worker may have several ranks, and a node's rank is no rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A profiler step, as the host ran it."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was read, and what of it has no place in the columns."""

    events: int = 0
    without_duration: int = 0
    """Device events with no duration, or no time."""
    clock_anomalies: int = 0
    """Device events with a negative duration, or a time beyond reason."""
    repairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace(ByValue):
    """What the device of one rank did. Row ``i`` of every column is event ``i``; they are sorted by start."""

    path: Path
    rank: int
    rank_known: bool
    """Whether the trace or its file's name says the rank."""
    world_size: int | None
    device_name: str | None
    info: dict[str, Any]
    """The trace's distributedInfo."""
    knee: dict[str, Any]
    """What knee wrote into the head: of a simulated trace, and of one that ``--perfetto`` made."""
    start_ns: Int64
    """From ``first_ns`` on."""
    end_ns: Int64
    kind: Int64
    """KERNEL, COPY or FILL."""
    stream: Int64
    device: Int64
    correlation: Int64
    """-1 where it has none."""
    name_id: Int64
    names: tuple[str, ...]
    args: dict[int, Args]
    """Arguments of kernels that have a collective, by row."""
    launch_correlation: Int64
    """Sorted."""
    launch_ns: Int64
    """When the host launched, in the order of ``launch_correlation``."""
    steps: tuple[Step, ...]
    first_ns: int
    """The file's own time of the first event, and base of all others."""
    counts: Counts
    cut: str | None = None
    is_host: bool = False
    """A processor's trace: operators and gloo's calls instead of kernels."""
    issued: dict[int, LaunchCall] = field(default_factory=dict)
    """gloo's calls of a processor's trace, by row."""
    notes: tuple[str, ...] = field(default=())

    @property
    def is_simulated(self) -> bool:
        """Whether knee's simulator wrote it."""
        return bool(self.knee.get("simulated"))

    @property
    def simulated_step_ns(self) -> tuple[int, int] | None:
        """When the step of a simulated trace begins and ends on the device; None where its head does not say."""
        match self.knee:
            case {"simulated": True, "step_ns": [int(start), int(end)]} if -FURTHEST_NS < start <= end < FURTHEST_NS:
                return start - self.first_ns, end - self.first_ns
        return None

    def __len__(self) -> int:
        return len(self.start_ns)


def read_columns(path: Path, *, copy: Path | None = None, report_bytes: ReportBytes | None = None) -> RankTrace:
    """Read a trace of a GPU; one of a processor comes back without a row. ``copy`` gets what was read of ``path``."""
    stream, collect = EventStream(path=path, copy=copy, report_bytes=report_bytes), _Collector()
    for events in stream.events():
        collect.take(events)
    return collect.finish(path, stream)


def rank_of(path: Path, info: dict[str, Any]) -> int | None:
    """From the trace, or else from its file's name; None where neither says it."""
    rank = whole(info.get("rank"))
    if rank is None:
        found = next((match for pattern in RANK_IN_NAME if (match := pattern.search(path.name))), None)
        rank = int(found.group(1)) if found else None
    return None if rank is None else max(0, rank)


def whole(value: Any) -> int | None:
    """A whole number, also where it is written as text; None for anything else."""
    if type(value) is not int:
        try:
            value = int(float(value) if isinstance(value, str) and "." in value else value)
        except (TypeError, ValueError, OverflowError):
            return None
    number: int = value
    return number if -FURTHEST_NS < number < FURTHEST_NS else None


class LaunchCall(NamedTuple):
    """One call of gloo, and who issued it."""

    name: str
    thread: str
    """The one that ran it."""
    operator: str | None
    axis: str | None
    elements: int
    """Of the largest tensor that the operator had, or else of gloo's."""
    full: bool
    """Whether that is the whole message, not a rank's part."""
    dtype: str
    ranks: int | None
    """Ranks of the group, where the operator's tensors tell: what it gathers over what a rank has."""


def check_kernels(count: int) -> None:
    """Refuse more rows than memory is meant for."""
    if count > MOST_KERNELS:
        raise InputError(
            f"there are more than {MOST_KERNELS:,} kernels, copies and launches, and no more are kept in memory",
            hint="give fewer ranks, or trace fewer steps (torch.profiler.schedule)",
            code="too-large",
        )


class _Collector:
    """Takes events as they are decoded, and keeps what is asked of them."""

    def __init__(self) -> None:
        self.base: int | None = None
        self.columns: dict[str, list[Int64]] = {name: [] for name in (*COLUMNS, "launch", "launched")}
        self.rows = self.launches = 0
        self.waiting: list[list[Any]] = []
        self.names: dict[str, int] = {}
        self.texts: dict[Any, Any] = {}
        self.args: dict[int, Args] = {}
        self.steps: dict[tuple[int, int], Step] = {}
        self.events = self.without_duration = self.anomalies = 0

    def take(self, events: list[Any]) -> None:
        """Take the events of one decoded block."""
        self.events += len(events)
        self.waiting.append([event for event in events if event.role is not None])
        if len(self.waiting) >= TOGETHER:
            self._flush()

    def _flush(self) -> None:
        found = [event for events in self.waiting for event in events]
        self.waiting.clear()
        check_kernels(self.rows + self.launches)
        self._device([event for event in found if event.role in DEVICE_KINDS and event.ph == "X"])
        self._launches([event for event in found if event.role == "launch" and event.args is not None])
        for event in found:
            if event.role == "annotation":
                self._annotation(event)

    def _set_base(self, times: list[Any]) -> None:
        """The middle of the first times that were seen, as one of them may be broken."""
        if self.base is None:
            known = sorted(at for at in map(nanoseconds, times) if at is not None)
            self.base = known[len(known) // 2] if known else None

    def _since_base(self, times: list[Any]) -> Int64:
        self._set_base(times)
        return _times(times, self.base or 0)

    def _launches(self, events: list[Any]) -> None:
        launch, at = _wholes([event.args.correlation for event in events]), self._since_base([e.ts for e in events])
        good = (launch != MISSING) & (at > FAR)
        self.columns["launch"].append(launch[good])
        self.columns["launched"].append(at[good])
        self.launches += int(good.sum())

    def _annotation(self, event: Any) -> None:
        found = STEP.fullmatch(event.name) if isinstance(event.name, str) else None
        if found is None or event.ph != "X":
            return
        self._set_base([event.ts])
        start, duration = _since(event.ts, self.base or 0), nanoseconds(event.dur)
        if start <= FAR or duration is None or not 0 <= duration < LONGEST_TRACE_NS:
            return
        number = int(found.group(1))
        self.steps[number, start] = Step(number=number, start_ns=start, end_ns=start + duration)

    def _device(self, events: list[Any]) -> None:
        start, duration = self._since_base([e.ts for e in events]), _times([e.dur for e in events], 0)
        timed = (start != MISSING) & (duration != MISSING)
        good = timed & (start != FAR) & (duration >= 0) & (duration < LONGEST_TRACE_NS)
        self.without_duration += len(events) - int(timed.sum())
        self.anomalies += int(timed.sum()) - int(good.sum())
        if not good.all():
            events, start, duration = [events[i] for i in np.flatnonzero(good)], start[good], duration[good]
        if not events:
            return
        args, names = [event.args or NO_ARGS for event in events], self.names
        for i, some in enumerate(args):
            if some.collective is not None:
                self.args[self.rows + i] = Args(*(self._shared(plain(getattr(some, field))) for field in KEYS))
        named = [event.name if isinstance(event.name, str) else str(event.name) for event in events]
        found = {
            "start": start,
            "end": start + duration,
            "kind": [DEVICE_KINDS[event.role] for event in events],
            "stream": _numbers([a.stream for a in args], [event.tid for event in events]),
            "device": _numbers([a.device for a in args], [event.pid for event in events]),
            "correlation": _numbers([a.correlation for a in args], []),
            "name": [names.setdefault(name, len(names)) for name in named],
        }
        for name, values in found.items():
            self.columns[name].append(np.asarray(values, dtype=np.int64))
        self.rows += len(events)

    def _shared(self, value: Any) -> Any:
        """The same text as before, where it is one: groups of a thousand ranks are listed in every call."""
        return self.texts.setdefault(value, value) if isinstance(value, str) else value

    def finish(self, path: Path, stream: EventStream) -> RankTrace:
        """All of it as arrays, sorted, from the first event on."""
        self._flush()
        if not self.events:
            text = f"{path} has no events" + (f": {stream.cut}" if stream.cut else "")
            raise InputError(text, hint=HINT, code="empty")
        none = np.array([], dtype=np.int64)
        column = {name: np.concatenate((none, *parts)) for name, parts in self.columns.items()}
        starts = (column["start"], column["launched"], [step.start_ns for step in self.steps.values()])
        first = min((int(np.min(some)) for some in starts if len(some)), default=0)
        order = np.lexsort((column["end"], column["start"]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        by_correlation = np.argsort(column["launch"], kind="stable")
        info = stream.head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        made = stream.head.get("knee")
        rank = rank_of(path, info)
        return RankTrace(
            path=path,
            rank=rank or 0,
            rank_known=rank is not None,
            world_size=whole(info.get("world_size")),
            device_name=_device_name(stream.head),
            info=info,
            knee=made if isinstance(made, dict) else {},
            start_ns=column["start"][order] - first,
            end_ns=column["end"][order] - first,
            kind=column["kind"][order],
            stream=column["stream"][order],
            device=column["device"][order],
            correlation=column["correlation"][order],
            name_id=column["name"][order],
            names=tuple(self.names),
            args={int(place[row]): args for row, args in self.args.items()},
            launch_correlation=column["launch"][by_correlation],
            launch_ns=column["launched"][by_correlation] - first,
            steps=_steps(self.steps.values(), first),
            first_ns=(self.base or 0) + first,
            counts=Counts(
                events=self.events,
                without_duration=self.without_duration,
                clock_anomalies=self.anomalies,
                repairs=stream.repairs,
            ),
            cut=stream.cut,
        )


def _times(times: list[Any], base: int) -> Int64:
    """Nanoseconds since ``base``, or MISSING, or FAR."""
    if not 0 <= base < FURTHEST_NS * 4:
        return np.array([_since(time, base) for time in times], dtype=np.int64)
    found, others = nanosecond_column(times)
    since = found - base
    since[np.abs(since) >= FURTHEST_NS] = FAR
    since[others] = [_since(times[row], base) for row in others.tolist()]
    return since


def _since(time: Any, base: int) -> int:
    at = nanoseconds(time)
    return MISSING if at is None else at - base if abs(at - base) < FURTHEST_NS else FAR


def _wholes(values: list[Any]) -> Int64:
    """Read whole numbers; what is none becomes MISSING."""
    found, others = whole_column(values)
    found[np.abs(found) >= FURTHEST_NS] = MISSING
    numbers = (whole(plain(values[row])) for row in others.tolist())
    found[others] = [MISSING if number is None else number for number in numbers]
    return found


def _numbers(arguments: list[Any], tracks: list[Any]) -> Int64:
    """Arguments, or in their place the numbers of the events' tracks; -1 where there is neither."""
    found = _wholes(arguments)
    if (found == MISSING).any() and tracks:
        found = np.where(found == MISSING, _wholes(tracks), found)
    return np.where(found == MISSING, -1, found)


def _steps(annotated: Iterable[Step], first: int) -> tuple[Step, ...]:
    """Return the steps in order; one that several threads annotate counts once."""
    steps: list[Step] = []
    for step in sorted(annotated, key=lambda s: (s.start_ns, -s.end_ns)):
        start, end = step.start_ns - first, step.end_ns - first
        if steps:
            last = steps[-1]
            # times in whole microseconds let a step begin just before the last one ends
            inside = start < (last.start_ns + last.end_ns) // 2 or end <= last.end_ns
            if step.number == last.number or (start < last.end_ns and inside):
                continue
        steps.append(Step(number=step.number, start_ns=start, end_ns=end))
    return tuple(steps)


def _device_name(head: dict[str, Any]) -> str | None:
    devices = head.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return str(name) if name else None
