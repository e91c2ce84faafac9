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

from knee.arrays import Floats, Ints
from knee.timeline.actions import StepParts
from knee.timeline.chunks import ChunkRows
from knee.timeline.passes import SUM_NAMES, Pass, Sums
from knee.timeline.walk import run_passes


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
    parts: StepParts, rows: ChunkRows, p: Pass, work_s: Floats, gamma: float, *, overlaps: bool = True
) -> SpreadQueue:
    """Spread ``work_s`` of each row's upper chunks over the passes ``p`` of the chunks below them.

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
        carried[at] = np.minimum(share[plans[at]], _most_hidden_s(p.rows(at), total[plans[at]], gamma))
    hidden = np.bincount(plans, weights=carried * passes, minlength=n)
    return SpreadQueue(carried_s=carried, exposed_s=np.maximum(total - hidden, 0.0) / parts.table.pp)


def _most_hidden_s(p: Pass, work_s: Floats, gamma: float) -> Floats:
    """What these passes take from a queue that holds all the work."""
    never = np.zeros(len(p.layers), dtype=np.bool_)
    return work_s - run_passes(replace(p, carried_reduce_s=work_s, waits_at_end=never), gamma).left_reduce_s


def carrying(p: Pass, plain: Sums, carried_s: Floats, gamma: float, *, gathers: bool) -> tuple[Pass, Sums]:
    """The passes with what they take over, and their sums: those of ``plain`` where that is nothing."""
    loaded = replace(p, carried_reduce_s=carried_s)
    sums = Sums(**{name: getattr(plain, name).copy() for name in SUM_NAMES})
    at = np.flatnonzero(carried_s)
    if len(at):
        walked = run_passes(loaded.rows(at), gamma)
        for name in SUM_NAMES:
            getattr(sums, name)[at] = getattr(walked, name)
    if gathers:
        sums.gather_load_s, sums.reduce_load_s = sums.gather_load_s + sums.reduce_load_s, 0.0 * sums.reduce_load_s
    return loaded, sums


def left_by_upper_chunks(p: Pass, rows: ChunkRows, gamma: float) -> tuple[Floats, Floats]:
    """Reductions that each row's upper chunks leave in the queue when they end, and the replicas' all-reduces."""
    reduces, replicas = np.zeros(len(rows)), np.zeros(len(rows))
    upper = np.flatnonzero(rows.early)
    left = run_passes(p.rows(upper), gamma)
    reduces[upper], replicas[upper] = left.left_reduce_s, left.left_replicate_s
    return reduces, replicas


def per_rank(rows: ChunkRows, ranks: Ints, seconds: Floats) -> Floats:
    """The mean over a plan's ranks, of chunks that each have ``seconds``."""
    return np.bincount(rows.plan, weights=seconds * rows.count, minlength=len(ranks)) / ranks


def with_group_passes(
    per_row: Floats, parts: StepParts, rows: ChunkRows, sums: Mapping[str, Sums], name: str
) -> Floats:
    """A row's sum over the step, with the passes of the first and last group in place of as many others."""
    if "B_late" not in sums:
        return per_row
    more = getattr(sums["B_late"], name) - getattr(sums["B"], name)
    more = more + getattr(sums["F_fill"], name) - getattr(sums["F"], name)
    extra: Floats = more * group_passes(parts)[rows.plan] * rows.below_top / rows.count
    return per_row + extra
