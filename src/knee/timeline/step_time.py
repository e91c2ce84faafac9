"""From priced parts to the duration of a step and what it was made of, as columns over plans."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from knee.arrays import Bools, Floats, Ints
from knee.specs.plan import SCHEDULES, Schedule
from knee.timeline import pipeline
from knee.timeline.actions import (
    StepParts,
    backward_pass,
    filling_gather_s,
    forward_pass,
    is_zero_bubble,
)
from knee.timeline.chunk_queues import carrying, left_by_upper_chunks, per_rank, spread, with_group_passes
from knee.timeline.chunks import ChunkRows, chunk_rows, layout_of
from knee.timeline.passes import SUM_NAMES, Pass, Sums
from knee.timeline.walk import run, run_repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Sums of every action of every chunk kind: ``sums[action][field]`` is indexed by row of ``rows``."""

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
    passes: dict[str, Pass]
    sums: dict[str, Sums]


def run_actions(parts: StepParts, layers: int, head_layers: float = 0.0) -> Actions:
    """Walk the passes of every chunk kind: first and middle forwards, middle and last backwards."""
    table, modes = parts.table, parts.modes
    rows, row_of = chunk_rows(layers, head_layers, table)
    overlaps = modes.zero1 & parts.profile.gather_overlap
    every = np.ones(len(table), dtype=np.bool_)
    never = ~every
    split = is_zero_bubble(table)
    passes = {
        "F_first": forward_pass(parts, rows, gathers=modes.gathers | overlaps),
        "F": forward_pass(parts, rows, gathers=modes.reshards),
        "B": backward_pass(parts, rows, reduces=modes.reduces_often, replicates=False),
        "B_last": backward_pass(parts, rows, reduces=every),
    }
    if split.any():
        halves = split[rows.plan]
        for name, reduces in (("B", never), ("B_last", never)):
            passes[name] = _choose(halves, backward_pass(parts, rows, reduces=reduces, what="input"), passes[name])
        passes["W"] = backward_pass(parts, rows, reduces=never, what="weight")
        passes["W_last"] = backward_pass(parts, rows, reduces=every, what="weight")
    return _walk(
        parts,
        Actions(
            layers=layers,
            head_layers=head_layers,
            rows=rows,
            row_of=row_of,
            ranks=table.pp,
            filling_gather_s=filling_gather_s(parts, rows),
            late_gather_s=np.zeros(len(table)),
            passes=passes,
            sums={},
        ),
    )


def _choose(where: Bools, a: Pass, b: Pass) -> Pass:
    """Columns of one pass or the other."""
    chosen = {}
    for f in fields(Pass):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if hasattr(x, "compute_s"):
            chosen[f.name] = type(x)(
                **{g.name: np.where(where, getattr(x, g.name), getattr(y, g.name)) for g in fields(x)}
            )
        else:
            chosen[f.name] = np.where(where, x, y)
    return Pass(**chosen)


def _walk(parts: StepParts, a: Actions) -> Actions:
    """Run each pass: with a queue layer by layer, without one in closed form."""
    gamma = parts.profile.comm_slowdown
    gathers, reduces = (modes[a.rows.plan] for modes in (parts.modes.reshards, parts.modes.reduces_often))
    passes = dict(a.passes)
    interleaved, taken_over = bool(a.rows.early.any()), np.zeros(len(a.rows))
    if interleaved:
        passes["B_last"], taken_over = _carry(parts, a, gamma)
    sums: dict[str, Sums] = {"F_first": run(passes["F_first"], gamma)}
    for name in ("B_last", "W_last"):
        if name in passes:
            sums[name] = run(passes[name], gamma)
    # few plans have a queue in middle microbatches, and theirs repeats the first or last one's
    for name, like, queues in (("F", "F_first", gathers), ("B", "B_last", reduces)):
        plain = run_repeated(passes[name], gamma)
        sums[name] = Sums(
            **{name: np.where(queues, getattr(sums[like], name), getattr(plain, name)) for name in SUM_NAMES}
        )
    # but for replicas, which add their gradients in the last one alone
    several = reduces & (parts.table.dp_replicate > 1)[a.rows.plan] & (parts.table.microbatches > 1)[a.rows.plan]
    if several.any():
        at = np.flatnonzero(several)
        walked = run(passes["B"].rows(at), gamma)
        for name in SUM_NAMES:
            getattr(sums["B"], name)[at] = getattr(walked, name)
    if "W" in passes:
        sums["W"] = run_repeated(passes["W"], gamma)
    if not interleaved:
        return replace(a, passes=passes, sums=sums)
    filling = spread(parts, a.rows, passes["F"], a.filling_gather_s, gamma)
    passes["B_late"], sums["B_late"] = carrying(passes["B"], sums["B"], taken_over, gamma, gathers=False)
    passes["F_fill"], sums["F_fill"] = carrying(passes["F"], sums["F"], filling.carried_s, gamma, gathers=True)
    return replace(a, passes=passes, sums=sums, late_gather_s=filling.exposed_s)


def _carry(parts: StepParts, a: Actions, gamma: float) -> tuple[Pass, Floats]:
    """The last backwards with what is left of upper chunks' reductions, and what the passes before them take over."""
    last = a.passes["B_last"]
    left_reduce, left_replicate = left_by_upper_chunks(last, a.rows, gamma)
    overlaps = parts.profile.reduce_overlap
    reduces = spread(parts, a.rows, a.passes["B"], left_reduce, gamma, overlaps=overlaps)
    replicas = per_rank(a.rows, a.ranks, left_replicate)
    ends = a.rows.ends_rank
    carried = replace(
        last,
        carried_reduce_s=np.where(ends, reduces.exposed_s[a.rows.plan], 0.0),
        carried_replicate_s=np.where(ends, replicas[a.rows.plan], 0.0),
    )
    return carried, reduces.carried_s


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
    n = len(table)
    sums = {}
    for name in SUM_NAMES:
        first, middle = getattr(a.sums["F_first"], name), getattr(a.sums["F"], name)
        back, last = getattr(a.sums["B"], name), getattr(a.sums["B_last"], name)
        per_row = first + last + (m[a.rows.plan] - 1.0) * (middle + back)
        if "W" in a.sums:
            weights = getattr(a.sums["W_last"], name) + (m[a.rows.plan] - 1.0) * getattr(a.sums["W"], name)
            per_row = per_row + np.where(is_zero_bubble(table)[a.rows.plan], weights, 0.0)
        per_row = with_group_passes(per_row, parts, a.rows, a.sums, name)
        sums[name] = np.bincount(a.rows.plan, weights=per_row * a.rows.count, minlength=n) / table.pp
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


def _pipelines(parts: StepParts, a: Actions, span: Floats, fold: bool) -> None:
    """Fill in the span of plans with a pipeline, grouped by the shape of their schedule."""
    table = parts.table
    piped = np.flatnonzero(table.pp > 1)
    if not len(piped):
        return
    key = (table.schedule[piped] * 65536 + table.pp[piped]) * 65536 + table.virtual_stages[piped]
    # plans that are walked whole share a walk only with their equals; the others are told apart by what is counted
    walked = np.minimum(table.microbatches[piped], 3 * table.pp[piped]) if fold else table.microbatches[piped]
    for group in np.unique(key * 2**24 + walked):
        plans = piped[key * 2**24 + walked == group]
        span[plans] = _spans(parts, a, plans, fold)


FOLD_ERROR = 3e-3
"""Folding is accepted when its two bounds lie this close, over the span; their middle is then within half of it."""


def _spans(parts: StepParts, a: Actions, plans: Ints, fold: bool) -> Floats:
    """Spans of plans cut alike: walk, and count the microbatches that only repeat.

    The span is convex in the number of microbatches: each one adds at least what the last one walked added, and at
    most the schedule's cycle. Where the two differ too much, more is walked.
    """
    table = parts.table
    p, v = int(table.pp[plans[0]]), int(table.virtual_stages[plans[0]])
    schedule = SCHEDULES[table.schedule[plans[0]]]
    micro = table.microbatches[plans]
    times = pipeline_times(parts, a, plans)
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


def pipeline_times(parts: StepParts, a: Actions, plans: Ints) -> PipelineTimes:
    """Durations of every rank, chunk and kind of action."""
    table = parts.table
    p, v = int(table.pp[plans[0]]), int(table.virtual_stages[plans[0]])
    layout = layout_of(a.layers, p, v, a.head_layers)
    schedule = SCHEDULES[table.schedule[plans[0]]]
    names = [n for n in pipeline.KINDS if n in a.sums and (n[0] != "W" or schedule == "zero_bubble")]
    wait = transfers(parts)[plans]
    kinds = sorted(set(layout.kinds))
    per_kind = len(pipeline.KINDS)
    durations, drains = (np.zeros((len(kinds) * per_kind, len(plans))) for _ in range(2))
    rows = {kind: a.row_of[kind, plans] for kind in kinds}
    for i, kind in enumerate(kinds):
        has_embedding, has_head = kind == layout.kinds[0], kind == layout.kinds[-1]
        for name in names:
            row = i * per_kind + pipeline.KINDS.index(name)
            np.take(a.sums[name].duration_s, rows[kind], out=durations[row], mode="clip")
            np.take(a.sums[name].drain_s, rows[kind], out=drains[row], mode="clip")
            if (name[0] == "F" and not has_embedding) or (name[0] == "B" and not has_head):
                durations[row] += wait
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
