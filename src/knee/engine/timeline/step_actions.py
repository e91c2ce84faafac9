"""The actions of a step: what each kind of chunk does in its first, middle and last microbatch, walked.

A plan has few kinds of chunks (see ``pipelines.chunks``), and each kind few actions; those are the columns that are
walked, not stages or microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats, Ints
from knee.engine.timeline.chunk_queues import carrying, per_rank, run_together, spread
from knee.engine.timeline.passes import SUM_NAMES, Sums, WalkedPass
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
from knee.engine.workload.layers_per_stage import Cuts


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
    few = {name: rows.some(first) for name, (first, _) in kinds.items()}
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
    sums = replace(
        filled.sums,
        gather_load_s=filled.sums.gather_load_s + filled.sums.reduce_load_s,
        reduce_load_s=0.0 * filled.sums.reduce_load_s,
    )
    late = carrying(walked["B"], reduces.carried_s, none, gamma)
    more = {"B_last": ended, "B_late": late, "F_fill": replace(filled, sums=sums)}
    return walked | more, filling.exposed_s
