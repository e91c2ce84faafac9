"""Several ranks of one job: the same call on each, what of it was transfer and what was waiting, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knee.errors import InputError
from knee.trace.read import Trace
from knee.trace.times import NS, Window

Key = tuple[str, int, int, str, float]
"""(group, step, number within it, collective, bytes)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Of one rank's collectives that were seen on other ranks too: the shortest of a call is its transfer."""

    rank: int
    matched: int
    """Calls that were found on another rank."""
    unmatched: int
    """Calls that were not."""
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
    hint = "give the ranks of one job; `knee trace diff A B` holds two jobs against each other"
    for trace in traces:
        c = trace.columns
        if c.rank in by_rank:
            raise InputError(f"rank {c.rank} is in {by_rank[c.rank].columns.path} and in {c.path}", hint=hint)
        by_rank[c.rank] = trace
    sizes = {t.columns.world_size: t.columns.path for t in traces if t.columns.world_size is not None}
    if len(sizes) > 1:
        (one, a), (two, b) = list(sizes.items())[:2]
        raise InputError(f"{a} is of a job of {one} ranks, and {b} of one of {two}", hint=hint)
    steps = [{step.number for step in t.steps} for t in traces if t.steps]
    if len(steps) > 1 and not set.intersection(*steps):
        raise InputError("the traces have no profiler step in common", hint=hint)
    if len({t.columns.is_host for t in traces}) > 1:
        raise InputError("some traces are of GPUs and some of processors", hint=hint)


def across_ranks(traces: Sequence[Trace], windows: Sequence[Window]) -> AcrossRanks:
    """Match the calls of all ranks."""
    seen: dict[Key, list[tuple[int, int]]] = {}
    calls = [_calls(trace, window) for trace, window in zip(traces, windows, strict=True)]
    for number, found in enumerate(calls):
        for key, lasted in found.items():
            seen.setdefault(key, []).append((number, lasted))
    count = len(traces)
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
            unmatched=len(calls[i]) - int(matched[i]),
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
    given = {trace.columns.rank for trace in traces}
    wanted = {rank for trace in traces for call in trace.calls.values() if call.group for rank in call.group.ranks}
    for trace in traces:
        if not any(call.group for call in trace.calls.values()) and trace.calls:
            wanted |= set(range(min(trace.columns.world_size or 0, 1 << 20)))
    return tuple(sorted(wanted - given))


def _calls(trace: Trace, window: Window) -> dict[Key, int]:
    """Every call that other ranks may have too, by what tells it from others -> how long it lasted."""
    c = trace.columns
    found: dict[Key, int] = {}
    counts: dict[tuple[str, int], int] = {}
    steps = np.searchsorted(trace.border_ns[:-1], c.start_ns, side="right") - 1 if trace.steps else None
    for row in sorted(trace.calls):
        call = trace.calls[row]
        if not window.start_ns <= c.start_ns[row] < window.end_ns:
            continue
        if call.collective == "send_recv" and call.group is not None:
            continue  # between two ranks, each with its own
        step = trace.steps[int(steps[row])].number if steps is not None and steps[row] >= 0 else -1
        # without the group's name calls are told apart by stream: each group has its own
        group = call.key or f"stream {c.stream[row]}"
        number = counts[group, step] = counts.get((group, step), -1) + 1
        key = (group, step, call.seq if call.seq is not None else number, call.collective or "", call.message_bytes)
        found[key] = int(c.end_ns[row] - c.start_ns[row])
    return found


def _notes(traces: Sequence[Trace], ranks: Sequence[Waiting]) -> tuple[str, ...]:
    notes = []
    unmatched = sum(rank.unmatched for rank in ranks)
    if len(traces) > 1 and unmatched:
        notes.append(f"{unmatched:,} collective calls were found on one rank only, and are in no waiting")
    begun = [t.columns.first_ns for t in traces]
    ended = [t.columns.first_ns + int(t.columns.end_ns.max()) for t in traces]
    if len(traces) > 1 and max(begun) > min(ended):
        notes.append("the ranks' clocks have no time in common; only durations are compared")
    return tuple(notes)
