"""The pipeline recurrence: an action starts when its rank is free and its input is there.

Orders come from ``specs.schedules``; durations are columns over plans. Actions that do not depend on each
other stand in one wavefront and are computed together, so a batch of plans costs one walk over the wavefronts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Floats, Ints
from knee.specs.schedules import ACTION_KINDS, B, F, PipelineSchedule


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
    number = np.full((len(ACTION_KINDS), ranks, chunks, microbatches), -1)
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


# rows of a rank's chunk in the table of durations
KINDS = ("F_first", "F", "B", "B_last", "W", "W_last", "F_fill", "B_late")
_ROW = {name: i for i, name in enumerate(KINDS)}


class Wavefront(NamedTuple):
    """Actions that can be computed together: a stretch of the list of all actions."""

    start: int
    stop: int
    slots: slice
    """Where their ends are kept until they have been used: side by side."""
    before: Ints | slice
    """Slots of the actions before them on their ranks."""
    needs: Ints | slice | None
    """Slots of the actions whose outputs they need; None where they wait for their ranks alone."""


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
    row: Ints
    """Row of each action in the table of durations."""
    sender: Ints
    """The action whose output each one waits for; any one where it waits for its rank alone."""
    repeats: tuple[Repeat, ...]
    """Actions late enough that their distances are the cycle if the pipeline has settled: places in ``watched``."""
    watched: Ints
    """Actions whose outputs ``run`` returns."""
    slot: Ints
    """Where the end of each action is kept."""
    last: Ints
    """Slot of each rank's last action."""
    slots: int
    """Ends that are kept at once; the first ones stand for the ranks' starts."""
    before: Ints
    """Slot of the action before each one on its rank."""
    needed: Ints
    """Slot of the action that each one waits for: one of another rank, or the one before it."""
    size: int


def duration_row(rank: int, chunk: int, chunks: int, kind: int) -> int:
    """Where a duration stands in the table handed to ``run``."""
    return (rank * chunks + chunk) * len(KINDS) + kind


def first_walk(schedule: PipelineSchedule, ranks: int, microbatches: int) -> int:
    """Microbatches to walk before asking whether the rest can be counted: two fills, in whole periods."""
    return min(microbatches, 2 * ranks + schedule.period(ranks))


@lru_cache(maxsize=512)
def graph(schedule: PipelineSchedule, ranks: int, chunks: int, microbatches: int) -> Graph:
    """Number the actions, link each to what it waits for, and cut them into wavefronts."""
    a = scheduled_actions(schedule, ranks, chunks, microbatches)
    size = len(a.rank)
    before, needs = one_way_links(a, ranks, chunks) if schedule.directions == 1 else two_way_links(a, ranks)
    fronts = wavefronts_of(before, needs)
    order = np.concatenate(fronts)
    edges = [0, *np.cumsum([len(front) for front in fronts]).tolist()]
    place = np.arange(size + ranks + 1)
    place[order] = np.arange(size)
    rank_of, chunk_of = a.rank[order], a.chunk[order]
    ends = np.where(a.kind == F, a.micro == 0, a.micro == microbatches - 1)
    between = ROWS_BETWEEN[a.kind]
    if schedule.virtual:
        # beside the first and last group of microbatches run the gathers and reductions of the chunk above
        near = np.where(a.kind == F, a.micro < ranks, a.micro >= microbatches - ranks) & (a.chunk < chunks - 1)
        between = np.where(near, ROWS_IN_END_GROUPS[a.kind], between)
    kind_of = np.where(ends, ROWS_AT_ENDS[a.kind], between)[order]
    before, needs = place[before[order]], place[needs[order]]
    rows = (rank_of * chunks + chunk_of) * len(KINDS) + kind_of
    repeats = [Repeat(*place[list(r)].tolist()) for r in _repeats(schedule, ranks, microbatches, a.number)]
    # an output of the same rank is there before the rank is free: only what others send is waited for
    waits = (needs < size) & (np.append(rank_of, np.full(ranks + 1, -1))[needs] != rank_of)
    needed = np.where(waits, needs, before)
    last = place[np.flatnonzero(np.diff(a.rank, append=ranks))]
    watched = sorted({action for repeat in repeats for action in repeat})
    slot, slots = _slots(before, needed, edges, ranks, keep=[*last.tolist(), *watched])
    return Graph(
        wavefronts=_wavefronts(slot, before, needed, waits, edges),
        rank_of=rank_of,
        kind_of=kind_of,
        chunk_of=chunk_of,
        needs=needs,
        receives=waits,
        row=rows,
        sender=np.minimum(needed, size - 1),
        repeats=tuple(Repeat(*map(watched.index, repeat)) for repeat in repeats),
        watched=np.array(watched, dtype=np.int64),
        slot=slot[:size],
        last=slot[last],
        slots=slots,
        before=slot[before],
        needed=slot[needed],
        size=size,
    )


def _wavefronts(
    slot: Ints, before: Ints, needed: Ints, waits: NDArray[np.bool_], edges: list[int]
) -> tuple[Wavefront, ...]:
    own = slot[edges[:-1]].tolist()
    is_waiting = np.logical_or.reduceat(waits, edges[:-1]).tolist()
    befores, needs = _pieces(slot[before], edges), _pieces(slot[needed], edges)
    return tuple(
        Wavefront(i, j, slice(at, at + j - i), befores[k], needs[k] if is_waiting[k] else None)
        for k, (at, (i, j)) in enumerate(zip(own, pairwise(edges), strict=True))
    )


def _pieces(rows: Ints, edges: list[int]) -> list[Ints | slice]:
    """Rows cut at the edges; a piece at equal distances is a slice, which needs no copy."""
    starts = np.array(edges[:-1])
    lengths = np.diff(edges)
    apart = np.append(np.diff(rows), 1)
    step = np.where(lengths > 1, apart[starts], 1)
    uneven = apart != np.repeat(step, lengths)
    uneven[starts + lengths - 1] = False
    step[np.logical_or.reduceat(uneven, starts) | (step < 0)] = 0
    ends = zip(rows[starts].tolist(), rows[starts + lengths - 1].tolist(), step.tolist(), pairwise(edges), strict=True)
    return [slice(low, high + 1, by) if by else rows[i:j] for low, high, by, (i, j) in ends]


ROWS_AT_ENDS = np.array([_ROW["F_first"], _ROW["B_last"], _ROW["W_last"]])
"""Of the first microbatch's forward and the last one's backward, by kind."""
ROWS_BETWEEN = np.array([_ROW["F"], _ROW["B"], _ROW["W"]])
ROWS_IN_END_GROUPS = np.array([_ROW["F_fill"], _ROW["B_late"], _ROW["W"]])


def _slots(before: Ints, needs: Ints, edges: list[int], ranks: int, keep: list[int]) -> tuple[Ints, int]:
    """A place for each end, free again once its last user has run: few places stay in the cache. Those of a wavefront
    lie side by side, so that they are written where they stay; those of the ranks' starts come first."""
    size, fronts = len(before), len(edges) - 1
    front = np.repeat(np.arange(fronts), np.diff(edges))
    until = np.zeros(size + ranks + 1, dtype=np.int64)
    until[:size] = front
    np.maximum.at(until, before, front)
    np.maximum.at(until, needs, front)
    until[[*keep, size + ranks]] = fronts
    expires = np.argsort(until, kind="stable")
    ended = np.searchsorted(until[expires], np.arange(fronts + 1)).tolist()
    slot = np.zeros(size + ranks + 1, dtype=np.int64)
    slot[size : size + ranks] = np.arange(ranks)
    is_free = bytearray(size + ranks)
    places, slots = np.frombuffer(is_free, dtype=np.uint8), ranks
    for step, (i, j) in enumerate(pairwise(edges)):
        at = is_free.find(bytes([1]) * (j - i), 0, slots)
        if at < 0:
            at, slots = slots, slots + j - i
        places[at : at + j - i] = 0
        slot[i:j] = np.arange(at, at + j - i)
        # inputs are read while outputs are written: they keep their places until now
        places[slot[expires[ended[step] : ended[step + 1]]]] = 1
    return slot, slots


def _repeats(schedule: PipelineSchedule, ranks: int, microbatches: int, number: Ints) -> tuple[Repeat, ...]:
    """Backwards of the first rank before the drain, and of the last before its end: of two ranks that are nearly as
    busy, the later runs ahead for a while, and the end with it. GPipe's two halves settle apart, each at its end."""
    apart = schedule.period(ranks)
    late = microbatches - 1 if schedule.separate_halves else microbatches - ranks - 1
    if late - apart < 0:
        return ()
    # the last group of an interleaved order takes over reductions, and so is no cycle
    end = late if schedule.virtual else microbatches - 2
    seen = ((B, 0, late), (B, ranks - 1, end))
    if schedule.separate_halves:
        seen = ((F, ranks - 1, late), (B, 0, late))
    found = []
    for kind, rank, last in seen:
        back = 2 * apart if last >= 2 * apart else apart
        found.append(Repeat(*number[kind, rank, 0, [last, last - apart, last - back]].tolist()))
    return tuple(found)


WIDTH = 2048
"""Plans walked at once: the ends that are kept then stay in the cache."""


def run(
    g: Graph,
    durations: Floats,
    drains: Floats,
    ready: Floats,
    *,
    row_of: Ints | None = None,
    ends: Floats | None = None,
) -> tuple[Floats, Floats]:
    """When the outputs of ``g.watched`` left, and when each rank is done; a column per plan.

    ``durations`` has a row for each rank, chunk and kind (see ``duration_row``), transfers included; or fewer, and
    ``row_of`` says which row stands for each. ``drains`` is the part of each at whose start its output has left
    already. ``ready`` is when each rank can start. ``ends``, where it is given, is filled with the end of every action.
    """
    rows = g.row if row_of is None else row_of[g.row]
    width = durations.shape[1]
    if width == 1:
        return _run_one(g, rows, durations, drains, ready, ends)
    if width <= WIDTH:
        return _run_columns(g, rows, durations, drains, ready, ends)
    sent, done = np.empty((len(g.watched), width)), np.empty_like(ready)
    for start in range(0, width, WIDTH):
        some = slice(start, start + WIDTH)
        lasts, leaves, starts = (np.ascontiguousarray(x[:, some]) for x in (durations, drains, ready))
        own = None if ends is None else ends[:, some]
        sent[:, some], done[:, some] = _run_columns(g, rows, lasts, leaves, starts, own)
    return sent, done


def _run_columns(
    g: Graph, rows: Ints, durations: Floats, drains: Floats, ready: Floats, ends: Floats | None
) -> tuple[Floats, Floats]:
    """Wavefront after wavefront. This loop is most of a pipeline's cost: rows are taken into buffers, or not at all."""
    ranks, width = ready.shape
    kept = np.empty((g.slots, width))
    kept[:ranks] = ready
    is_drained = _fronts_after_drains(g, rows, drains)
    widest = max(front.stop - front.start for front in g.wavefronts)
    one, two = np.empty((widest, width)), np.empty((widest, width))
    for front, drained in zip(g.wavefronts, is_drained, strict=True):
        i, j, before, needs = front.start, front.stop, front.before, front.needs
        first, second = one[: j - i], two[: j - i]
        start = kept[before] if isinstance(before, slice) else kept.take(before, axis=0, out=first, mode="clip")
        if needs is not None:
            needed = kept[needs] if isinstance(needs, slice) else kept.take(needs, axis=0, out=second, mode="clip")
            if drained:
                needed = np.subtract(needed, drains[rows[g.sender[i:j]]], out=second)
            start = np.maximum(start, needed, out=first)
        end = np.add(start, durations.take(rows[i:j], axis=0, out=second, mode="clip"), out=kept[front.slots])
        if ends is not None:
            ends[i:j] = end
    return kept[g.slot[g.watched]] - drains[rows[g.watched]], kept[g.last]


def _fronts_after_drains(g: Graph, rows: Ints, drains: Floats) -> list[bool]:
    """Wavefronts with an action that needs an output which left before its action had drained."""
    drains_at_all = np.asarray(drains.any(axis=1), dtype=np.bool_)
    found = np.logical_or.reduceat(drains_at_all[rows][g.sender], [front.start for front in g.wavefronts])
    return [bool(one) for one in found]


def _run_one(
    g: Graph, rows: Ints, durations: Floats, drains: Floats, ready: Floats, ends: Floats | None
) -> tuple[Floats, Floats]:
    """The same for one plan, where NumPy's calls would cost more than the sums."""
    kept = [0.0] * g.slots
    kept[: len(ready)] = ready[:, 0].tolist()
    sent = kept.copy()
    lasts, leaves = durations[:, 0].tolist(), drains[:, 0].tolist()
    all_ends = []
    steps = zip(g.before.tolist(), g.needed.tolist(), g.slot.tolist(), rows.tolist(), strict=True)
    for before, needs, slot, row in steps:
        free, needed = kept[before], sent[needs]
        end = (free if free > needed else needed) + lasts[row]
        kept[slot] = end
        sent[slot] = end - leaves[row]
        all_ends.append(end)
    if ends is not None:
        ends[:, 0] = all_ends
    return np.array(sent)[g.slot[g.watched], None], np.array(kept)[g.last, None]
