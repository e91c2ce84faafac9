"""The pipeline recurrence: an action starts when its rank is free and its input is there.

Orders come from ``timeline.schedules``; durations are columns over plans. Actions that do not depend on each other
stand in one wavefront and are computed together, so a batch of plans costs one walk over the wavefronts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knee.arrays import Floats, Ints
from knee.specs.plan import Schedule
from knee.timeline.schedules import KINDS as ACTION_KINDS
from knee.timeline.schedules import B, F, orders

# rows of a rank's chunk in the table of durations
KINDS = ("F_first", "F", "B", "B_last", "W", "W_last", "F_fill", "B_late")
_ROW = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wavefront:
    """Actions that can be computed together: a stretch of the list of all actions."""

    start: int
    stop: int
    rank: Ints
    needs: Ints
    """Where the output that each needs is kept."""
    slot: Ints
    """Where its own output is kept until it has been used."""
    duration: Ints
    """Its row in the table of durations."""


class Repeat(NamedTuple):
    """The same action in three microbatches, a period apart each; a short walk has only two, the last one twice."""

    now: int
    before: int
    earlier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A schedule ready to be walked: actions numbered by wavefront."""

    wavefronts: tuple[Wavefront, ...]
    rank_of: Ints
    kind_of: Ints
    chunk_of: Ints
    needs: Ints
    """The action whose output each one needs; beyond ``size`` where there is none."""
    receives: NDArray[np.bool_]
    """Whether that is on another rank, so that a transfer comes first."""
    repeats: tuple[Repeat, ...]
    """Slots of actions late enough that their distances are the cycle if the pipeline has settled."""
    slots: int
    """Outputs that are kept at once; one more stands for the start of the step."""
    steps: tuple[tuple[int, int, int, int], ...]
    """(rank, slot needed, slot, row of duration) of every action: what one plan alone is walked by."""
    size: int


def duration_row(rank: int, chunk: int, chunks: int, kind: int) -> int:
    """Where a duration stands in the table handed to ``run``."""
    return (rank * chunks + chunk) * len(KINDS) + kind


def period(schedule: Schedule, ranks: int) -> int:
    """Microbatches after which an order repeats itself: interleaved orders run in groups of ranks."""
    return ranks if schedule == "interleaved" else 1


def first_walk(schedule: Schedule, ranks: int, microbatches: int) -> int:
    """Microbatches to walk before asking whether the rest can be counted: two fills, in whole periods."""
    return min(microbatches, 2 * ranks + period(schedule, ranks))


@lru_cache(maxsize=512)
def graph(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> Graph:
    """Number the actions, link each to what it waits for, and cut them into wavefronts."""
    a = _actions(schedule, ranks, chunks, microbatches)
    size = len(a.rank)
    before, needs = _links(a, ranks, chunks)
    level = _levels(before, needs, size)
    order = np.argsort(level, kind="stable")
    place = np.concatenate([np.argsort(order, kind="stable"), np.arange(size, size + ranks + 1)])
    rank_of, chunk_of = a.rank[order], a.chunk[order]
    ends = np.where(a.kind == F, a.micro == 0, a.micro == microbatches - 1)
    between = ROWS_BETWEEN[a.kind]
    if chunks > 1:
        # beside the first and last group of microbatches run the gathers and reductions of the chunk above
        near = np.where(a.kind == F, a.micro < ranks, a.micro >= microbatches - ranks) & (a.chunk < chunks - 1)
        between = np.where(near, ROWS_IN_END_GROUPS[a.kind], between)
    kind_of = np.where(ends, ROWS_AT_ENDS[a.kind], between)[order]
    needs = place[needs[order]]
    rows = (rank_of * chunks + chunk_of) * len(KINDS) + kind_of
    edges = [0, *(np.flatnonzero(np.diff(level[order])) + 1).tolist(), size]
    repeats = [Repeat(*place[list(r)].tolist()) for r in _repeats(schedule, ranks, microbatches, a.number)]
    slot, slots = _slots(needs, edges, keep={i for r in repeats for i in r})
    senders = np.append(rank_of, np.full(ranks + 1, -1))[needs]
    return Graph(
        wavefronts=tuple(
            Wavefront(start=i, stop=j, rank=rank_of[i:j], needs=slot[needs[i:j]], slot=slot[i:j], duration=rows[i:j])
            for i, j in pairwise(edges)
        ),
        rank_of=rank_of,
        kind_of=kind_of,
        chunk_of=chunk_of,
        needs=needs,
        receives=(needs < size) & (senders != rank_of),
        repeats=tuple(Repeat(*slot[list(r)].tolist()) for r in repeats),
        slots=slots,
        steps=tuple(zip(rank_of.tolist(), slot[needs].tolist(), slot[:size].tolist(), rows.tolist(), strict=True)),
        size=size,
    )


ROWS_AT_ENDS = np.array([_ROW["F_first"], _ROW["B_last"], _ROW["W_last"]])
"""Of the first microbatch's forward and the last one's backward, by kind."""
ROWS_BETWEEN = np.array([_ROW["F"], _ROW["B"], _ROW["W"]])
ROWS_IN_END_GROUPS = np.array([_ROW["F_fill"], _ROW["B_late"], _ROW["W"]])


class _Actions(NamedTuple):
    """All actions, rank after rank, each rank's in its order."""

    kind: Ints
    rank: Ints
    chunk: Ints
    micro: Ints
    number: Ints
    """Of the action (kind, rank, chunk, microbatch)."""


def _actions(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> _Actions:
    per_rank = orders(schedule, ranks, chunks, microbatches)
    kind, chunk, micro = (np.concatenate(columns) for columns in zip(*per_rank, strict=True))
    rank = np.repeat(np.arange(ranks), [len(order.kind) for order in per_rank])
    number = np.full((len(ACTION_KINDS), ranks, chunks, microbatches), -1)
    number[kind, rank, chunk, micro] = np.arange(len(kind))
    return _Actions(kind, rank, chunk, micro, number)


def _slots(needs: Ints, edges: list[int], keep: set[int]) -> tuple[Ints, int]:
    """A place for each output, free again once its last user has run: few places stay in the cache."""
    size, fronts = len(needs), len(edges) - 1
    front = np.repeat(np.arange(fronts), np.diff(edges))
    last = front.copy()
    used = needs < size
    np.maximum.at(last, needs[used], front[used])
    last[list(keep)] = fronts
    until = last.tolist()
    slot = np.zeros(int(needs.max(initial=size)) + 1, dtype=np.int64)
    free: list[int] = []
    expiring: list[list[int]] = [[] for _ in range(fronts + 1)]
    slots = 0
    for step, (i, j) in enumerate(pairwise(edges)):
        lacking = j - i - len(free)
        if lacking > 0:
            free += range(slots, slots + lacking)
            slots += lacking
        taken = free[i - j :]
        del free[i - j :]
        slot[i:j] = taken
        for place, end in zip(taken, until[i:j], strict=True):
            expiring[end].append(place)
        free += expiring[step]
    slot[size:] = slots
    return slot, slots


def _links(a: _Actions, ranks: int, chunks: int) -> tuple[Ints, Ints]:
    """For each action, the one before it on its rank and the one whose output it needs.

    Chunks run rank by rank, then on to the next chunk of rank 0; backward goes the other way, and begins where forward
    ended. The backward of weights needs nothing from others.
    """
    size = len(a.rank)
    before = np.arange(-1, size - 1)
    starts = np.flatnonzero(np.diff(a.rank, prepend=-1))
    before[starts] = size + a.rank[starts]
    needs = np.full(size, size + ranks)

    def link(rows: NDArray[np.bool_], kind: int, rank: Ints, chunk: Ints) -> None:
        needs[rows] = a.number[kind, rank[rows], chunk[rows], a.micro[rows]]

    forward, backward = a.kind == F, a.kind == B
    first, last = a.rank == 0, a.rank == ranks - 1
    link(forward & ~first, F, a.rank - 1, a.chunk)
    link(forward & first & (a.chunk > 0), F, a.rank * 0 + ranks - 1, a.chunk - 1)
    link(backward & ~last, B, a.rank + 1, a.chunk)
    link(backward & last & (a.chunk < chunks - 1), B, a.rank * 0, a.chunk + 1)
    link(backward & last & (a.chunk == chunks - 1), F, a.rank, a.chunk)
    return before, needs


def _levels(before: Ints, needs: Ints, size: int) -> Ints:
    """Longest-path level of each action. Ranks work in order, so that only the next action of each is ever asked."""
    level = np.full(int(needs.max(initial=size)) + 1, -1)
    level[size:] = 0
    heads = np.flatnonzero(before >= size)
    ends = np.append(heads[1:], size)
    while len(heads):
        ready = level[needs[heads]] >= 0
        if not ready.any():
            raise AssertionError("the schedule deadlocks")  # an order that cannot run is a bug here, not an input
        now = heads[ready]
        level[now] = np.maximum(level[before[now]], level[needs[now]]) + 1
        heads = heads + ready
        left = heads < ends
        heads, ends = heads[left], ends[left]
    return level[:size]


def _repeats(schedule: Schedule, ranks: int, microbatches: int, number: Ints) -> tuple[Repeat, ...]:
    """Backwards of the first rank before the drain, and of the last before its end: of two ranks that are nearly as
    busy, the later runs ahead for a while, and the end with it. GPipe's two halves settle apart, each at its end."""
    apart = period(schedule, ranks)
    late = microbatches - 1 if schedule == "gpipe" else microbatches - ranks - 1
    if late - apart < 0:
        return ()
    # the last group of an interleaved order takes over reductions, and so is no cycle
    end = late if schedule == "interleaved" else microbatches - 2
    seen = ((B, 0, late), (B, ranks - 1, end))
    if schedule == "gpipe":
        seen = ((F, ranks - 1, late), (B, 0, late))
    found = []
    for kind, rank, last in seen:
        back = 2 * apart if last >= 2 * apart else apart
        found.append(Repeat(*number[kind, rank, 0, [last, last - apart, last - back]].tolist()))
    return tuple(found)


def run(
    g: Graph, durations: Floats, drains: Floats, ready: Floats, ends: Floats | None = None
) -> tuple[Floats, Floats]:
    """Outputs by slot (when each left) and when each rank is done; a column per plan.

    ``durations`` has a row for each rank, chunk and kind (see ``duration_row``), transfers included. ``drains`` is the
    part of each at whose start its output has left already. ``ready`` is when each rank can start. ``ends``, where it
    is given, is filled with the end of every action.
    """
    width = durations.shape[1]
    if width == 1:
        return _run_one(g, durations, drains, ready, ends)
    free = ready.copy()
    sent = np.zeros((g.slots + 1, width))
    draining = np.asarray(drains.any(axis=1))
    widest = max(front.stop - front.start for front in g.wavefronts)
    one, two = np.empty((widest, width)), np.empty((widest, width))
    for front in g.wavefronts:
        n = front.stop - front.start
        # np.take into a buffer is twice as quick as indexing, and this loop is most of a pipeline's cost
        end = np.take(free, front.rank, axis=0, out=one[:n], mode="clip")
        np.maximum(end, np.take(sent, front.needs, axis=0, out=two[:n], mode="clip"), out=end)
        end += np.take(durations, front.duration, axis=0, out=two[:n], mode="clip")
        free[front.rank] = end
        if ends is not None:
            ends[front.start : front.stop] = end
        if draining[front.duration].any():
            end -= drains[front.duration]
        sent[front.slot] = end
    return sent, free


def _run_one(g: Graph, durations: Floats, drains: Floats, ready: Floats, ends: Floats | None) -> tuple[Floats, Floats]:
    """The same for one plan, where NumPy's calls would cost more than the sums."""
    free, sent = ready[:, 0].tolist(), [0.0] * (g.slots + 1)
    lasts, leaves = durations[:, 0].tolist(), drains[:, 0].tolist()
    all_ends = []
    for rank, needs, slot, row in g.steps:
        before, needed = free[rank], sent[needs]
        end = (before if before > needed else needed) + lasts[row]
        free[rank] = end
        sent[slot] = end - leaves[row]
        all_ends.append(end)
    if ends is not None:
        ends[:, 0] = all_ends
    return np.array(sent)[:, None], np.array(free)[:, None]
