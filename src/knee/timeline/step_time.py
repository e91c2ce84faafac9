"""From priced parts to the duration of a step and what it was made of, as columns over plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from knee.arrays import Bools, Floats, Ints, equal_rows, fingerprint
from knee.specs.plan import SCHEDULES, Schedule
from knee.timeline import pipeline
from knee.timeline.actions import StepParts, is_zero_bubble
from knee.timeline.chunk_queues import carrying, per_rank, spread, times_of
from knee.timeline.chunks import ChunkRows, chunk_rows, layout_of
from knee.timeline.passes import SUM_NAMES, Pass, Sums, WalkedPass
from knee.timeline.plan_passes import (
    PlanPass,
    backward_pass,
    filling_gather_s,
    forward_pass,
    kinds_of_rows,
    passes_of,
)
from knee.timeline.walk import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Every action of every chunk kind, walked."""

    layers: int
    """Of the model."""
    head_layers: float
    """What the output projection counts as where layers are dealt."""
    rows: ChunkRows
    row_of: Ints
    """Row of (kind, plan), or -1."""
    ranks: Ints
    """Pipeline ranks of each plan."""
    filling_gather_s: Floats
    """ZeRO-1's gather of a chunk before it starts; the filling of the pipeline hides it on later ranks."""
    late_gather_s: Floats
    """What the gathers of a rank's upper chunks leave exposed, per plan."""
    walked: dict[str, WalkedPass]
    draining: frozenset[str]
    """Actions of which some end with a drain."""


def run_actions(parts: StepParts, layers: int, head_layers: float = 0.0) -> Actions:
    """Walk the passes of every chunk kind: first and middle forwards, middle and last backwards."""
    rows, row_of = chunk_rows(layers, head_layers, parts.table)
    filling = filling_gather_s(parts, rows)
    walked, late = _walk_rows(parts, rows, filling)
    return Actions(
        layers=layers,
        head_layers=head_layers,
        rows=rows,
        row_of=row_of,
        ranks=parts.table.pp,
        filling_gather_s=filling,
        late_gather_s=late,
        walked=walked,
        draining=frozenset(name for name, w in walked.items() if w.sums.drain_s.any()),
    )


def _walk_rows(parts: StepParts, rows: ChunkRows, filling_s: Floats) -> tuple[dict[str, WalkedPass], Floats]:
    """The walked actions, and what the gathers of upper chunks leave exposed, per plan."""
    modes, gamma = parts.modes, parts.profile.comm_slowdown
    every = np.ones(len(parts.table), dtype=np.bool_)
    split = is_zero_bubble(parts.table)
    overlaps = modes.zero1 & parts.profile.gather_overlap
    walked = {"F_first": _walk(parts, rows, forward_pass(parts, gathers=modes.gathers | overlaps))}
    walked["F"] = _walk(parts, rows, forward_pass(parts, gathers=modes.reshards), like=walked["F_first"])
    last, middle = backward_pass(parts, reduces=every), backward_pass(parts, reduces=modes.reduces_often, replicates=False)
    if split.any():
        half = backward_pass(parts, reduces=~every, what="input")
        last, middle = half.where(split, last), half.where(split, middle)
    walked["B_last"] = _walk(parts, rows, last)
    walked["B"] = _walk(parts, rows, middle, like=walked["B_last"])
    if split.any():
        walked["W_last"] = _walk(parts, rows, backward_pass(parts, reduces=every, what="weight"), only=split)
        walked["W"] = _walk(parts, rows, backward_pass(parts, reduces=~every, what="weight"), only=split)
    if not rows.early.any():
        return walked, np.zeros(len(parts.table))
    return _carry(parts, rows, walked, filling_s, gamma)


def _walk(
    parts: StepParts, rows: ChunkRows, p: PlanPass, *, like: WalkedPass | None = None, only: Bools | None = None
) -> WalkedPass:
    """Walk one row of each kind."""
    first, kind = kinds_of_rows(p, rows, only)
    passes = passes_of(parts, p, rows.some(first))
    return WalkedPass(kind=kind, passes=passes, sums=run(passes, parts.profile.comm_slowdown))


def _carry(
    parts: StepParts, rows: ChunkRows, walked: dict[str, WalkedPass], filling_s: Floats, gamma: float
) -> tuple[dict[str, WalkedPass], Floats]:
    """Interleaved pipelines: what upper chunks leave, and need, runs beside the rank's other chunks."""
    last, none = walked["B_last"], np.zeros(len(rows))
    left_reduce, left_replicate = (last.column(name) * rows.early for name in ("left_reduce_s", "left_replicate_s"))
    reduces = spread(parts, rows, walked["B"], left_reduce, gamma, overlaps=parts.profile.reduce_overlap)
    replicas = per_rank(rows, parts.table.pp, left_replicate)
    ends = rows.ends_rank
    ended = carrying(last, reduces.exposed_s[rows.plan] * ends, replicas[rows.plan] * ends, gamma)
    filling = spread(parts, rows, walked["F"], filling_s, gamma)
    filled = carrying(walked["F"], filling.carried_s, none, gamma)
    # what a forward takes over is no reduction
    sums = replace(
        filled.sums,
        gather_load_s=filled.sums.gather_load_s + filled.sums.reduce_load_s,
        reduce_load_s=0.0 * filled.sums.reduce_load_s,
    )
    late = carrying(walked["B"], reduces.carried_s, none, gamma)
    more = {"B_last": ended, "B_late": late, "F_fill": replace(filled, sums=sums)}
    return walked | more, filling.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """A step of every plan, means over its GPUs: what the metrics are read from."""

    pipeline_s: Floats
    """Until the last stage has finished its last backward."""
    compute_s: Floats
    exposed_s: Floats
    overlapped_s: Floats
    idle_s: Floats
    bubble_s: Floats
    gather_load_s: Floats
    reduce_load_s: Floats
    replicate_load_s: Floats
    local_load_s: Floats
    p2p_load_s: Floats


def transfers(parts: StepParts) -> Floats:
    """Time a rank waits for an input from its neighbour, every time; the rest hides beside the chunk's layers."""
    return (1.0 - parts.profile.p2p_overlap_frac) * parts.comm.pp_send


def run_step(parts: StepParts, a: Actions, *, fold: bool = True) -> StepColumns:
    """Compose the actions over microbatches and stages."""
    table = parts.table
    m = table.microbatches.astype(np.float64)
    sums = _step_sums(parts, a)
    # every chunk boundary is crossed once forward and once backward by each microbatch
    chunks = table.pp * table.virtual_stages
    waits = 2.0 * (chunks - 1.0) * m / table.pp
    p2p = transfers(parts) * waits
    filling = per_rank(a.rows, a.ranks, a.filling_gather_s * ~a.rows.early) + a.late_gather_s
    span = np.where(table.pp > 1, 0.0, sums["duration_s"])
    _pipelines(parts, a, span, fold)
    return StepColumns(
        pipeline_s=span,
        compute_s=sums["compute_s"],
        exposed_s=sums["exposed_s"] + p2p + filling,
        overlapped_s=sums["overlapped_s"],
        idle_s=sums["idle_s"],
        bubble_s=span - sums["duration_s"] - p2p - filling,
        gather_load_s=sums["gather_load_s"] + filling,
        reduce_load_s=sums["reduce_load_s"],
        replicate_load_s=sums["replicate_load_s"],
        local_load_s=sums["local_load_s"],
        p2p_load_s=p2p,
    )


STEP_SUMS = tuple(name for name in SUM_NAMES if name not in ("drain_s", "left_reduce_s", "left_replicate_s"))


def _step_sums(parts: StepParts, a: Actions) -> dict[str, Floats]:
    """What all passes of a step add up to, mean over ranks."""
    total = np.zeros((len(a.rows), len(STEP_SUMS)))
    for action, times in times_of(parts, a.rows, a.walked).items():
        w = a.walked[action]
        # the sums of a kind lie side by side here, so that a row's are found together
        sums = np.stack([getattr(w.sums, name) for name in STEP_SUMS], axis=1).take(w.kind, axis=0)
        sums *= (times * a.rows.count)[:, None]
        total += sums
    # a plan has a row for each kind of its chunks, and rows stand kind by kind
    per_plan = np.zeros((len(parts.table), len(STEP_SUMS)))
    edges = [0, *(np.flatnonzero(np.diff(a.rows.plan) <= 0) + 1).tolist(), len(a.rows)]
    for i, j in pairwise(edges):
        per_plan[a.rows.plan[i:j]] += total[i:j]
    per_plan /= parts.table.pp[:, None]
    return {name: np.ascontiguousarray(per_plan[:, i]) for i, name in enumerate(STEP_SUMS)}


def _pipelines(parts: StepParts, a: Actions, span: Floats, fold: bool) -> None:
    """Fill in the span of plans with a pipeline, grouped by the shape of their schedule."""
    table = parts.table
    piped = np.flatnonzero(table.pp > 1)
    if not len(piped):
        return
    key = (table.schedule[piped] * 65536 + table.pp[piped]) * 65536 + table.virtual_stages[piped]
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
    """Rows with equal keys."""
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
    p, v = int(table.pp[plans[0]]), int(table.virtual_stages[plans[0]])
    schedule = SCHEDULES[table.schedule[plans[0]]]
    times = pipeline_times(parts, a, plans, wait_s)
    spans = np.empty(len(plans))
    open_ = np.arange(len(plans))
    walk = pipeline.first_walk(schedule, p, int(micro.max())) if fold else int(micro.max())
    while len(open_):
        whole = open_[micro[open_] <= walk]
        for count in np.unique(micro[whole]):
            at = whole[micro[whole] == count]
            spans[at], _, _ = _walk_pipeline(schedule, p, v, int(count), times.rows(at))
        open_ = open_[micro[open_] > walk]
        if len(open_):
            spans[open_], good = _count_on(schedule, p, v, walk, micro[open_], times.rows(open_))
            open_ = open_[~good]
            walk = 2 * walk - walk % pipeline.period(schedule, p)
    return spans


def _count_on(
    schedule: Schedule, ranks: int, chunks: int, walk: int, micro: Ints, times: PipelineTimes
) -> tuple[Floats, Bools]:
    """Spans from a walk of fewer microbatches, and which of them are good enough."""
    end, distance, before = _walk_pipeline(schedule, ranks, chunks, walk, times)
    beyond = micro - walk
    # a rank that is not the busiest may run ahead for a while: only the cycle itself counts, and it must be seen twice
    settled = np.maximum(np.abs(distance - times.cycle), np.abs(before - times.cycle)) <= 1e-9 * times.cycle
    spans = end + beyond * times.cycle
    rest = np.flatnonzero(~settled)
    if len(rest):
        some, step = times.rows(rest), pipeline.period(schedule, ranks)
        shorter, _, _ = _walk_pipeline(schedule, ranks, chunks, walk - step, some)
        least = (end[rest] - shorter) / step
        low = end[rest] + beyond[rest] * least
        high = end[rest] + beyond[rest] * np.maximum(some.cycle, least)
        spans[rest] = 0.5 * (low + high)
        settled[rest] = high - low <= FOLD_ERROR * low
    return spans, settled


def _walk_pipeline(
    schedule: Schedule, ranks: int, chunks: int, microbatches: int, times: PipelineTimes
) -> tuple[Floats, Floats, Floats]:
    """When the last rank is done, and what a microbatch added late in the walk and a period before."""
    graph = pipeline.graph(schedule, ranks, chunks, microbatches)
    sent, done = pipeline.run(graph, times.durations, times.drains, times.ready, row_of=times.row_of)
    # GPipe's halves add up; of a schedule's ranks the one that runs ahead is the one to look at
    halves = schedule == "gpipe" and bool(graph.repeats)
    add = np.add if halves else np.minimum
    late, early = (np.full(sent.shape[1], 0.0 if halves else np.inf) for _ in range(2))
    for repeat in graph.repeats:
        first, last = (repeat.earlier, repeat.before) if repeat.earlier != repeat.before else repeat[1::-1]
        late = add(late, (sent[repeat.now] - sent[repeat.before]) / pipeline.period(schedule, ranks))
        early = add(early, (sent[last] - sent[first]) / pipeline.period(schedule, ranks))
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
        """Some of the plans."""
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
    layout = layout_of(a.layers, p, v, a.head_layers)
    schedule = SCHEDULES[table.schedule[plans[0]]]
    names = [n for n in pipeline.KINDS if n in a.walked and (n[0] != "W" or schedule == "zero_bubble")]
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
    own = np.array([[kinds.index(layout.kinds[v_ * p + rank]) for v_ in range(v)] for rank in range(p)])
    row_of = (own[:, :, None] * per_kind + np.arange(per_kind)).ravel()
    ready = np.tile(a.late_gather_s[plans], (p, 1))
    for rank in range(p):
        ready[rank] += a.filling_gather_s[rows[layout.kinds[rank]]]
    return PipelineTimes(
        row_of=row_of, durations=durations, drains=drains, ready=ready, cycle=_cycle(schedule, own, durations)
    )


def _cycle(schedule: Schedule, own: Ints, durations: Floats) -> Floats:
    """What a microbatch adds once the pipeline has settled, ``own`` being the kinds of each rank's chunks."""

    def busy(*names: str) -> Floats:
        rows = [pipeline.KINDS.index(name) for name in names]
        # ranks with the same chunks are equally busy
        return np.array(
            [sum(durations[kind * len(pipeline.KINDS) + row] for kind in rank for row in rows) for rank in set(map(tuple, own.tolist()))]
        )

    # GPipe's two halves have a busiest rank each
    if schedule == "gpipe":
        return busy("F").max(axis=0) + busy("B", "W").max(axis=0)
    return busy("F", "B", "W").max(axis=0)
