"""A trace's columns beside the user's other caches, so that a second look is instant.

An entry holds only for a file of the same size, times of change, and first and last bytes, read by this very reader;
one that is damaged, or does not hold, is read anew and replaced. Nothing fails for want of a cache. What is no plain
file (a pipe, the standard input) can be read once only: it is copied first, and has no entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from sys import intern
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from knee.base.arrays import Bools
from knee.base.errors import InputError, KneeError
from knee.base.limits import LONGEST_TRACE_NS
from knee.measure.kineto.decode import KEYS, NO_ARGS, Args, as_text, nanoseconds, raw
from knee.measure.kineto.event_columns import (
    DEVICE_KINDS,
    FURTHEST_NS,
    Counts,
    Int64,
    RankTrace,
    Step,
    check_kernels,
    of_gpu,
    rank_of,
    whole,
)
from knee.measure.kineto.event_stream import HINT, EventStream, ReportBytes

# Events as they are decoded -> columns of one rank's trace. Times stay text until there are thousands of them:
# reading a column digit by digit costs the same few dozen calls of NumPy for a hundred numbers as for ten thousand,
# and text that was copied out of a block holds no block in memory.

COLUMNS = ("start", "end", "kind", "stream", "device", "correlation", "name")
LAUNCHES = ("launch", "launched")
STEP = re.compile(r"ProfilerStep#(\d{1,18})")
MISSING = -(1 << 63)
"""In a column: no number."""
FAR = MISSING + 1
"""In a column: a time beyond ``FURTHEST_NS``."""
TOGETHER = 1 << 14
"""Kernels and launches whose numbers are read together: enough that it costs little, few enough for the cache."""


def read_columns(path: Path, *, copy: Path | None = None, report_bytes: ReportBytes | None = None) -> RankTrace:
    """Read a trace of a GPU; one of a processor comes back without a row. ``copy`` gets what was read of ``path``."""
    stream, collect = EventStream(path=path, copy=copy, report_bytes=report_bytes), _Collector()
    for events in stream.events():
        collect.take(events)
    return collect.finish(path, stream)


class _Waiting:
    """Kernels, copies, launches and steps whose numbers are not read yet."""

    def __init__(self) -> None:
        self.start, self.duration, self.launched = NumberText(), NumberText(), NumberText()
        self.stream, self.device, self.correlation, self.launch = (array("q") for _ in range(4))
        self.kinds: list[int] = []
        self.names: list[int] = []
        self.args: list[tuple[int, Args]] = []
        self.steps: list[Any] = []

    def __len__(self) -> int:
        return len(self.start) + len(self.launch)


class _Collector:
    """Takes events as they are decoded, and keeps what is asked of them."""

    def __init__(self) -> None:
        self.base: int | None = None
        self.columns: dict[str, list[Int64]] = {name: [] for name in (*COLUMNS, *LAUNCHES)}
        self.rows = self.launches = 0
        self.waiting = _Waiting()
        self.names: defaultdict[str, int] = defaultdict()  # numbered in the order in which they are first asked for
        self.names.default_factory = self.names.__len__
        self.args: dict[int, Args] = {}
        self.steps: dict[tuple[int, int], Step] = {}
        self.events = self.without_duration = self.anomalies = 0

    def take(self, events: list[Any]) -> None:
        """Take the events of one decoded block."""
        self.events += len(events)
        device: list[Any] = []
        launches: list[Any] = []
        annotations: list[Any] = []
        keep = {"launch": launches.append, "annotation": annotations.append} | dict.fromkeys(
            DEVICE_KINDS, device.append
        )
        for event in events:
            if (role := event.role) is not None:
                keep[role](event)
        self._take_device([event for event in device if event.ph == "X"])
        if launches:
            self.waiting.launch += _wholes([(event.args or NO_ARGS).correlation for event in launches])
            self.waiting.launched.add([event.ts for event in launches])
        self.waiting.steps += [event for event in annotations if _step_number(event) is not None]
        if len(self.waiting) >= TOGETHER:
            self._flush()

    def _take_device(self, events: list[Any]) -> None:
        if not events:
            return
        w, args = self.waiting, [event.args or NO_ARGS for event in events]
        for i, some in enumerate(args, len(w.start)):
            if some.collective is not None:
                # groups of a thousand ranks are listed in every call: their text is kept once
                texts = (getattr(some, field) for field in KEYS)
                w.args.append((i, Args(*(intern(text) if type(text) is str else text for text in texts))))
        w.start.add([event.ts for event in events])
        w.duration.add([event.dur for event in events])
        w.stream += _wholes([some.stream for some in args], (event.tid for event in events))
        w.device += _wholes([some.device for some in args], (event.pid for event in events))
        w.correlation += _wholes([some.correlation for some in args])
        w.kinds += [DEVICE_KINDS[event.role] for event in events]
        named = [event.name for event in events]
        if set(map(type, named)) != {str}:
            named = list(map(str, named))
        w.names += map(self.names.__getitem__, named)

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, _Waiting()
        check_kernels(self.rows + self.launches)
        if len(waiting.start):
            self._device(waiting)
        if len(waiting.launch):
            launch, at = _column(waiting.launch), self._since_base(waiting.launched)
            good = (launch != MISSING) & (at > FAR)
            self.columns["launch"].append(launch[good])
            self.columns["launched"].append(at[good])
            self.launches += int(good.sum())
        for event in waiting.steps:
            number, duration = _step_number(event), nanoseconds(event.dur)
            start = int(self._since_base(NumberText([event.ts]))[0])
            if number is not None and start > FAR and duration is not None and 0 <= duration < LONGEST_TRACE_NS:
                self.steps[number, start] = Step(number=number, start_ns=start, end_ns=start + duration)

    def _since_base(self, times: NumberText) -> Int64:
        """Nanoseconds since the middle of the first times that were seen, as one of them may be broken."""
        if self.base is None:
            known = _known(times)
            self.base = known[len(known) // 2] if known else None
        return _times(times, self.base or 0)

    def _device(self, waiting: _Waiting) -> None:
        start, duration = self._since_base(waiting.start), _times(waiting.duration, 0)
        timed = (start != MISSING) & (duration != MISSING)
        good = timed & (start != FAR) & (duration >= 0) & (duration < LONGEST_TRACE_NS)
        self.without_duration += len(start) - int(timed.sum())
        self.anomalies += int(timed.sum()) - int(good.sum())
        found = {
            "start": start,
            "end": start + duration,
            "kind": waiting.kinds,
            "stream": _column(waiting.stream, -1),
            "device": _column(waiting.device, -1),
            "correlation": _column(waiting.correlation, -1),
            "name": waiting.names,
        }
        for name, values in found.items():
            self.columns[name].append(np.asarray(values, dtype=np.int64)[good])
        row = self.rows + np.cumsum(good) - 1
        self.args |= {int(row[i]): args for i, args in waiting.args if good[i]}
        self.rows += int(good.sum())

    def finish(self, path: Path, stream: EventStream) -> RankTrace:
        """All of it as arrays, sorted, from the first event on."""
        self._flush()
        if not self.events:
            text = f"{path} has no events" + (f": {stream.cut}" if stream.cut else "")
            raise InputError(text, hint=HINT, code="empty")
        none = np.array([], dtype=np.int64)
        column = {name: np.concatenate((none, *self.columns.pop(name))) for name in (*COLUMNS, *LAUNCHES)}
        starts = (column["start"], column["launched"], [step.start_ns for step in self.steps.values()])
        first = min((int(np.min(some)) for some in starts if len(some)), default=0)
        order = np.lexsort((column["end"], column["start"]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        by_correlation = np.argsort(column["launch"], kind="stable")
        column["name"], names = self._used_names(column["name"])
        info = stream.head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        made = stream.head.get("knee")
        match stream.head.get("deviceProperties"):
            case [{"name": name}, *_]:
                pass
            case _:
                name = None
        rank = rank_of(path, info)
        return RankTrace(
            path=path,
            rank=rank or 0,
            rank_known=rank is not None,
            world_size=whole(info.get("world_size")),
            device_name=str(name) if name else None,
            info=info,
            knee=made if isinstance(made, dict) else {},
            start_ns=column["start"][order] - first,
            end_ns=column["end"][order] - first,
            kind=column["kind"][order],
            stream=column["stream"][order],
            device=column["device"][order],
            correlation=column["correlation"][order],
            name_id=column["name"][order],
            names=names,
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

    def _used_names(self, name_id: Int64) -> tuple[Int64, tuple[str, ...]]:
        """Without names of events that were left out, in the order of their first events."""
        names = tuple(self.names)
        if not self.without_duration and not self.anomalies:
            return name_id, names
        used, first = np.unique(name_id, return_index=True)
        used = used[np.argsort(first)]
        new = np.zeros(len(names), dtype=np.int64)
        new[used] = np.arange(len(used))
        return new[name_id], tuple(names[i] for i in used.tolist())


def _step_number(event: Any) -> int | None:
    found = STEP.fullmatch(event.name) if isinstance(event.name, str) else None
    return int(found.group(1)) if found is not None and event.ph == "X" else None


def _times(times: NumberText, base: int) -> Int64:
    """Nanoseconds since ``base``, or MISSING, or FAR."""
    if not 0 <= base < FURTHEST_NS * 4:
        return np.array([_since(time, base) for time in times.values()], dtype=np.int64)
    found, others = nanosecond_column(times)
    since = found - base
    since[np.abs(since) >= FURTHEST_NS] = FAR
    if len(others):
        values = times.values()
        since[others] = [_since(values[row], base) for row in others.tolist()]
    return since


def _known(times: NumberText) -> list[int]:
    """Return the times that are numbers, sorted."""
    found, others = nanosecond_column(times)
    if len(others):
        read = map(nanoseconds, times.values())
        return sorted(at for at in read if at is not None)
    known: list[int] = np.sort(found).tolist()
    return known


def _since(time: Any, base: int) -> int:
    at = nanoseconds(time)
    return MISSING if at is None else at - base if abs(at - base) < FURTHEST_NS else FAR


def _wholes(numbers: list[Any], tracks: Iterable[Any] = ()) -> array[int]:
    """Whole numbers, or in their place those of the events' tracks (thread for stream, process for device); MISSING
    where there is neither."""
    try:
        return array("q", numbers)  # refuses all that is not a whole number, unlike NumPy
    except (TypeError, OverflowError):
        read = ((whole(number), whole(track)) for number, track in zip_longest(numbers, tracks))
        return array("q", [next((one for one in both if one is not None), MISSING) for both in read])


def _column(numbers: array[int], missing: int = MISSING) -> Int64:
    """Return the numbers with ``missing`` for those that are beyond reason or MISSING."""
    found = np.frombuffer(numbers, dtype=np.int64)
    return np.where((found >= FURTHEST_NS) | (found <= -FURTHEST_NS), missing, found)


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


# Columns of times, read from their text all at once and exactly: a float64 does not hold microseconds since 1970.

_COMMA, _POINT, _ZERO = b",.0"
DECIMALS = 3
"""Of a microsecond: nanoseconds. Further ones are cut off."""
_TENS = 10 ** np.arange(19, dtype=np.int64)


class NumberText:
    """A column of numbers as they stand in the file, with commas between them."""

    __slots__ = ("_count", "_odd", "_parts")

    def __init__(self, values: list[Any] | None = None) -> None:
        self._parts: list[bytes] = []
        self._odd: dict[int, list[Any]] = {}
        """Values by part, of those that are not this text alone: they have commas in them, or are decoded already."""
        self._count = 0
        if values:
            self.add(values)

    def __len__(self) -> int:
        return self._count

    def add(self, values: list[Any]) -> None:
        """Some more; at least one."""
        try:
            text = b",".join(values)
        except TypeError:  # the last events of a file come from the standard library, which has made numbers and words
            text = b""
        if text.count(b",") != len(values) - 1 or not text:
            self._odd[len(self._parts)] = values
            plain_texts = map(as_text, values)
            text = b",".join(b"" if b"," in one else one for one in plain_texts)
        self._parts.append(text)
        self._count += len(values)

    def text(self) -> bytes:
        """All numbers as text, each followed by a comma."""
        return b",".join((*self._parts, b""))

    def values(self) -> list[Any]:
        """Each as it was before it became text."""
        found: list[Any] = []
        for i, part in enumerate(self._parts):
            found += self._odd[i] if i in self._odd else map(raw, part.split(b","))
        return found


def nanosecond_column(times: NumberText) -> tuple[Int64, Int64]:
    """``nanoseconds`` of all at once, and the rows of those that are not plain digits with a point among them."""
    text = np.frombuffer(times.text(), dtype=np.uint8)
    alike = _alike(text, len(times))
    if alike is not None:
        return alike, np.array([], dtype=np.int64)
    found, read = _ragged(text)
    return found, np.flatnonzero(~read)


def _alike(text: npt.NDArray[np.uint8], count: int) -> Int64 | None:
    """Nanoseconds of times with as many digits before and after the point, as most have them; None for others."""
    width = len(text) // count
    if width * count != len(text) or text[width - 1] != _COMMA:
        return None
    letters = np.ascontiguousarray(text.reshape(count, width).T)
    before, point, after = letters[:-1, 0].tobytes().partition(b".")
    if (letters[-1] != _COMMA).any() or (point and (not after or (letters[len(before)] != _POINT).any())):
        return None
    digits = np.delete(letters[:-1], len(before), axis=0) if point else letters[:-1]
    digits = digits - np.uint8(_ZERO)  # what stands before 0 comes out large
    widest = len(_TENS) - DECIMALS
    if digits.max(initial=0) > 9 or not 0 < len(before) <= widest or (len(before) == widest and digits[0].max() == 9):
        return None
    found = np.zeros(count, dtype=np.int64)
    for digit in digits[: len(before) + DECIMALS]:
        found *= 10
        found += digit
    found *= _TENS[DECIMALS - min(len(after), DECIMALS)]
    return found


def _ragged(text: npt.NDArray[np.uint8]) -> tuple[Int64, Bools]:
    """Nanoseconds, and which were read. Digit by digit for all numbers of one width together: no expression has to
    guess where a number ends, so that the time does not depend on how they are written."""
    digit = text - np.uint8(_ZERO)  # what stands before 0 comes out large
    marks = np.flatnonzero(digit > 9)
    end = marks[text[marks] == _COMMA]
    start = np.concatenate(([0], end[:-1] + 1))
    point, other = _points(text, marks, end)
    width, after = point - start, end - point - 1  # -1 after no point
    widest = len(_TENS) - DECIMALS
    fits = (width < widest) | ((width == widest) & (digit[start] < 9))  # int64 ends between 9 and 10 times 10^18
    read = (other == 0) & (width > 0) & fits & (after != 0)
    found = np.zeros(len(end), dtype=np.int64)
    for digits in np.flatnonzero(np.bincount(width[read])).tolist():
        rows = np.flatnonzero(read & (width == digits))
        at, number = point[rows], np.zeros(len(rows), dtype=np.int64)
        for place in range(1, digits + 1):
            number += digit[at - place] * _TENS[place - 1 + DECIMALS]
        found[rows] = number
    for place in range(1, DECIMALS + 1):
        rows = np.flatnonzero(read & (after >= place))
        found[rows] += digit[point[rows] + place] * _TENS[DECIMALS - place]
    return found, read


def _points(text: npt.NDArray[np.uint8], marks: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Where each number's point stands, its end where it has none; and how many other letters it has that are no
    digits."""
    if len(marks) == len(end):
        return end, np.zeros(len(end), dtype=np.int64)
    points = marks[text[marks] == _POINT]
    point = end.copy()
    point[np.searchsorted(end, points)] = points
    return point, np.diff(np.searchsorted(marks, end), prepend=-1) - 1 - (point < end)


EDGE_BYTES = 4096
DIGEST_BYTES = 16
LARGEST_BYTES = 256 << 20
"""Of all entries together; the ones not looked at for longest go first."""
ARRAYS = ("start_ns", "end_ns", "kind", "stream", "device", "correlation", "name_id", "launch_correlation", "launch_ns")
_OTHERS = [f.name for f in fields(RankTrace) if f.name not in (*ARRAYS, "path")]


def cached_columns(path: Path, *, use: bool, report_bytes: ReportBytes | None) -> RankTrace:
    """Return the columns of a trace, from the cache where it has them and ``use`` allows it."""
    if not path.is_file():
        from knee.base.files import scratch_folder  # which takes longer to import than the cache to read

        with scratch_folder() as made:
            return _read(path, report_bytes, copy=made / "trace")
    if not use:
        return _read(path, report_bytes)
    try:
        entry, seal = _entry(path), _seal(path)
    except (OSError, RuntimeError):  # there may be no home to have a cache in
        return _read(path, report_bytes)
    trace = _load(entry, seal, path)
    if trace is None:
        trace = _read(path, report_bytes)
        _save(entry, seal, trace)
    return trace


def _read(path: Path, report_bytes: ReportBytes | None, copy: Path | None = None) -> RankTrace:
    """Read the trace of a processor twice: that of a pipe the second time from ``copy``, which ends where the first
    reading gave up."""
    trace = read_columns(path, copy=copy, report_bytes=report_bytes)
    if len(trace) or of_gpu(trace):
        return trace
    from knee.measure.kineto.cpu_trace import host_columns  # traces of GPUs need none of it

    return replace(host_columns(replace(trace, path=copy or path)), path=path)


def folder() -> Path:
    """Return the folder that has the entries."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "knee" / "traces"


def _entry(path: Path) -> Path:
    return folder() / f"{hashlib.blake2b(str(path.resolve()).encode(), digest_size=16).hexdigest()}.columns"


def _seal(path: Path) -> dict[str, Any]:
    """What must be the same for an entry to hold."""
    status = path.stat()
    with path.open("rb") as file:
        edges = file.read(EDGE_BYTES)
        file.seek(max(0, status.st_size - EDGE_BYTES))
        edges += file.read(EDGE_BYTES)
    return {
        "size": status.st_size,
        "changed_ns": [status.st_mtime_ns, status.st_ctime_ns],
        "edges": hashlib.blake2b(edges).hexdigest(),
        "reader": _reader(),
    }


@cache
def _reader() -> str:
    """The reader's own text: an entry of another one means nothing."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _save(entry: Path, seal: dict[str, Any], trace: RankTrace) -> None:
    import msgspec

    from knee.base.files import replacing

    others = {name: getattr(trace, name) for name in _OTHERS}
    arrays = [np.asarray(getattr(trace, name), dtype="<i8").tobytes() for name in ARRAYS]
    # no room, no right to write, or what msgpack does not hold
    with contextlib.suppress(KneeError, OSError, TypeError, ValueError, OverflowError, RecursionError):
        content = msgspec.msgpack.encode({"seal": seal, "arrays": arrays, "others": others})
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as partial:
            partial.write_bytes(_digest(content) + content)
        _prune(entry.parent)


def _load(entry: Path, seal: dict[str, Any], path: Path) -> RankTrace | None:
    """The trace of an entry; None where there is none that holds."""
    import msgspec

    types, hints = {"seal": dict[str, Any], "arrays": list[bytes]}, get_type_hints(RankTrace)
    others = msgspec.defstruct("Others", [(name, hints[name]) for name in _OTHERS])
    try:
        stored = entry.read_bytes()
        content = memoryview(stored)[DIGEST_BYTES:]
        if stored[:DIGEST_BYTES] != _digest(content):
            return None
        kind = msgspec.defstruct("Entry", [*types.items(), ("others", others)])
        found: Any = msgspec.msgpack.decode(content, type=kind)
        if found.seal != seal:
            return None
        arrays: dict[str, Any] = {
            name: np.frombuffer(column, dtype="<i8") for name, column in zip(ARRAYS, found.arrays, strict=True)
        }
        os.utime(entry)
        return RankTrace(path=path, **arrays, **msgspec.structs.asdict(found.others))
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):  # a damaged entry
        return None


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _prune(where: Path) -> None:
    entries = sorted(((e.stat().st_mtime, e.stat().st_size, e) for e in where.iterdir()), reverse=True)
    total = 0
    for _, size, entry in entries:
        total += size
        if total > LARGEST_BYTES:
            entry.unlink(missing_ok=True)
