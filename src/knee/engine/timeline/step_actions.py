"""The actions of a step: what each kind of chunk does in its first, middle and last microbatch, walked.

A plan has few kinds of chunks (see ``pipelines.chunks``), and each kind few actions; those are the columns that are
walked, not stages or microbatches.

In interleaved pipelines, what one chunk leaves runs beside the rank's other chunks. A rank works through its chunks in
groups of as many microbatches as there are ranks. When a chunk has ended its last backward, its gradients are reduced
while the same microbatches go backward through the chunk below; when the step begins, a chunk's parameters are gathered
while the first microbatches go forward through the chunk below. Both are spread over those passes as far as the passes
can hide them; the rest is exposed at the end or start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from knee.base.arrays import Bools, Floats, Ints, equal_rows, joined
from knee.engine.timeline.passes import SUM_NAMES, Pass, Sums, WalkedPass
from knee.engine.timeline.pipelines.chunks import ChunkRows, Layout, chunk_rows, layout_of
from knee.engine.timeline.plan_passes import (
    PlanPass,
    backward_pass,
    filling_gather_s,
    forward_pass,
    kinds_of_rows,
    passes_of,
)
from knee.engine.timeline.step_parts import StepParts
from knee.engine.timeline.walk import LOADS, Walk, drain, is_late, run_layer, run_passes, sums_of
from knee.engine.workload.layers_per_stage import Cuts
from knee.specs.plan_table import stage_copies


def run(p: Pass, gamma: float) -> Sums:
    """All passes, each in the quickest way that is exact: only those that gather, or have replicas or a late host, need
    a walk."""
    queued = _queued(p)
    few = queued & (p.layers > 0) & ~(p.gather_s + p.root_gather_s + p.layer.hidden_s > 0)
    few &= ~(p.replicate_s + p.root_replicate_s + p.carried_replicate_s > 0)
    few &= ~is_late(p.layer)
    groups = (
        (run_repeated, np.flatnonzero(~queued)),
        (run_reductions, np.flatnonzero(few)),
        (run_passes, np.flatnonzero(queued & ~few)),
    )
    sums = Sums.zeros(len(p.layers))
    for walk, rows in groups:
        if len(rows) == len(p.layers):
            return walk(p, gamma)
        if len(rows):
            sums.put(rows, walk(p.rows(rows), gamma))
    return sums


TOGETHER = 4096
"""Passes that are worth putting side by side: a walk costs hundreds of NumPy calls, whatever their number."""


def run_together(passes: Sequence[Pass], gamma: float) -> list[Sums]:
    """Passes of several actions, each list in its own sums; few of them are walked at once."""
    ends = list(accumulate(len(p.layers) for p in passes))
    if ends[-1] > TOGETHER:
        return [run(p, gamma) for p in passes]
    sums = run(joined(*passes), gamma)
    return [sums.rows(slice(start, end)) for start, end in pairwise((0, *ends))]


def _queued(p: Pass) -> Bools:
    """Passes that gather or reduce anything."""
    gathers = p.root_gather_s + p.gather_s
    reduces = p.reduce_s + p.root_reduce_s + p.carried_reduce_s
    replicates = p.replicate_s + p.root_replicate_s + p.carried_replicate_s
    return np.asarray(gathers + reduces + replicates > 0, dtype=np.bool_)


def run_repeated(p: Pass, gamma: float) -> Sums:
    """Passes without a queue: every layer is like the first, so one stands for all."""
    lead = Walk.start(p, gamma, None)
    layer, tail = lead.again(), lead.again()
    for walk, name in ((lead, "lead"), (layer, "layer"), (tail, "tail")):
        walk.place = (name, 0)
        walk.run(getattr(p, name), 0.0)
    for name in LOADS:
        setattr(lead, name, getattr(lead, name) + p.layers * getattr(layer, name) + getattr(tail, name))
    return sums_of(lead)


def run_reductions(p: Pass, gamma: float) -> Sums:
    """Passes whose queue has reductions alone: all layers but the first in closed form."""
    walk = Walk.start(p, gamma, None)
    walk.run(p.lead, 0.0)
    run_layer(walk, p.layers, 0)
    _reduce_beside(walk, p.layers - 1)
    walk.place = ("tail", 0)
    walk.reduces_s += p.reduce_s
    walk.run(p.tail, 0.0)
    sums = sums_of(walk)
    drain(walk, sums)
    return sums


def _reduce_beside(walk: Walk, layers: Ints) -> None:
    """Layers that each find a reduction more in the queue, x before the first of them.

    Formula: x_n = min(max(x + n (r - d), 0), limit), reduced beside compute: sum of min(a, x_j + r), j = 0 .. n - 1
    Where:   r a layer's reduction, a what its compute covers, d = a + what its blocking communication leaves the wire
             to. A queue that grows covers all compute (a), and compute waits for what exceeds the limit. One that falls
             does so by d - r a layer until it is empty, so that the sum has full terms (a), then terms of an
             arithmetic series, then equal ones (r)
    """
    q, x, r = walk.q, walk.reduces_s, walk.q.reduce_s
    a = q.layer.compute_s * walk.slowed / walk.gamma
    d = a + np.where(q.shares_wire, 0.0, q.layer.blocking_s)
    unlimited = np.maximum(x + layers * (r - d), 0.0)
    left = np.minimum(unlimited, q.reduce_limit_s)
    covered = layers * np.minimum(a, r)
    falls = np.flatnonzero((x > 0) & (r < a))
    if len(falls):
        covered[falls] = _falling_sum(x[falls], r[falls], a[falls], d[falls], layers[falls])
    walk.overlapped_s += covered * walk.gamma
    # beside compute a reduction takes gamma times as long
    walk.reduce_load_s += x + layers * r - left + (walk.gamma - 1.0) * covered
    walk.exposed_s += unlimited - left
    walk.reduces_s = left


def _falling_sum(x: Floats, r: Floats, a: Floats, d: Floats, layers: Ints) -> Floats:
    """The sum of ``_reduce_beside`` where the queue falls and compute could cover more than one reduction."""
    fall = d - r
    full = np.clip(np.floor((x + r - a) / fall) + 1.0, 0.0, layers)
    until_empty = np.clip(np.ceil(x / fall), full, layers)
    series = (until_empty - full) * (x + r) - fall * (until_empty * (until_empty - 1.0) - full * (full - 1.0)) / 2.0
    return np.asarray(full * a + series + (layers - until_empty) * r, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadQueue:
    """Work of one kind after it was spread."""

    carried_s: Floats
    """Work that each pass of a row takes over and hides; 0 where the row takes none."""
    exposed_s: Floats
    """What is left for each rank of a plan."""


def group_passes(parts: StepParts) -> Floats:
    """Passes of a chunk in the first or last group of microbatches, but for the first or last microbatch itself."""
    return (np.minimum(parts.table.microbatches, parts.table.pp) - 1).astype(np.float64)


def spread(
    parts: StepParts, rows: ChunkRows, w: WalkedPass, work_s: Floats, gamma: float, *, overlaps: bool = True
) -> SpreadQueue:
    """Spread ``work_s`` of each row's upper chunks over the passes ``w`` of the chunks below them.

    Formula: each pass takes min(work / passes, what it can hide); what it can hide is what it takes from an endless
             queue
    """
    plans, n = rows.plan, len(parts.table)
    total: Floats = np.bincount(plans, weights=work_s * rows.count * rows.early, minlength=n).astype(np.float64)
    passes = rows.below_top * group_passes(parts)[plans] * overlaps
    places = np.bincount(plans, weights=passes, minlength=n)
    share = total / np.maximum(places, 1.0)
    carried = np.zeros(len(rows))
    at = np.flatnonzero((passes > 0) & (share[plans] > 0))
    if len(at):
        first, kind = equal_rows(w.kind[at], total[plans[at]])
        most = _most_hidden_s(w.passes.rows(w.kind[at][first]), total[plans[at]][first], gamma)
        carried[at] = np.minimum(share[plans[at]], most[kind])
    hidden = np.bincount(plans, weights=carried * passes, minlength=n)
    return SpreadQueue(carried_s=carried, exposed_s=np.maximum(total - hidden, 0.0) / parts.table.pp)


def _most_hidden_s(p: Pass, work_s: Floats, gamma: float) -> Floats:
    """What these passes take from a queue that holds all the work."""
    never = np.zeros(len(p.layers), dtype=np.bool_)
    return work_s - run(replace(p, carried_reduce_s=work_s, waits_at_end=never), gamma).left_reduce_s


def carrying(w: WalkedPass, reduce_s: Floats, replicate_s: Floats, gamma: float) -> WalkedPass:
    """The passes with what rows take over; where that is nothing they stay as they are."""
    at = np.flatnonzero((reduce_s > 0) | (replicate_s > 0))
    if not len(at):
        return w
    first, kind = equal_rows(w.kind[at], reduce_s[at], replicate_s[at])
    few = at[first]
    loaded = replace(w.passes.rows(w.kind[few]), carried_reduce_s=reduce_s[few], carried_replicate_s=replicate_s[few])
    walked = run(loaded, gamma)
    kinds = w.kind.copy()
    kinds[at] = len(w.passes.layers) + kind
    return WalkedPass(kind=kinds, passes=joined(w.passes, loaded), sums=joined(w.sums, walked))


def per_rank(rows: ChunkRows, ranks: Ints, seconds: Floats) -> Floats:
    """The mean over a plan's ranks, of chunks that each have ``seconds``."""
    return np.bincount(rows.plan, weights=seconds * rows.count, minlength=len(ranks)) / ranks


def times_of(parts: StepParts, rows: ChunkRows, walked: Mapping[str, WalkedPass]) -> dict[str, Floats]:
    """How often each action of a row's chunks is run in a step."""
    copies = stage_copies(parts.table)[rows.plan].astype(np.float64)
    once, more = copies, parts.table.microbatches[rows.plan] - copies
    times = {"F_first": once, "F": more, "B": more, "B_last": once}
    if "W" in walked:
        split = parts.table.splits_backward[rows.plan]
        times |= {"W": more * split, "W_last": once * split}
    if "B_late" in walked:
        # passes of the first and last group, in place of as many others
        grouped: Floats = group_passes(parts)[rows.plan] * rows.below_top / rows.count
        times |= {"F": more - grouped, "F_fill": grouped, "B": more - grouped, "B_late": grouped}
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Every action of every chunk kind, walked."""

    cuts: Cuts
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

    def layout(self, plan: int) -> Layout:
        """The chunks of one plan's pipeline."""
        return layout_of(*self.cuts.of(plan))


def run_actions(parts: StepParts, cuts: Cuts) -> Actions:
    """Walk the passes of every chunk kind: first and middle forwards, middle and last backwards."""
    rows, row_of = chunk_rows(cuts)
    filling = filling_gather_s(parts, rows)
    walked, late = _walk_rows(parts, rows, filling)
    return Actions(
        cuts=cuts,
        rows=rows,
        row_of=row_of,
        ranks=parts.table.pp,
        filling_gather_s=filling,
        late_gather_s=late,
        walked=walked,
        draining=frozenset(name for name, w in walked.items() if w.sums.drain_s.any()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One action to be walked."""

    plan_pass: PlanPass
    alike: tuple[str, Bools] | None = None
    """An action before it that is the same for some plans, and which."""
    only: Bools | None = None
    """Plans that have it."""


def _walk_rows(parts: StepParts, rows: ChunkRows, filling_s: Floats) -> tuple[dict[str, WalkedPass], Floats]:
    """The walked actions, and what the gathers of upper chunks leave exposed, per plan."""
    modes = parts.modes
    every = np.ones(len(parts.table), dtype=np.bool_)
    split = parts.table.splits_backward
    overlaps = modes.zero1 & parts.profile.gather_overlap
    last = backward_pass(parts, reduces=every)
    middle = backward_pass(parts, reduces=modes.reduces_often, replicates=False)
    if split.any():
        half = backward_pass(parts, reduces=~every, what="input")
        last, middle = half.where(split, last), half.where(split, middle)
    asked = {
        "F_first": _Asked(plan_pass=forward_pass(parts, gathers=modes.gathers | overlaps)),
        # middle microbatches of plans that gather and reduce in each are like the first and the last one
        "F": _Asked(plan_pass=forward_pass(parts, gathers=modes.reshards), alike=("F_first", modes.reshards)),
        "B_last": _Asked(plan_pass=last),
        # but for replicas, which add their gradients in the last one alone
        "B": _Asked(plan_pass=middle, alike=("B_last", modes.reduces_often & (parts.table.dp_replicate == 1))),
    }
    if split.any():
        asked["W_last"] = _Asked(plan_pass=backward_pass(parts, reduces=every, what="weight"), only=split)
        asked["W"] = _Asked(plan_pass=backward_pass(parts, reduces=~every, what="weight"), only=split)
    walked = _walk(parts, rows, asked)
    if not rows.early.any():
        return walked, np.zeros(len(parts.table))
    return _carry(parts, rows, walked, filling_s, parts.profile.comm_slowdown)


def _walk(parts: StepParts, rows: ChunkRows, asked: dict[str, _Asked]) -> dict[str, WalkedPass]:
    """Walk one row of each kind of every action."""
    kinds = {name: kinds_of_rows(one.plan_pass, rows, one.only) for name, one in asked.items()}
    few = {name: rows.rows(first) for name, (first, _) in kinds.items()}
    passes = {name: passes_of(parts, one.plan_pass, few[name]) for name, one in asked.items()}
    new = {name: np.flatnonzero(~one.alike[1][few[name].plan]) for name, one in asked.items() if one.alike is not None}
    walks = [passes[name].rows(new[name]) if name in new else passes[name] for name in asked]
    found: dict[str, WalkedPass] = {}
    for (name, one), sums in zip(asked.items(), run_together(walks, parts.profile.comm_slowdown), strict=True):
        first, kind = kinds[name]
        if one.alike is not None:
            other, own = found[one.alike[0]], sums
            sums = Sums(**{field: other.column(field)[first] for field in SUM_NAMES})
            sums.put(new[name], own)
        found[name] = WalkedPass(kind=kind, passes=passes[name], sums=sums)
    return found


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
    gather_load_s = filled.sums.gather_load_s + filled.sums.reduce_load_s
    sums = replace(filled.sums, gather_load_s=gather_load_s, reduce_load_s=0.0 * filled.sums.reduce_load_s)
    late = carrying(walked["B"], reduces.carried_s, none, gamma)
    more = {"B_last": ended, "B_late": late, "F_fill": replace(filled, sums=sums)}
    return walked | more, filling.exposed_s
