"""Several ranks of one job: the same call on each, what of it was transfer and what was waiting, and for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.errors import InputError
from knee.measure.kineto.event_columns import Int64
from knee.measure.kineto.process_groups import MOST_RANKS
from knee.measure.traces.device_time import NS, Window
from knee.measure.traces.read_trace import Trace

Key = tuple[str, int, int, str, float, int]
"""(group, step, number within it, collective, bytes, and which of those that are equal so far)"""
UNEVEN = ("all_to_all", "gather", "scatter")
"""Collectives whose sizes differ by rank."""
HINT = "give the ranks of one job; `knee trace diff A B` compares two jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Of one rank's collectives that were seen on other ranks too: the shortest of a call is its transfer."""

    rank: int
    matched: int
    """Calls that were found on another rank."""
    unmatched: int
    """Calls that were not."""
    unnamed: int
    """Calls of groups whose ranks the trace does not tell: nothing says whose calls they are held against."""
    transfer_s: float
    waiting_s: float
    """What this rank's calls lasted beyond the shortest."""
    waited_for_s: float
    """What the others waited, on average, in calls that this rank entered last."""
    last_arrivals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossRanks:
    """What only several ranks together tell."""

    ranks: tuple[Waiting, ...]
    missing: tuple[int, ...]
    """Ranks of the groups seen that no trace was given of."""
    notes: tuple[str, ...]

    @property
    def straggler(self) -> Waiting | None:
        """The rank that the others waited for most; None where nobody waited."""
        most = max(self.ranks, key=lambda rank: rank.waited_for_s, default=None)
        return most if most is not None and most.waited_for_s > 0 else None


def check_one_job(traces: Sequence[Trace]) -> None:
    """Refuse ranks of different jobs."""
    by_rank: dict[int, Trace] = {}
    for trace in traces:
        c = trace.columns
        if c.rank in by_rank:
            raise _several_jobs("rank", f"rank {c.rank} is both in {by_rank[c.rank].columns.path} and in {c.path}")
        by_rank[c.rank] = trace
    columns = [trace.columns for trace in traces]
    sizes, worlds = ({c.path: c.world_size for c in columns}, {c.path: _world(c.info) for c in columns})
    _same("world_size", sizes, "{a} belongs to a job with {one} ranks, but {b} to a job with {two} ranks")
    _same("ranks", worlds, "{a} belongs to a job with ranks {one}, but {b} to a job with ranks {two}")
    if len({c.is_host for c in columns}) > 1:
        raise _several_jobs("device", "some traces are from GPUs and some from CPUs")
    _same("device", {c.path: c.device_name for c in columns}, "{a} is from {one}, but {b} from {two}")
    steps = [{step.number for step in t.steps} for t in traces if t.steps]
    if len(steps) > 1 and not set.intersection(*steps):
        raise _several_jobs("steps", "the traces have no profiler step in common")
    if 0 < len(steps) < len(traces) and not _share_time(traces):
        text = "some traces have profiler steps and some have none, and they have no time in common"
        raise _several_jobs("time", text)


def _several_jobs(field: str, text: str) -> InputError:
    return InputError(text, hint=HINT, code="several-jobs", field=field)


def _same(field: str, values: dict[Path, Any], sentence: str) -> None:
    """Refuse files that say different things, each of those that say anything."""
    found = {value: path for path, value in reversed(values.items()) if value is not None}
    if len(found) > 1:
        (one, a), (two, b) = list(found.items())[-1], list(found.items())[-2]
        raise _several_jobs(field, sentence.format(a=a, one=one, b=b, two=two))


def _world(info: Mapping[str, Any]) -> str | None:
    """The ranks of torch's default group, in words; None where the trace does not list them."""
    entries = info.get("pg_config")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("pg_desc") == "default_pg" and isinstance(entry.get("ranks"), list):
            ranks = [str(rank) for rank in entry["ranks"]]
            return ", ".join(ranks) if len(ranks) < 9 else f"{', '.join(ranks[:3])} ... {ranks[-1]} ({len(ranks)})"
    return None


def _share_time(traces: Sequence[Trace]) -> bool:
    """Whether the ranks' clocks have a moment in common."""
    begun = [t.columns.first_ns for t in traces]
    ended = [t.columns.first_ns + int(t.columns.end_ns.max()) for t in traces]
    return max(begun) <= min(ended)


def across_ranks(traces: Sequence[Trace], windows: Sequence[Window]) -> AcrossRanks:
    """Match the calls of all ranks."""
    rows, unnamed = zip(*map(_comparable, traces, windows), strict=True)
    count = len(traces)
    seen: dict[Key, list[tuple[int, int]]] = {}
    for number in range(count if count > 1 else 0):
        for key, lasted in _calls(traces[number], rows[number]).items():
            seen.setdefault(key, []).append((number, lasted))
    matched, transfer, waiting, waited_for, last = (np.zeros(count, dtype=np.int64) for _ in range(5))
    for entries in seen.values():
        if len(entries) < 2:
            continue
        shortest = min(lasted for _, lasted in entries)
        slowest = next(number for number, lasted in entries if lasted == shortest)
        for number, lasted in entries:
            matched[number] += 1
            transfer[number] += shortest
            waiting[number] += lasted - shortest
        excess = sum(lasted - shortest for _, lasted in entries)
        if excess:
            last[slowest] += 1
            waited_for[slowest] += excess // (len(entries) - 1)
    ranks = tuple(
        Waiting(
            rank=trace.columns.rank,
            matched=int(matched[i]),
            unmatched=len(rows[i]) - int(matched[i]),
            unnamed=unnamed[i],
            transfer_s=int(transfer[i]) / NS,
            waiting_s=int(waiting[i]) / NS,
            waited_for_s=int(waited_for[i]) / NS,
            last_arrivals=int(last[i]),
        )
        for i, trace in enumerate(traces)
    )
    return AcrossRanks(ranks=ranks, missing=missing_ranks(traces), notes=_notes(traces, ranks))


def missing_ranks(traces: Sequence[Trace]) -> tuple[int, ...]:
    """Members of the groups that were used, or of the world, of whom there is no trace."""
    wanted = np.zeros(MOST_RANKS, dtype=np.bool_)
    for trace in traces:
        # by identity first: to compare groups takes as long as they have ranks
        named = {id(call.group): call.group for call in trace.calls.values() if call.group and call.ranks_known}
        for group in set(named.values()):
            if group.members:
                wanted[[rank for rank in group.members if rank < MOST_RANKS]] = True
            else:
                wanted[group.first_rank : group.first_rank + group.size * group.stride : group.stride] = True
        if trace.calls and not any(call.group for call in trace.calls.values()):
            wanted[: trace.columns.world_size or 0] = True
    wanted[[trace.columns.rank for trace in traces if trace.columns.rank < MOST_RANKS]] = False
    return tuple(np.flatnonzero(wanted).tolist())


def _comparable(trace: Trace, window: Window) -> tuple[Int64, int]:
    """Rows of the calls that other ranks may have too, and the number of calls of which nothing tells the ranks."""
    rows = np.array(sorted(trace.calls), dtype=np.int64)
    start = trace.columns.start_ns[rows]
    inside = rows[(window.start_ns <= start) & (start < window.end_ns)].tolist()
    calls = [(row, trace.calls[row]) for row in inside]
    # a send is between two ranks, each with its own
    shared = [(row, call) for row, call in calls if call.collective != "send_recv" or call.group is None]
    known = [row for row, call in shared if call.ranks_known]
    return np.array(known, dtype=np.int64), len(shared) - len(known)


def _calls(trace: Trace, rows: Int64) -> dict[Key, int]:
    """The calls in these rows, by what tells each from others -> how long it lasted."""
    c = trace.columns
    found: dict[Key, int] = {}
    counts: dict[tuple[str, int], int] = {}
    equal: dict[tuple[str, int, int, str, float], int] = {}
    start = c.start_ns[rows]
    step_of = np.searchsorted(trace.border_ns[:-1], start, side="right") - 1 if trace.steps else np.full(len(rows), -1)
    columns = rows, c.end_ns[rows] - start, c.stream[rows], step_of
    # Python's own numbers: NumPy's are slow one by one
    for row, lasted, stream, which in zip(*(column.tolist() for column in columns), strict=True):
        call = trace.calls[row]
        step = trace.steps[which].number if which >= 0 else -1
        # without the group's name calls are told apart by stream: each group has its own
        group = call.key or f"stream {stream}"
        number = counts[group, step] = counts.get((group, step), -1) + 1
        size = 0.0 if call.collective in UNEVEN else call.message_bytes
        key = (group, step, call.seq if call.seq is not None else number, call.collective or "", size)
        # calls that are issued as one have one number: they are told apart by their order
        equal[key] = equal.get(key, -1) + 1
        found[*key, equal[key]] = lasted
    return found


def _notes(traces: Sequence[Trace], ranks: Sequence[Waiting]) -> tuple[str, ...]:
    if len(traces) < 2:
        return ()
    from knee.specs.notes import Note  # and with it all specs: most traces need none

    notes = []
    unmatched = sum(rank.unmatched for rank in ranks)
    if unmatched:
        text = f"{unmatched:,} collective calls were found on one rank only and do not count as waiting"
        notes.append(Note("calls-of-one-rank", text))
    unnamed = sum(rank.unnamed for rank in ranks)
    if unnamed:
        text = f"{unnamed:,} collective calls belong to groups whose ranks are not in the traces, so their waiting "
        notes.append(Note("ranks-not-told", text + "time is unknown"))
    if any(rank.matched for rank in ranks) and not any(call.group for t in traces for call in t.calls.values()):
        text = "the traces name no process groups, so calls are matched by stream and order"
        notes.append(Note("groups-not-named", text))
    if not _share_time(traces):
        text = "the clocks of the ranks do not overlap, so only durations are compared"
        notes.append(Note("clocks-differ", text))
    numbers = {tuple(step.number for step in t.steps): t.columns.rank for t in traces}
    if len(numbers) > 1:
        (one, a), (two, b) = list(numbers.items())[:2]
        text = f"ranks have different steps (rank {a} has {_some(one)}, rank {b} has {_some(two)}); --skip "
        notes.append(Note("steps-differ", text + "and --steps count only the steps that all ranks have"))
    return tuple(notes)


def _some(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers]
    return ", ".join(shown if len(shown) < 7 else [*shown[:3], "...", shown[-1]]) or "none"
