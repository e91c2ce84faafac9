"""One rank's trace as columns: kernels, copies, launches and steps, in whole nanoseconds from the first of them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knee.errors import InputError
from knee.trace.decode import KEYS, NO_ARGS, Args, nanoseconds
from knee.trace.stream import HINT, Stream

Int64 = npt.NDArray[np.int64]
COLUMNS = ("start", "end", "kind", "stream", "device", "correlation", "name")
KERNEL, COPY, FILL = range(3)
DEVICE_KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
LAUNCHES = ("_runtime", "_driver")
"""How the categories of calls that launch end: CUDA's and HIP's."""
STEP = re.compile(r"ProfilerStep#(\d+)")
FURTHEST_NS = 1 << 62
"""Beyond any trace: what lies so far from the first event has a broken clock."""
RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d+)", re.IGNORECASE)


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
    repeated_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """What the device of one rank did. Row ``i`` of every column is event ``i``; they are sorted by start."""

    path: Path
    rank: int
    world_size: int | None
    device_name: str | None
    info: dict[str, Any]
    """The trace's distributedInfo."""
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
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.start_ns)


def read_columns(path: Path) -> RankTrace:
    """Read a trace of a GPU; one of a processor comes back without a row."""
    stream, collect = Stream(path=path), _Collector()
    for events in stream.events():
        collect.take(events)
    return collect.finish(path, stream)


def rank_of(path: Path, info: dict[str, Any]) -> int:
    """From the trace, or else from its file's name."""
    rank = whole(info.get("rank"))
    if rank is None:
        found = RANK_IN_NAME.search(path.name)
        rank = int(found.group(1)) if found else 0
    return max(0, rank)


def whole(value: Any) -> int | None:
    """A whole number, also where it is written as text; None for anything else."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -FURTHEST_NS < number < FURTHEST_NS else None


class _Collector:
    """Takes events as they are decoded, and keeps what is asked of them."""

    def __init__(self) -> None:
        self.base: int | None = None
        self.kinds: dict[Any, Any] = {}
        self.numbers = {name: array("q") for name in COLUMNS}
        self.names: dict[str, int] = {}
        self.args: dict[int, Args] = {}
        self.launches = {name: array("q") for name in ("correlation", "at")}
        self.steps: dict[tuple[int, int], Step] = {}
        self.events = self.without_duration = self.anomalies = 0

    def take(self, events: list[Any]) -> None:
        """One decoded block."""
        self.events += len(events)
        kinds = self.kinds
        for event in events:
            category = event.cat
            try:
                kind = kinds[category]
            except KeyError:
                kind = kinds[category] = _kind(category)
            except TypeError:  # a category that is a list
                continue
            if kind is None:
                continue
            if kind == "launch":
                self._launch(event)
            elif kind == "annotation":
                self._annotation(event)
            else:
                self._device(event, kind)

    def _since_base(self, time: Any) -> int | None:
        at = nanoseconds(time)
        if at is None:
            return None
        if self.base is None:
            self.base = at
        return at - self.base

    def _launch(self, event: Any) -> None:
        correlation = whole(event.args.correlation) if event.args is not None else None
        at = self._since_base(event.ts) if correlation is not None else None
        if correlation is not None and at is not None and abs(at) < FURTHEST_NS:
            self.launches["correlation"].append(correlation)
            self.launches["at"].append(at)

    def _annotation(self, event: Any) -> None:
        found = STEP.fullmatch(event.name) if isinstance(event.name, str) else None
        if found is None or event.ph != "X":
            return
        start, duration = self._since_base(event.ts), nanoseconds(event.dur)
        if start is not None and duration is not None and duration >= 0:
            number = int(found.group(1))
            self.steps[number, start] = Step(number=number, start_ns=start, end_ns=start + duration)

    def _device(self, event: Any, kind: int) -> None:
        if event.ph != "X":
            return
        start, duration = self._since_base(event.ts), nanoseconds(event.dur)
        if start is None or duration is None:
            self.without_duration += 1
            return
        if duration < 0 or duration > FURTHEST_NS or abs(start) > FURTHEST_NS:
            self.anomalies += 1
            return
        args = event.args or NO_ARGS
        name = event.name if isinstance(event.name, str) else str(event.name)
        stream, device = whole(args.stream), whole(args.device)
        columns = self.numbers
        if args.collective is not None:
            self.args[len(columns["start"])] = Args(*(getattr(args, field) for field in KEYS))
        columns["start"].append(start)
        columns["end"].append(start + duration)
        columns["kind"].append(kind)
        columns["stream"].append(_or(stream, event.tid))
        columns["device"].append(_or(device, event.pid))
        correlation = whole(args.correlation)
        columns["correlation"].append(-1 if correlation is None else correlation)
        columns["name"].append(self.names.setdefault(name, len(self.names)))

    def finish(self, path: Path, stream: Stream) -> RankTrace:
        """All of it as arrays, sorted, from the first event on."""
        if not self.events:
            raise InputError(f"{path} has no events" + (f": {stream.cut}" if stream.cut else ""), hint=HINT)
        column = {name: np.array(values, dtype=np.int64) for name, values in self.numbers.items()}
        first = min([int(column["start"].min(initial=FURTHEST_NS)), *(s.start_ns for s in self.steps.values())])
        first = 0 if first >= FURTHEST_NS else first
        order = np.lexsort((column["end"], column["start"]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        launches = {name: np.array(values, dtype=np.int64) for name, values in self.launches.items()}
        by_correlation = np.argsort(launches["correlation"], kind="stable")
        info = stream.head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        steps, repeated = _steps(self.steps.values(), first)
        return RankTrace(
            path=path,
            rank=rank_of(path, info),
            world_size=whole(info.get("world_size")),
            device_name=_device_name(stream.head),
            info=info,
            start_ns=column["start"][order] - first,
            end_ns=column["end"][order] - first,
            kind=column["kind"][order],
            stream=column["stream"][order],
            device=column["device"][order],
            correlation=column["correlation"][order],
            name_id=column["name"][order],
            names=tuple(self.names),
            args={int(place[row]): args for row, args in self.args.items()},
            launch_correlation=launches["correlation"][by_correlation],
            launch_ns=launches["at"][by_correlation] - first,
            steps=steps,
            first_ns=(self.base or 0) + first,
            counts=Counts(
                events=self.events,
                without_duration=self.without_duration,
                clock_anomalies=self.anomalies,
                repairs=stream.repairs,
                repeated_steps=repeated,
            ),
            cut=stream.cut,
        )


def _kind(category: Any) -> Any:
    """What events of a category are read as; None for those that are only counted."""
    name = str(category).lower()
    if name in DEVICE_KINDS:
        return DEVICE_KINDS[name]
    if name == "user_annotation":
        return "annotation"
    return "launch" if name.endswith(LAUNCHES) else None


def _or(number: int | None, other: Any) -> int:
    if number is not None:
        return number
    found = whole(other)
    return -1 if found is None else found


def _steps(found: Iterable[Step], first: int) -> tuple[tuple[Step, ...], int]:
    """In order; a step that several threads annotate counts once."""
    steps: list[Step] = []
    repeated = 0
    for step in sorted(found, key=lambda s: (s.start_ns, -s.end_ns)):
        if steps and (step.number == steps[-1].number or step.start_ns - first < steps[-1].end_ns):
            repeated += 1
            continue
        steps.append(Step(number=step.number, start_ns=step.start_ns - first, end_ns=step.end_ns - first))
    return tuple(steps), repeated


def _device_name(head: dict[str, Any]) -> str | None:
    devices = head.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return str(name) if name else None
