"""When and where every action of one plan's pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Bools, Floats, Ints
from knee.engine.timeline.pipelines import recurrence as pipeline
from knee.engine.timeline.pipelines.chunks import first_chunks, rank_chunks
from knee.engine.timeline.pipelines.spans import pipeline_times, transfers
from knee.engine.timeline.step_actions import Actions
from knee.engine.timeline.step_parts import StepParts
from knee.specs.schedules import PIPELINE_SCHEDULES


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
