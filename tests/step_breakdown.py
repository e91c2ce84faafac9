"""Where the time of one step went on one GPU, by sweeping its events: what sums and readers are held against.

Only differences of neighbouring times are ever summed, and they are summed exactly (``math.fsum``), so a
short overlap beside long intervals keeps its digits. Intervals may come in any order and may overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.events import COLLECTIVES, Events, Times, merge

UNKNOWN = "unknown"
"""Collective or group of a communication kernel that does not say."""


class StreamLoad(NamedTuple):
    """Kernels of one collective in one group."""

    calls: int
    load_s: float
    """Summed kernel time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdown:
    """Times of one GPU in one step.

    ``comm_s = exposed_comm_s + overlapped_comm_s`` and ``step_s = compute_s + exposed_comm_s + waiting_s``.
    """

    compute_load_s: float
    """Summed time of compute kernels."""
    comm_load_s: float
    """Summed time of communication kernels; those that run at the same time count twice."""
    compute_s: float
    """Time with at least one compute kernel."""
    comm_s: float
    """Time with at least one communication kernel."""
    exposed_comm_s: float
    """Time with communication and no compute."""
    overlapped_comm_s: float
    """Time with both."""
    waiting_s: float
    """Time with no kernel at all."""
    loads: dict[tuple[str, str], StreamLoad]
    """(collective, group name) -> calls and summed kernel time."""


def measure(events: Events) -> StepBreakdown:
    """Loads (sums of kernel times) and times (unions of their intervals) of one step."""
    is_comm, end_s = events.is_comm, events.end_s
    compute = events.start_s[~is_comm], end_s[~is_comm]
    comm = events.start_s[is_comm], end_s[is_comm]
    compute_s, exposed, overlapped = union_s(*compute), exposed_s(*comm, *compute), overlap_s(*comm, *compute)
    return StepBreakdown(
        compute_load_s=math.fsum(events.duration_s[~is_comm]),
        comm_load_s=math.fsum(events.duration_s[is_comm]),
        compute_s=compute_s,
        comm_s=exposed + overlapped,
        exposed_comm_s=exposed,
        overlapped_comm_s=overlapped,
        # A last kernel may pass the end of the step by float64 rounding, never by more (Events checks).
        waiting_s=max(0.0, events.step_s - (compute_s + exposed)),
        loads=_loads(events),
    )


def _loads(events: Events) -> dict[tuple[str, str], StreamLoad]:
    """Calls and summed time by collective and group name, in order of first start."""
    comm = events.is_comm
    duration_s = events.duration_s[comm]
    kinds = np.stack((events.collective[comm], events.group_id[comm]))
    pairs, first, inverse = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    parts: dict[tuple[str, str], list[Floats]] = {}
    for column in np.argsort(first):
        collective, group = (int(value) for value in pairs[:, column])
        # Groups of the same name (two tp groups seen by one rank, say) are one entry.
        key = (
            COLLECTIVES[collective] if collective >= 0 else UNKNOWN,
            events.groups[group].name if group >= 0 else UNKNOWN,
        )
        parts.setdefault(key, []).append(duration_s[inverse.ravel() == column])
    return {key: StreamLoad(sum(map(len, p)), math.fsum(np.concatenate(p))) for key, p in parts.items()}


def union_s(start: Times, end: Times) -> float:
    """Time with at least one interval active."""
    begin, finish = merge(start, end)
    return math.fsum(finish - begin)


def overlap_s(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> float:
    """Time with both an interval of A and an interval of B active."""
    length, in_a, in_b = _sweep(a_start, a_end, b_start, b_end)
    return math.fsum(length[in_a & in_b])


def exposed_s(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> float:
    """Time with an interval of A and no interval of B active."""
    length, in_a, in_b = _sweep(a_start, a_end, b_start, b_end)
    return math.fsum(length[in_a & ~in_b])


def _sweep(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> tuple[Times, Bools, Bools]:
    """Cut time at every border of either set: length of each piece, and whether it lies in A and in B."""
    a, b = merge(a_start, a_end), merge(b_start, b_end)
    borders = np.sort(np.concatenate((*a, *b)))  # a border of both makes a piece of no length
    left = borders[:-1]
    return np.diff(borders), _inside(left, *a), _inside(left, *b)


def _inside(time: Times, start: Times, end: Times) -> Bools:
    """Whether each time lies in ``[start, end)`` of one of the disjoint, sorted intervals."""
    begun = np.searchsorted(start, time, side="right")
    ended = np.searchsorted(end, time, side="right")
    active: Bools = begun > ended
    return active
