"""The actions of a schedule as columns: which one each of them waits for, and which can be computed together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Ints
from knee.specs.schedules import KINDS, B, F, PipelineSchedule


class ScheduledActions(NamedTuple):
    """All actions, rank after rank, each rank's in its order."""

    kind: Ints
    rank: Ints
    chunk: Ints
    micro: Ints
    late: Ints
    number: Ints
    """Of the action (kind, rank, chunk, microbatch)."""


def scheduled_actions(schedule: PipelineSchedule, ranks: int, chunks: int, microbatches: int) -> ScheduledActions:
    per_rank = schedule.orders(ranks, chunks, microbatches)
    kind, chunk, micro, late = (np.concatenate(columns) for columns in zip(*per_rank, strict=True))
    rank = np.repeat(np.arange(ranks), [len(order.kind) for order in per_rank])
    number = np.full((len(KINDS), ranks, chunks, microbatches), -1)
    number[kind, rank, chunk, micro] = np.arange(len(kind))
    return ScheduledActions(kind, rank, chunk, micro, late, number)


def one_way_links(a: ScheduledActions, ranks: int, chunks: int) -> tuple[Ints, Ints]:
    """For each action, the one before it on its rank and the one whose output it needs.

    Chunks run rank by rank, then on to the next chunk of rank 0; backward goes the other way, and begins where forward
    ended. The backward of weights needs nothing from others.
    """
    size = len(a.rank)
    before, needs = _before(a), np.full(size, size + ranks)

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


def two_way_links(a: ScheduledActions, ranks: int) -> tuple[Ints, Ints]:
    """The same where chunk 0 goes from the first rank to the last and chunk 1 back."""
    before, needs = _before(a), np.full(len(a.rank), len(a.rank) + ranks)
    ends = np.where(a.chunk == 0, ranks - 1, 0)
    # of the action before on the way forward, and of the one before on the way back
    step = np.where(a.chunk == 0, 1, -1)
    for kind, away, at_end in ((F, -step, a.rank == ranks - 1 - ends), (B, step, a.rank == ends)):
        rows = (a.kind == kind) & ~at_end
        found = a.number[kind, (a.rank + away)[rows], a.chunk[rows], a.micro[rows]]
        # outputs of some leave with those of actions behind them
        needs[rows] = found + a.late[found]
        if kind == B:
            turns = (a.kind == B) & at_end
            needs[turns] = a.number[F, a.rank[turns], a.chunk[turns], a.micro[turns]]
    return before, needs


def _before(a: ScheduledActions) -> Ints:
    """The action before each one on its rank; beyond the last for those that start a rank."""
    size = len(a.rank)
    before = np.arange(-1, size - 1)
    starts = np.flatnonzero(np.diff(a.rank, prepend=-1))
    before[starts] = size + a.rank[starts]
    return before


def wavefronts_of(before: Ints, needs: Ints) -> list[Ints]:
    """The wavefronts: each rank's next action stands in the first one after that of the action whose output it
    needs."""
    size = len(before)
    none = int(needs.max(initial=size)) + 1  # what follows a rank's last action, and is never there
    heads = np.flatnonzero(before >= size)
    needs, following = np.append(needs, np.full(none + 1 - size, none)), np.arange(1, none + 2)
    following[np.append(heads[1:], size) - 1] = none
    is_done = np.zeros(none + 1, dtype=np.bool_)
    is_done[size:none] = True
    fronts, left = [], size
    while left:
        goes = is_done[needs[heads]]
        front = heads[goes]
        if not len(front):
            raise AssertionError("the schedule deadlocks")  # an order that cannot run is a bug here, not an input
        fronts.append(front)
        is_done[front] = True
        heads[goes] = following[front]
        left -= len(front)
    return fronts
