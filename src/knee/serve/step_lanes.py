"""The kernels of a step in lanes, those too short to see joined with their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

from knee.metrics.intervals import merge
from knee.record.events import COLLECTIVES, Events
from knee.single import events_of
from knee.specs.job import Job

MOST_KERNELS = 20_000
MOST_INTERVALS = 4_000


def lanes_of(job: Job) -> list[dict[str, Any]]:
    """One GPU of every pipeline stage: a lane for compute, one for each kind of collective and one for what is
    exposed. An interval is [start_s, end_s, name, exposed]."""
    if job.microbatches * job.model.layers * 12 > MOST_KERNELS:
        return []
    return [lane for stage, events in enumerate(events_of(job)) for lane in _stage(events, stage)]


def _stage(events: Events, stage: int) -> list[dict[str, Any]]:
    compute = merge(events.start_s[~events.is_comm], events.end_s[~events.is_comm])
    kinds: dict[tuple[str, str], list[int]] = {}
    for i in range(len(events)):
        if not events.is_comm[i]:
            kinds.setdefault(("compute", "compute"), []).append(i)
        else:
            name = COLLECTIVES[events.collective[i]] if events.collective[i] >= 0 else "other"
            group = events.groups[events.group_id[i]].name if events.group_id[i] >= 0 else ""
            kinds.setdefault((name, group), []).append(i)
    lanes = []
    for (kind, group), rows in kinds.items():
        intervals = []
        for i in rows:
            start, end = float(events.start_s[i]), float(events.start_s[i] + events.duration_s[i])
            exposed = kind != "compute" and not _covered(compute, start, end)
            intervals.append([start, end, events.names[events.name_id[i]], exposed])
        lanes.append({"stage": stage, "kind": kind, "group": group, "intervals": intervals})
    return lanes


def _covered(merged: Any, start: float, end: float) -> bool:
    starts, ends = merged
    at = int(np.searchsorted(starts, start, side="right")) - 1
    return at >= 0 and bool(ends[at] >= end - 1e-9)
