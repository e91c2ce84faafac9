"""From priced parts to the duration of a step and what it was made of, as columns over plans."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from knee.base.arrays import Floats
from knee.engine.timeline.chunk_queues import per_rank, times_of
from knee.engine.timeline.passes import SUM_NAMES
from knee.engine.timeline.pipelines.spans import fill_spans, transfers
from knee.engine.timeline.step_actions import Actions
from knee.engine.timeline.step_parts import StepParts
from knee.specs.plan_table import stage_copies


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


def run_step(parts: StepParts, a: Actions, *, fold: bool = True) -> StepColumns:
    """Compose the actions over microbatches and stages."""
    table = parts.table
    m = table.microbatches.astype(np.float64)
    sums = _step_sums(parts, a)
    # every chunk boundary is crossed once forward and once backward by each microbatch
    chunks = table.pp * table.virtual_stages
    waits = 2.0 * (chunks - 1.0) * m / table.pp
    p2p = transfers(parts) * waits
    filling = stage_copies(table) * per_rank(a.rows, a.ranks, a.filling_gather_s * ~a.rows.early) + a.late_gather_s
    span = np.where(table.pp > 1, 0.0, sums["duration_s"])
    fill_spans(parts, a, span, fold)
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
