"""The step of one plan as few kinds of actions, each recorded once with whole layers, and the times of each.

It is the same walk as the events' (``step_events``). A pipeline of 8 stages and 64 microbatches has 400,000 kernels,
and 12 kinds of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from knee.base.arrays import Floats
from knee.engine.events import EventLog, Events
from knee.engine.timeline.pipelines import recurrence as pipeline
from knee.engine.timeline.pipelines.spans import placed_actions
from knee.engine.timeline.rank_groups import group, neighbours
from knee.engine.timeline.step_actions import Actions
from knee.engine.timeline.step_events import (
    P2P,
    RecordedWalk,
    Scripts,
    Tail,
    axes_that_meet,
    play,
    play_filling,
    play_tail,
    record_action,
)
from knee.engine.timeline.step_parts import StepParts, world_name

WORDS = {"F": "forward", "B": "backward", "W": "weight gradients"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedAction:
    """The kernels of one kind of action from its start on, and when it starts."""

    name: str
    """forward, backward, weight gradients, gathers (before the first) or end of the step."""
    events: Events
    """Stages whose actions are alike share one; groups are as the first of them sees theirs."""
    starts_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutline:
    """One GPU of one pipeline stage."""

    actions: tuple[RepeatedAction, ...]
    end_s: float
    """When its last kernel ends."""


def stage_outlines(parts: StepParts, a: Actions, scripts: Scripts, tail: Tail) -> list[StageOutline]:
    """The whole step of plan 0, for each pipeline stage."""
    stages = int(parts.table.pp[0])
    recorded = cache(partial(record_action, parts, a))
    actions, ends = _serial(parts, a, scripts, recorded) if stages == 1 else _pipeline(parts, a, scripts, recorded)
    table = parts.table
    world = group(parts, world_name(table), axes_that_meet(table), 0)
    outlines = []
    for stage, own in enumerate(actions):
        log = EventLog()
        play_tail(log, tail, world, parts, stage, 0.0)
        after = log.freeze()
        own.append(RepeatedAction(name="end of the step", events=after, starts_s=np.array([ends])))
        outlines.append(StageOutline(actions=tuple(own), end_s=ends + after.step_s))
    return outlines


def _serial(
    parts: StepParts, a: Actions, scripts: Scripts, recorded: Callable[[str, int], RecordedWalk]
) -> tuple[list[list[RepeatedAction]], float]:
    """Without a pipeline: microbatch after microbatch."""
    row, m = int(a.row_of[0, 0]), int(parts.table.microbatches[0])
    names = ["F_first", *(["B", "F"] if m > 1 else []), "B_last"]
    logs, lasts = {name: EventLog() for name in names}, {}
    for name, log in logs.items():
        lasts[name] = play(log, recorded(name, row), scripts[0][(name, row)], 0.0)
    every = lasts["F_first"] + lasts.get("B", 0.0)
    between = lasts.get("F", 0.0) + lasts.get("B", 0.0)
    middle = np.arange(max(m - 1, 0))
    starts = {
        "F_first": np.zeros(1),
        "B": lasts["F_first"] + between * middle,
        "F": every + between * middle,
        "B_last": np.array([every + between * (m - 2) + lasts["F"] if m > 1 else lasts["F_first"]]),
    }
    found = [
        RepeatedAction(name=WORDS[name[0]], events=log.freeze(), starts_s=starts[name]) for name, log in logs.items()
    ]
    return [found], float(starts["B_last"][0]) + lasts["B_last"]


def _pipeline(
    parts: StepParts, a: Actions, scripts: Scripts, recorded: Callable[[str, int], RecordedWalk]
) -> tuple[list[list[RepeatedAction]], float]:
    """With one: the actions of a rank by kind, by chunk and by whether they wait for a neighbour."""
    placed = placed_actions(parts, a)
    waits = placed.receives & (placed.wait_s > 0)
    stages, names, rows = len(placed.filled), pipeline.KINDS, len(a.rows)
    code = ((placed.rank * len(names) + placed.kind) * rows + placed.row) * 2 + waits
    order = np.argsort(code, kind="stable")
    firsts = np.flatnonzero(np.diff(code[order], prepend=-1))
    found: list[list[RepeatedAction]] = [_filling(parts, a, scripts, placed.filled, rank) for rank in range(stages)]
    alike: dict[tuple[str, int, bool], Events] = {}
    for some in np.split(order, firsts[1:]):
        i = int(some[0])
        rank, row, action, waited = int(placed.rank[i]), int(placed.row[i]), names[int(placed.kind[i])], bool(waits[i])
        if (action, row, waited) not in alike:
            log = EventLog()
            if waited:
                pair = neighbours(parts, rank, int(placed.sender[i]))
                log.comm("send_recv", pair, 0.0, placed.wait_s, float(parts.traffic.pp_bytes[0]), "bf16", P2P)
            play(log, recorded(action, row), scripts[rank][(action, row)], placed.wait_s if waited else 0.0)
            alike[action, row, waited] = log.freeze()
        events = alike[action, row, waited]
        found[rank].append(RepeatedAction(name=WORDS[action[0]], events=events, starts_s=placed.start_s[some]))
    return found, placed.end_s


def _filling(
    parts: StepParts, a: Actions, scripts: Scripts, filled: Sequence[Sequence[int]], rank: int
) -> list[RepeatedAction]:
    log = EventLog()
    play_filling(log, parts, a, scripts[rank], filled[rank])
    return [RepeatedAction(name="gathers", events=log.freeze(), starts_s=np.zeros(1))] if len(log) else []
