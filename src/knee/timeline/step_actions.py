"""The actions of a step: what each kind of chunk does in its first, middle and last microbatch, walked.

A plan has few kinds of chunks (see ``timeline.chunks``), and each kind few actions; those are the columns that are
walked, not stages or microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.arrays import Bools, Floats, Ints
from knee.timeline.actions import StepParts, is_zero_bubble
from knee.timeline.chunk_queues import carrying, per_rank, spread
from knee.timeline.chunks import ChunkRows, chunk_rows
from knee.timeline.closed_forms import run
from knee.timeline.passes import SUM_NAMES, Sums, WalkedPass
from knee.timeline.plan_passes import (
    PlanPass,
    backward_pass,
    filling_gather_s,
    forward_pass,
    kinds_of_rows,
    passes_of,
)


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
    # middle microbatches of plans that gather and reduce in each are like the first and the last one
    alike = walked["F_first"], modes.reshards
    walked["F"] = _walk(parts, rows, forward_pass(parts, gathers=modes.reshards), alike=alike)
    last = backward_pass(parts, reduces=every)
    middle = backward_pass(parts, reduces=modes.reduces_often, replicates=False)
    if split.any():
        half = backward_pass(parts, reduces=~every, what="input")
        last, middle = half.where(split, last), half.where(split, middle)
    walked["B_last"] = _walk(parts, rows, last)
    # but for replicas, which add their gradients in the last one alone
    alike = walked["B_last"], modes.reduces_often & (parts.table.dp_replicate == 1)
    walked["B"] = _walk(parts, rows, middle, alike=alike)
    if split.any():
        walked["W_last"] = _walk(parts, rows, backward_pass(parts, reduces=every, what="weight"), only=split)
        walked["W"] = _walk(parts, rows, backward_pass(parts, reduces=~every, what="weight"), only=split)
    if not rows.early.any():
        return walked, np.zeros(len(parts.table))
    return _carry(parts, rows, walked, filling_s, gamma)


def _walk(
    parts: StepParts,
    rows: ChunkRows,
    p: PlanPass,
    *,
    alike: tuple[WalkedPass, Bools] | None = None,
    only: Bools | None = None,
) -> WalkedPass:
    """Walk one row of each kind; ``alike`` names a walked pass that is the same for some plans, and which."""
    first, kind = kinds_of_rows(p, rows, only)
    few = rows.some(first)
    passes, gamma = passes_of(parts, p, few), parts.profile.comm_slowdown
    if alike is None:
        return WalkedPass(kind=kind, passes=passes, sums=run(passes, gamma))
    other, where = alike
    new = np.flatnonzero(~where[few.plan])
    sums = Sums(**{name: other.column(name)[first] for name in SUM_NAMES})
    sums.put(new, run(passes.rows(new), gamma))
    return WalkedPass(kind=kind, passes=passes, sums=sums)


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
