"""Where the time of one step went on one GPU: the same function for simulated and for traced events."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from knee.arrays import Floats
from knee.metrics.intervals import Times, exposed_and_overlapped_s, union_s
from knee.record.events import COLLECTIVES, Events

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


class Unions(NamedTuple):
    """Times of kernels that compute and kernels that communicate, in the unit of their intervals."""

    compute: float
    exposed: float
    """Communication and no compute."""
    overlapped: float
    """Both."""


def unions_of(compute: tuple[Times, Times], comm: tuple[Times, Times]) -> Unions:
    """From (starts, ends) of each kind."""
    exposed, overlapped = exposed_and_overlapped_s(*comm, *compute)
    return Unions(compute=union_s(*compute), exposed=exposed, overlapped=overlapped)


def measure(events: Events) -> StepBreakdown:
    """Loads (sums of kernel times) and times (unions of their intervals) of one step."""
    comm, end_s = events.is_comm, events.end_s
    found = unions_of((events.start_s[~comm], end_s[~comm]), (events.start_s[comm], end_s[comm]))
    return StepBreakdown(
        compute_load_s=math.fsum(events.duration_s[~comm]),
        comm_load_s=math.fsum(events.duration_s[comm]),
        compute_s=found.compute,
        comm_s=found.exposed + found.overlapped,
        exposed_comm_s=found.exposed,
        overlapped_comm_s=found.overlapped,
        # A last kernel may pass the end of the step by float64 rounding, never by more (Events checks).
        waiting_s=max(0.0, events.step_s - (found.compute + found.exposed)),
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
