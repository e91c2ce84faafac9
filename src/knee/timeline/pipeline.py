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

from knee.specs.plan import Schedule
from knee.timeline.schedules import orders

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# rows of a rank's chunk in the table of durations
KINDS = ("F_first", "F", "B", "B_last", "W", "W_last")
_ROW = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wavefront:
    """Actions that can be computed together: a stretch of the list of all actions."""

    start: int
    stop: int
    before: Ints
    """The action before each on its rank; for a rank's first one ``size + rank``, the moment the rank is ready."""
    needs: Ints
    """The action whose output each needs; ``size + ranks`` where there is none: the start of the step."""
    duration: Ints
    """Its row in the table of durations."""


class Repeat(NamedTuple):
    """The same action in three microbatches, a period apart each."""

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
    """Late enough that their distances are equal if the pipeline has settled."""
    size: int


def duration_row(rank: int, chunk: int, chunks: int, kind: int) -> int:
    """Where a duration stands in the table handed to ``run``."""
    return (rank * chunks + chunk) * len(KINDS) + kind


def period(schedule: Schedule, ranks: int) -> int:
    """Microbatches after which an order repeats itself: interleaved orders run in groups of ranks."""
    return ranks if schedule == "interleaved" else 1


def first_walk(schedule: Schedule, ranks: int, microbatches: int, *, even: bool) -> int:
    """Microbatches to walk before asking whether the rest can be counted: two fills, in whole periods.

    Interleaved chunks of different sizes take longer to settle.
    """
    fills = 2 if even or schedule != "interleaved" else 3
    return min(microbatches, fills * ranks + period(schedule, ranks))


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
    before, needs = place[before[order]], place[needs[order]]
    rows = (rank_of * chunks + chunk_of) * len(KINDS) + kind_of
    edges = [0, *(np.flatnonzero(np.diff(level[order])) + 1).tolist(), size]
    senders = np.append(rank_of, np.full(ranks + 1, -1))[needs]
    return Graph(
        wavefronts=tuple(
            Wavefront(start=i, stop=j, before=before[i:j], needs=needs[i:j], duration=rows[i:j])
            for i, j in pairwise(edges)
        ),
        rank_of=rank_of,
        kind_of=kind_of,
        chunk_of=chunk_of,
        needs=needs,
        receives=(needs < size) & (senders != rank_of),
        repeats=tuple(Repeat(*place[list(r)].tolist()) for r in _repeats(schedule, ranks, microbatches, index)),
        size=size,
    )


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
    """Longest-path level of each action, by sweeping until every one has it."""
    level = np.full(int(needs.max(initial=size)) + 1, -1)
    level[size:] = 0
    todo = np.arange(size)
    while len(todo):
        ready = (level[before[todo]] >= 0) & (level[needs[todo]] >= 0)
        if not ready.any():
            raise AssertionError("the schedule deadlocks")  # an order that cannot run is a bug here, not an input
        now = todo[ready]
        level[now] = np.maximum(level[before[now]], level[needs[now]]) + 1
        todo = todo[~ready]
    return level[:size]


def _repeats(schedule: Schedule, ranks: int, microbatches: int, index: dict[Step, int]) -> tuple[Repeat, ...]:
    """Backwards of rank 0 before the drain; GPipe's two halves settle apart, each at its end."""
    apart = period(schedule, ranks)
    late = microbatches - 1 if schedule == "gpipe" else microbatches - ranks - 1
    if late - 2 * apart < 0:
        return ()
    kinds = (("F", ranks - 1), ("B", 0)) if schedule == "gpipe" else (("B", 0),)
    return tuple(Repeat(*(index[(kind, rank, 0, late - back * apart)] for back in (0, 1, 2))) for kind, rank in kinds)


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


def run(g: Graph, durations: Floats, drains: Floats, ready: Floats) -> tuple[Floats, Floats]:
    """When each action's output leaves, and when each ends; a column per plan.

    ``durations`` has a row for each rank, chunk and kind (see ``duration_row``), transfers included. ``drains`` is the
    part of each at whose start its output has left already. ``ready`` is when each rank can start.
    """
    width = durations.shape[1]
    ends = np.empty((g.size + len(ready) + 1, width))
    ends[g.size : -1], ends[-1] = ready, 0.0
    draining = np.asarray(drains.any(axis=1))
    sent = ends.copy() if draining.any() else ends
    widest = max(front.stop - front.start for front in g.wavefronts)
    one, two = np.empty((widest, width)), np.empty((widest, width))
    for front in g.wavefronts:
        n = front.stop - front.start
        # np.take into a buffer is twice as quick as indexing, and this loop is most of a pipeline's cost
        start = np.take(ends, front.before, axis=0, out=one[:n], mode="clip")
        np.maximum(start, np.take(sent, front.needs, axis=0, out=two[:n], mode="clip"), out=start)
        end = np.add(start, np.take(durations, front.duration, axis=0, out=two[:n], mode="clip"), out=start)
        ends[front.start : front.stop] = end
        if sent is not ends:
            sent[front.start : front.stop] = end
            if draining[front.duration].any():
                sent[front.start : front.stop] -= drains[front.duration]
    return sent[: g.size], ends[: g.size]
