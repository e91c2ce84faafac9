"""How long pipelines take: plans that are cut alike are walked together, and microbatches that repeat are counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Bools, Floats, Ints, distinct, equal_rows, fingerprint
from knee.engine.timeline.pipelines import recurrence as pipeline
from knee.engine.timeline.pipelines.chunks import first_chunks, rank_chunks
from knee.engine.timeline.step_actions import Actions
from knee.engine.timeline.step_parts import StepParts
from knee.specs.schedules import PIPELINE_SCHEDULES, PipelineSchedule


def transfers(parts: StepParts) -> Floats:
    """Time a rank waits for an input from its neighbour, every time; the rest hides beside the chunk's layers."""
    return (1.0 - parts.profile.p2p_overlap_frac) * parts.comm.pp_send


def fill_spans(parts: StepParts, a: Actions, span: Floats, fold: bool) -> None:
    """Fill in the span of plans with a pipeline, grouped by the shape of their schedule."""
    table = parts.table
    piped = np.flatnonzero(table.pp > 1)
    if not len(piped):
        return
    key = table.schedule[piped] * len(a.cuts.ways) + a.cuts.of_plan[piped]
    # plans that are walked whole share a walk only with their equals; the others are told apart by what is counted
    micro, wait = table.microbatches, transfers(parts)
    walked = np.minimum(micro[piped], 3 * table.pp[piped]) if fold else micro[piped]
    # rows with equal keys have the same durations
    row_key = fingerprint(a.filling_gather_s, *(w.kind for w in a.walked.values()))
    for plans in _groups(piped, key * 2**24 + walked):
        row_keys = [row_key[a.row_of[kind, plans]] for kind in np.flatnonzero(a.row_of[:, plans[0]] >= 0)]
        first, kind = equal_rows(micro[plans], wait[plans], a.late_gather_s[plans], *row_keys)
        few = plans[first]
        span[plans] = _spans(parts, a, few, micro[few], wait[few], fold)[kind]


def _groups(rows: Ints, key: Ints) -> list[Ints]:
    order = np.argsort(key, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(key[order])) + 1)


FOLD_ERROR = 3e-3
"""Folding is accepted when its two bounds lie this close, over the span; their middle is then within half of it."""


def _spans(parts: StepParts, a: Actions, plans: Ints, micro: Ints, wait_s: Floats, fold: bool) -> Floats:
    """Spans of plans cut alike: walk, and count the microbatches that only repeat.

    The span is convex in the number of microbatches: each one adds at least what the last one walked added, and at
    most the schedule's cycle. Where the two differ too much, more is walked.
    """
    table = parts.table
    schedule = PIPELINE_SCHEDULES[int(table.schedule[plans[0]])]
    p, v = int(table.pp[plans[0]]), schedule.chunks_per_rank(int(table.virtual_stages[plans[0]]))
    micro = micro // schedule.directions
    times = pipeline_times(parts, a, plans, wait_s)
    spans = np.empty(len(plans))
    open_ = np.arange(len(plans))
    walk = pipeline.first_walk(schedule, p, int(micro.max())) if fold else int(micro.max())
    while len(open_):
        whole = open_[micro[open_] <= walk]
        for count in distinct(micro[whole]):
            at = whole[micro[whole] == count]
            spans[at], _, _ = _walk_pipeline(schedule, p, v, int(count), times.rows(at))
        open_ = open_[micro[open_] > walk]
        if len(open_):
            spans[open_], good = _count_on(schedule, p, v, walk, micro[open_], times.rows(open_))
            open_ = open_[~good]
            walk = 2 * walk - walk % schedule.period(p)
    return spans


def _count_on(
    schedule: PipelineSchedule, ranks: int, chunks: int, walk: int, micro: Ints, times: PipelineTimes
) -> tuple[Floats, Bools]:
    """Spans from a walk of fewer microbatches, and which of them are good enough."""
    end, distance, before = _walk_pipeline(schedule, ranks, chunks, walk, times)
    beyond = micro - walk
    # a rank that is not the busiest may run ahead for a while: only the cycle itself counts, and it must be seen twice
    settled = np.maximum(np.abs(distance - times.cycle), np.abs(before - times.cycle)) <= 1e-9 * times.cycle
    spans = end + beyond * times.cycle
    rest = np.flatnonzero(~settled)
    if len(rest):
        some, step = times.rows(rest), schedule.period(ranks)
        shorter, _, _ = _walk_pipeline(schedule, ranks, chunks, walk - step, some)
        least = (end[rest] - shorter) / step
        low = end[rest] + beyond[rest] * least
        high = end[rest] + beyond[rest] * np.maximum(some.cycle, least)
        spans[rest] = 0.5 * (low + high)
        settled[rest] = high - low <= FOLD_ERROR * low
    return spans, settled


def _walk_pipeline(
    schedule: PipelineSchedule, ranks: int, chunks: int, microbatches: int, times: PipelineTimes
) -> tuple[Floats, Floats, Floats]:
    """When the last rank is done, and what a microbatch added late in the walk and a period before."""
    graph = pipeline.graph(schedule, ranks, chunks, microbatches)
    sent, done = pipeline.run(graph, times.durations, times.drains, times.ready, row_of=times.row_of)
    # GPipe's halves add up; of a schedule's ranks the one that runs ahead is the one to look at
    halves = schedule.separate_halves and bool(graph.repeats)
    add = np.add if halves else np.minimum
    late, early = (np.full(sent.shape[1], 0.0 if halves else np.inf) for _ in range(2))
    for repeat in graph.repeats:
        first, last = (repeat.earlier, repeat.before) if repeat.earlier != repeat.before else repeat[1::-1]
        late = add(late, (sent[repeat.now] - sent[repeat.before]) / schedule.period(ranks))
        early = add(early, (sent[last] - sent[first]) / schedule.period(ranks))
    return np.asarray(done.max(axis=0), dtype=np.float64), late, early


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """What ``pipeline.run`` needs of plans that are cut alike."""

    row_of: Ints
    """Row of each rank, chunk and kind of action (``pipeline.duration_row``): chunks of a kind share theirs."""
    durations: Floats
    drains: Floats
    ready: Floats
    cycle: Floats
    """What a microbatch adds once the pipeline has settled: the busiest rank's time."""

    def rows(self, index: Ints) -> PipelineTimes:
        """The times of the plans at these places."""
        if len(index) == len(self.cycle):
            return self
        # np.take keeps rows together; indexing would put columns first, and a walk over rows takes seven times as long
        return PipelineTimes(
            row_of=self.row_of,
            durations=np.take(self.durations, index, axis=1),
            drains=np.take(self.drains, index, axis=1),
            ready=np.take(self.ready, index, axis=1),
            cycle=self.cycle[index],
        )


def pipeline_times(parts: StepParts, a: Actions, plans: Ints, wait_s: Floats) -> PipelineTimes:
    """Durations of every rank, chunk and kind of action."""
    table = parts.table
    p, v = int(table.pp[plans[0]]), int(table.virtual_stages[plans[0]])
    layout = a.layout(int(plans[0]))
    schedule = PIPELINE_SCHEDULES[int(table.schedule[plans[0]])]
    names = [n for n in pipeline.KINDS if n in a.walked and (n[0] != "W" or schedule.splits_backward)]
    kinds = sorted(set(layout.kinds))
    per_kind = len(pipeline.KINDS)
    durations, drains = (np.zeros((len(kinds) * per_kind, len(plans))) for _ in range(2))
    rows = {kind: a.row_of[kind, plans] for kind in kinds}
    for i, kind in enumerate(kinds):
        has_embedding, has_head = kind == layout.kinds[0], kind == layout.kinds[-1]
        for name in names:
            row, w = i * per_kind + pipeline.KINDS.index(name), a.walked[name]
            at = w.kind[rows[kind]]
            durations[row] = w.sums.duration_s[at]
            if name in a.draining:
                drains[row] = w.sums.drain_s[at]
            if (name[0] == "F" and not has_embedding) or (name[0] == "B" and not has_head):
                durations[row] += wait_s
    held = rank_chunks(schedule, layout, p, v)
    own = [tuple(map(kinds.index, chunks)) for chunks in held]
    row_of = (np.array(own)[:, :, None] * per_kind + np.arange(per_kind)).ravel()
    ready = np.tile(a.late_gather_s[plans], (p, 1))
    for rank in range(p):
        for kind in first_chunks(schedule, held[rank]):
            ready[rank] += a.filling_gather_s[rows[kind]]
    return PipelineTimes(
        row_of=row_of, durations=durations, drains=drains, ready=ready, cycle=_cycle(schedule, own, durations)
    )


def _cycle(schedule: PipelineSchedule, own: list[tuple[int, ...]], durations: Floats) -> Floats:
    """What a microbatch adds once the pipeline has settled, ``own`` being the kinds of each rank's chunks."""
    of_kind = durations.reshape(-1, len(pipeline.KINDS), durations.shape[1])
    forward, back, weight = (of_kind[:, pipeline.KINDS.index(name)] for name in ("F", "B", "W"))

    def busiest(per_chunk: Floats) -> Floats:
        ranks = [per_chunk[list(chunks)].sum(axis=0) for chunks in set(own)]
        return np.asarray(np.max(ranks, axis=0), dtype=np.float64)

    # GPipe's two halves have a busiest rank each
    if schedule.separate_halves:
        return busiest(forward) + busiest(back + weight)
    return busiest(forward + back + weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedActions:
    """Columns, one row an action of plan 0."""

    rank: Ints
    kind: Ints
    """Index into ``recurrence.KINDS``."""
    row: Ints
    """Its row of ``Actions``."""
    start_s: Floats
    """With the wait for its input, where it has one."""
    receives: Bools
    """Whether it waits for a neighbour."""
    sender: Ints
    """The rank that it waits for; only of those that do."""
    wait_s: float
    """How long each of those waits."""
    end_s: float
    """When the last action has ended."""
    filled: tuple[tuple[int, ...], ...]
    """For each rank, the rows whose parameters are gathered before it starts (ZeRO-1)."""


def actions_in(parts: StepParts) -> int:
    """How many actions the pipeline of plan 0 has."""
    table = parts.table
    schedule = PIPELINE_SCHEDULES[int(table.schedule[0])]
    chunks = schedule.chunks_per_rank(int(table.virtual_stages[0]))
    return 2 * int(table.pp[0]) * chunks * int(table.microbatches[0])


def placed_actions(parts: StepParts, a: Actions) -> PlacedActions:
    """Every action where the recurrence puts it; nothing is folded."""
    table = parts.table
    schedule, p = PIPELINE_SCHEDULES[int(table.schedule[0])], int(table.pp[0])
    v, m = schedule.chunks_per_rank(int(table.virtual_stages[0])), int(table.microbatches[0])
    g = pipeline.graph(schedule, p, v, m // schedule.directions)
    times = pipeline_times(parts, a, np.array([0]), transfers(parts))
    ends = np.empty((g.size, 1))
    pipeline.run(g, times.durations, times.drains, times.ready, row_of=times.row_of, ends=ends)
    held = rank_chunks(schedule, a.layout(0), p, v)
    rows = np.array([[a.row_of[kind, 0] for kind in chunks] for chunks in held])
    durations = times.durations[times.row_of[g.row], 0]
    return PlacedActions(
        rank=g.rank_of,
        kind=g.kind_of,
        row=rows[g.rank_of, g.chunk_of],
        start_s=ends[:, 0] - durations,
        receives=g.receives,
        sender=g.rank_of[np.where(g.receives, g.needs, 0)],
        wait_s=float(transfers(parts)[0]),
        end_s=float(ends.max()),
        filled=tuple(tuple(int(a.row_of[one, 0]) for one in first_chunks(schedule, held[r])) for r in range(p)),
    )
