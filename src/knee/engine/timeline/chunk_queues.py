"""Reductions and gathers of interleaved pipelines: what one chunk leaves runs beside the rank's other chunks.

A rank of an interleaved pipeline works through its chunks in groups of as many microbatches as there are ranks. When a
chunk has ended its last backward, its gradients are reduced while the same microbatches go backward through the chunk
below; when the step begins, a chunk's parameters are gathered while the first microbatches go forward through the chunk
below. Both are spread over those passes as far as the passes can hide them; the rest is exposed at the end or start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Floats, Ints, equal_rows
from knee.engine.timeline.closed_forms import run
from knee.engine.timeline.passes import SUM_NAMES, Pass, Sums, WalkedPass, joined
from knee.engine.timeline.pipelines.chunks import ChunkRows
from knee.engine.timeline.step_parts import StepParts
from knee.specs.plan_table import stage_copies


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
    sums = Sums(**{name: np.concatenate([getattr(w.sums, name), getattr(walked, name)]) for name in SUM_NAMES})
    kinds = w.kind.copy()
    kinds[at] = len(w.passes.layers) + kind
    return WalkedPass(kind=kinds, passes=joined(w.passes, loaded), sums=sums)


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
