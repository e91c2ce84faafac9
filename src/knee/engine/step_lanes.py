"""A step in lanes: compute, each kind of collective and what is exposed, for one GPU of every pipeline stage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.engine.events import COLLECTIVES, Events
from knee.engine.intervals import covered, merge, outside
from knee.engine.one_job import outline_of
from knee.engine.simulator import EvaluatedStep
from knee.engine.timeline.pipelines.spans import actions_in
from knee.engine.timeline.step_events import RepeatedAction, StageOutline

MOST_ACTIONS = 50_000
"""Most actions of a pipeline that is drawn: more take longer than anybody waits."""
MOST_INTERVALS = 5_000
"""Most intervals of one answer; beyond, what counts as short grows until there are no more."""
FINEST = 4_000
"""An interval shorter than this part of the step is joined with its neighbour."""
EXPOSED = "exposed"


@dataclass(slots=True, kw_only=True)
class LaneColumns:
    """The intervals of one lane, in any order."""

    start_s: Floats
    end_s: Floats
    name: Ints
    """Index into the names of the drawing."""
    exposed_s: Floats
    """Time of each without compute beside it."""
    kernels: Ints
    """How many kernels each is."""


Key = tuple[str, str, int]
"""Kind, group and its ranks."""


def lanes_of(step: EvaluatedStep) -> dict[str, Any]:
    """Return the lanes of plan 0. An interval is [start_s, end_s, name, exposed share, kernels in it]."""
    if int(step.table.pp[0]) > 1 and actions_in(step.parts) > MOST_ACTIONS:
        note = f"a pipeline with more than {MOST_ACTIONS:,} actions is not drawn"
        return {"lanes": [], "lanes_note": note, "end_s": float(step.results.step_s[0])}
    stages = outline_of(step)
    kernels = sum(len(action.events) * len(action.starts_s) for stage in stages for action in stage.actions)
    names: dict[str, int] = {}
    known: dict[int, dict[Key, LaneColumns]] = {}
    drawn = [_stage(stage, names, known, whole=kernels > MOST_INTERVALS) for stage in stages]
    end_s = max(max(stage.end_s for stage in stages), float(step.results.step_s[0]))
    for compute in (True, False):
        _join(drawn, {key for stage in drawn for key in stage if (key[0] == "compute") == compute}, end_s / FINEST)
    words = list(names)
    lanes = [
        {"stage": number, "kind": kind, "group": group, "group_size": size, "intervals": _rows(lane, words)}
        for number, stage in enumerate(drawn)
        for (kind, group, size), lane in stage.items()
    ]
    return {"lanes": lanes, "lanes_note": None, "end_s": end_s}


def _join(stages: Sequence[dict[Key, LaneColumns]], keys: Collection[Key], short_s: float) -> None:
    """Join neighbours in these lanes until their intervals are half of all that may be."""
    while sum(len(stage[key].start_s) for stage in stages for key in stage if key in keys) > MOST_INTERVALS // 2:
        for stage in stages:
            stage |= {key: _joined(lane, short_s) for key, lane in stage.items() if key in keys}
        short_s *= 2.0


def _stage(
    stage: StageOutline, names: dict[str, int], known: dict[int, dict[Key, LaneColumns]], *, whole: bool
) -> dict[Key, LaneColumns]:
    """Every action at every start; ``whole`` draws an action as one interval in each lane."""
    parts: dict[Key, list[LaneColumns]] = {}
    for action in stage.actions:
        if id(action.events) not in known:
            lanes = _action(action.events, names)
            if whole:
                name = names.setdefault(action.name, len(names))
                lanes = {key: _one(lane, name if key[0] == "compute" else None) for key, lane in lanes.items()}
            known[id(action.events)] = lanes
        for key, lane in known[id(action.events)].items():
            parts.setdefault(key, []).append(_at(lane, action))
    order = {"compute": 0, EXPOSED: 2}
    keys = sorted(parts, key=lambda key: (order.get(key[0], 1), key))
    return {key: _together(parts[key]) for key in keys}


def _one(lane: LaneColumns, name: int | None) -> LaneColumns:
    """All intervals of an action as one, under a name of its own or that of the longest."""
    longest = int(lane.name[np.argmax(lane.end_s - lane.start_s)])
    return LaneColumns(
        start_s=lane.start_s.min(keepdims=True),
        end_s=lane.end_s.max(keepdims=True),
        name=np.array([longest if name is None else name]),
        exposed_s=lane.exposed_s.sum(keepdims=True),
        kernels=np.array([len(lane.name)]),
    )


def _action(events: Events, names: dict[str, int]) -> dict[Key, LaneColumns]:
    """The lanes of one action, from its start on."""
    comm, start, end = events.is_comm, events.start_s, events.end_s
    ids = np.array([names.setdefault(name, len(names)) for name in events.names], dtype=np.int64)
    busy = merge(start[~comm], end[~comm])
    found: dict[Key, LaneColumns] = {}
    if (~comm).any():
        found["compute", "", 1] = _lane(start[~comm], end[~comm], ids[events.name_id[~comm]], None)
    code = events.collective.astype(np.int64) * (len(events.groups) + 1) + events.group_id
    for one in np.unique(code[comm]).tolist():
        rows = np.flatnonzero(comm & (code == one))
        i = int(rows[0])
        group = events.groups[int(events.group_id[i])]
        key = (COLLECTIVES[int(events.collective[i])], group.name, group.size)
        hidden = covered(end[rows], *busy) - covered(start[rows], *busy)
        found[key] = _lane(start[rows], end[rows], ids[events.name_id[rows]], end[rows] - start[rows] - hidden)
    alone = outside((start[comm], end[comm]), busy)
    if len(alone[0]):
        name = np.full(len(alone[0]), names.setdefault("communication without compute", len(names)))
        found[EXPOSED, "", 1] = _lane(*alone, name, alone[1] - alone[0])
    return found


def _lane(start: Floats, end: Floats, name: Ints, exposed: Floats | None) -> LaneColumns:
    count = len(start)
    return LaneColumns(
        start_s=start,
        end_s=end,
        name=name,
        exposed_s=np.zeros(count) if exposed is None else exposed,
        kernels=np.ones(count, dtype=np.int64),
    )


def _at(lane: LaneColumns, action: RepeatedAction) -> LaneColumns:
    times = len(action.starts_s)
    return LaneColumns(
        start_s=(action.starts_s[:, None] + lane.start_s).ravel(),
        end_s=(action.starts_s[:, None] + lane.end_s).ravel(),
        name=np.tile(lane.name, times),
        exposed_s=np.tile(lane.exposed_s, times),
        kernels=np.tile(lane.kernels, times),
    )


def _together(parts: list[LaneColumns]) -> LaneColumns:
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in LaneColumns.__slots__}
    order = np.argsort(columns["start_s"], kind="stable")
    return LaneColumns(**{name: column[order] for name, column in columns.items()})


def _joined(lane: LaneColumns, short_s: float) -> LaneColumns:
    """Neighbours as one where either is short and so is the gap between them."""
    length = lane.end_s - lane.start_s
    short = length < short_s
    near = (lane.start_s[1:] - lane.end_s[:-1] < short_s) & (short[1:] | short[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~near)))
    longest = _longest(length, first)
    return LaneColumns(
        start_s=lane.start_s[first],
        end_s=np.maximum.reduceat(lane.end_s, first),
        name=lane.name[longest],
        exposed_s=np.add.reduceat(lane.exposed_s, first),
        kernels=np.add.reduceat(lane.kernels, first),
    )


def _longest(length: Floats, first: Ints) -> Ints:
    """Of each stretch of rows, the row of the longest, after which what is joined is named."""
    group = np.zeros(len(length), dtype=np.int64)
    group[first[1:]] = 1
    order = np.lexsort((length, np.cumsum(group)))
    last: Ints = order[np.append(first[1:], len(length)) - 1]
    return last


def _rows(lane: LaneColumns, words: list[str]) -> list[list[Any]]:
    length = np.maximum(lane.end_s - lane.start_s, 1e-15)
    shares = np.clip(np.round(lane.exposed_s / length, 3), 0.0, 1.0)
    columns = (np.round(lane.start_s, 9), np.round(lane.end_s, 9), lane.name, shares, lane.kernels)
    return [
        [start, end, words[name], share, n]
        for start, end, name, share, n in zip(*(column.tolist() for column in columns), strict=True)
    ]
