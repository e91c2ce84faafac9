"""The pipeline recurrence: an action starts when its rank is free and its input is there.

Orders come from ``timeline.schedules``; durations are columns over plans. Actions that do not depend on each other
stand in one wavefront and are computed together, so a batch of plans costs one walk over the wavefronts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from knee.specs.plan import SCHEDULES, Schedule
from knee.timeline.schedules import orders

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# rows of a rank's chunk in the table of durations
KINDS = ("F_first", "F", "B", "B_last", "W", "W_last")
_ROW = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wavefront:
    """Actions that can be computed together, as indices into the list of all actions."""

    action: Ints
    before: Ints
    """The action before it on its rank; for the first one ``size + rank``, the moment its rank is ready."""
    needs: Ints
    """The action whose output it needs; ``size + ranks`` where there is none: the start of the step."""
    duration: Ints
    """Its row in the table of durations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A schedule ready to be walked."""

    wavefronts: tuple[Wavefront, ...]
    rank_of: Ints
    kind_of: Ints
    chunk_of: Ints
    microbatch_of: Ints
    needs: Ints
    """The action whose output each one needs; beyond ``size`` where there is none."""
    receives: NDArray[np.bool_]
    """Whether that is on another rank, so that a transfer comes first."""
    size: int


def duration_row(rank: int, chunk: int, chunks: int, kind: int) -> int:
    """Where a duration stands in the table handed to ``run``."""
    return (rank * chunks + chunk) * len(KINDS) + kind


def folded_microbatches(schedule: Ints, ranks: Ints, microbatches: Ints) -> Ints:
    """Microbatches to walk; those beyond repeat the schedule's cycle.

    An order is periodic once the pipeline is full: two fills of it are walked. GPipe's two halves repeat from the
    second microbatch on. Interleaved orders run in groups of ranks, so they are folded by whole groups.
    """
    base = np.where(schedule == SCHEDULES.index("gpipe"), 2, 2 * ranks)
    return np.minimum(microbatches, base)


@lru_cache(maxsize=512)
def graph(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> Graph:
    """Number the actions, link each to what it waits for, and cut them into wavefronts."""
    per_rank = orders(schedule, ranks, chunks, microbatches)
    index: dict[tuple[str, int, int, int], int] = {}
    rank_of: list[int] = []
    kind_of: list[int] = []
    chunk_of: list[int] = []
    micro_of: list[int] = []
    for rank, actions in enumerate(per_rank):
        for kind, chunk, micro in actions:
            index[(kind, rank, chunk, micro)] = len(rank_of)
            rank_of.append(rank)
            kind_of.append(_kind(kind, micro, microbatches))
            chunk_of.append(chunk)
            micro_of.append(micro)
    size = len(rank_of)
    before = np.zeros(size, dtype=np.int64)
    needs = np.full(size, size + ranks)
    receives = np.zeros(size, dtype=np.bool_)
    for rank, actions in enumerate(per_rank):
        previous = size + rank
        for kind, chunk, micro in actions:
            here = index[(kind, rank, chunk, micro)]
            before[here], previous = previous, here
            source = _source(kind, rank, chunk, ranks, chunks)
            if source is not None:
                from_kind, from_rank, from_chunk = source
                needs[here] = index[(from_kind, from_rank, from_chunk, micro)]
                receives[here] = from_rank != rank
    columns = [np.array(c, dtype=np.int64) for c in (rank_of, kind_of, chunk_of, micro_of)]
    rows = (columns[0] * chunks + columns[2]) * len(KINDS) + columns[1]
    return Graph(
        wavefronts=_wavefronts(before, needs, rows, ranks),
        rank_of=columns[0],
        kind_of=columns[1],
        chunk_of=columns[2],
        microbatch_of=columns[3],
        needs=needs,
        receives=receives,
        size=size,
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


def _wavefronts(before: Ints, needs: Ints, rows: Ints, ranks: int) -> tuple[Wavefront, ...]:
    """Longest-path levels by sweeping until every action has one."""
    size = len(before)
    level = np.full(size + ranks + 1, -1)
    level[size:] = 0
    todo = np.arange(size)
    while len(todo):
        ready = (level[before[todo]] >= 0) & (level[needs[todo]] >= 0)
        if not ready.any():
            raise AssertionError("the schedule deadlocks")  # an order that cannot run is a bug here, not an input
        now = todo[ready]
        level[now] = np.maximum(level[before[now]], level[needs[now]]) + 1
        todo = todo[~ready]
    fronts = []
    for step in range(1, int(level[:size].max()) + 1):
        at = np.flatnonzero(level[:size] == step)
        fronts.append(Wavefront(action=at, before=before[at], needs=needs[at], duration=rows[at]))
    return tuple(fronts)


def run(g: Graph, durations: Floats, drains: Floats, ready: Floats) -> Floats:
    """End of every action, a column per plan.

    ``durations`` has a row for each rank, chunk and kind (see ``duration_row``), transfers included. ``drains`` is the
    part of each at whose start its output is on its way already. ``ready`` is when each rank can start.
    """
    ends = np.concatenate([np.zeros((g.size, durations.shape[1])), ready, np.zeros((1, durations.shape[1]))])
    sent = ends.copy()
    for front in g.wavefronts:
        start = np.maximum(ends[front.before], sent[front.needs])
        end = start + durations[front.duration]
        ends[front.action] = end
        sent[front.action] = end - drains[front.duration]
    return ends[: g.size]
