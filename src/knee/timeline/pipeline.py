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

from knee.columns import Floats, Ints
from knee.specs.plan import Schedule
from knee.timeline.schedules import orders

# rows of a rank's chunk in the table of durations
KINDS = ("F_first", "F", "B", "B_last", "W", "W_last")
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
    per_rank = orders(schedule, ranks, chunks, microbatches)
    actions = [(kind, rank, chunk, micro) for rank, order in enumerate(per_rank) for kind, chunk, micro in order]
    index = {action: i for i, action in enumerate(actions)}
    size = len(actions)
    before, needs = _links(actions, index, ranks, chunks)
    level = _levels(before, needs, size)
    order = np.argsort(level, kind="stable")
    place = np.concatenate([np.argsort(order, kind="stable"), np.arange(size, size + ranks + 1)])
    rank_of = np.array([rank for _, rank, _, _ in actions], dtype=np.int64)[order]
    kind_of = np.array([_kind(kind, micro, microbatches) for kind, _, _, micro in actions], dtype=np.int64)[order]
    chunk_of = np.array([chunk for _, _, chunk, _ in actions], dtype=np.int64)[order]
    needs = place[needs[order]]
    rows = (rank_of * chunks + chunk_of) * len(KINDS) + kind_of
    edges = [0, *(np.flatnonzero(np.diff(level[order])) + 1).tolist(), size]
    repeats = [Repeat(*place[list(r)].tolist()) for r in _repeats(schedule, ranks, microbatches, index)]
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


def _slots(needs: Ints, edges: list[int], keep: set[int]) -> tuple[Ints, int]:
    """A place for each output, free again once its last user has run: few places stay in the cache."""
    size = len(needs)
    last_use = np.full(size, -1)
    for step, (i, j) in enumerate(pairwise(edges)):
        used = needs[i:j]
        last_use[used[used < size]] = step
    slot = np.zeros(int(needs.max(initial=size)) + 1, dtype=np.int64)
    free: list[int] = []
    expiring: dict[int, list[int]] = {}
    slots = 0
    for step, (i, j) in enumerate(pairwise(edges)):
        for action in range(i, j):
            if not free:
                free.append(slots)
                slots += 1
            slot[action] = free.pop()
            if action not in keep:
                expiring.setdefault(max(int(last_use[action]), step), []).append(int(slot[action]))
        free += expiring.pop(step, [])
    slot[size:] = slots
    return slot, slots


Step = tuple[str, int, int, int]
"""(kind, rank, chunk, microbatch)"""


def _links(actions: list[Step], index: dict[Step, int], ranks: int, chunks: int) -> tuple[Ints, Ints]:
    """For each action, the one before it on its rank and the one whose output it needs."""
    size = len(actions)
    before = np.arange(-1, size - 1)
    needs = np.full(size, size + ranks)
    for here, (kind, rank, chunk, micro) in enumerate(actions):
        if here == 0 or actions[here - 1][1] != rank:
            before[here] = size + rank
        source = _source(kind, rank, chunk, ranks, chunks)
        if source is not None:
            needs[here] = index[(*source, micro)]
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


def _repeats(schedule: Schedule, ranks: int, microbatches: int, index: dict[Step, int]) -> tuple[Repeat, ...]:
    """Backwards of rank 0 before the drain; GPipe's two halves settle apart, each at its end."""
    apart = period(schedule, ranks)
    late = microbatches - 1 if schedule == "gpipe" else microbatches - ranks - 1
    if late - apart < 0:
        return ()
    kinds = (("F", ranks - 1), ("B", 0)) if schedule == "gpipe" else (("B", 0),)
    back = 2 * apart if late >= 2 * apart else apart
    return tuple(
        Repeat(now=index[(k, r, 0, late)], before=index[(k, r, 0, late - apart)], earlier=index[(k, r, 0, late - back)])
        for k, r in kinds
    )


def _kind(kind: str, micro: int, microbatches: int) -> int:
    if kind == "F":
        return _ROW["F_first"] if micro == 0 else _ROW["F"]
    return _ROW[f"{kind}_last"] if micro == microbatches - 1 else _ROW[kind]


def _source(kind: str, rank: int, chunk: int, ranks: int, chunks: int) -> tuple[str, int, int] | None:
    """Where an action's input comes from: chunks run rank by rank, then on to the next chunk of rank 0."""
    if kind == "F":
        if rank > 0:
            return "F", rank - 1, chunk
        return ("F", ranks - 1, chunk - 1) if chunk > 0 else None
    if kind == "W":
        return None
    if rank < ranks - 1:
        return "B", rank + 1, chunk
    return ("B", 0, chunk + 1) if chunk < chunks - 1 else ("F", rank, chunk)


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
