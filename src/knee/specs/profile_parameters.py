"""What runs can determine of a software stack and a fabric: each parameter with its bounds and how far it may stray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

from knee.specs.hardware import Cluster
from knee.specs.profile import Profile

Values = Mapping[str, float]
"""Path of a parameter (``profile.launch_s``) -> value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A value that may be fitted."""

    path: str
    low: float
    high: float
    spread: float
    """One standard deviation of the prior around the value that is there: of the logarithm, or of a share itself."""
    meaning: str
    is_share: bool = False
    """Between 0 and 1, and searched as it is; others are positive, and searched by their logarithm."""
    is_floor: bool = False
    """Says nothing until it is the longest: tried over its whole range before slopes are followed."""

    def inside(self, value: float) -> float:
        """The value, or the nearest bound."""
        return min(max(value, self.low), self.high)

    def scaled(self, value: float) -> float:
        """Position in which one is one standard deviation of the prior."""
        return (value if self.is_share else log(value)) / self.spread

    def value(self, position: float) -> float:
        """The value at a position."""
        return self.inside(position * self.spread if self.is_share else exp(position * self.spread))


PARAMETERS = (
    Parameter(
        path="profile.launch_s",
        is_floor=True,
        low=1e-6,
        high=150e-6,
        spread=1.0,
        meaning="host time to launch a kernel",
    ),
    Parameter(
        path="profile.issue_s",
        is_floor=True,
        low=1e-6,
        high=1e-3,
        spread=1.5,
        meaning="host time to issue a tensor-parallel collective",
    ),
    Parameter(
        path="profile.crowded_issue_s",
        is_floor=True,
        low=1e-6,
        high=2e-3,
        spread=2.0,
        meaning="what each rank adds to that while pipeline transfers cross nodes",
    ),
    Parameter(path="profile.step_overhead_s", low=1e-3, high=0.5, spread=0.7, meaning="host work once a step"),
    Parameter(
        path="profile.gemm_scale",
        low=0.8,
        high=1.04,
        spread=0.05,
        meaning="rate of the stack's matrix products over the GPU's own",
    ),
    Parameter(
        path="profile.stream_scale",
        low=0.3,
        high=2.5,
        spread=0.3,
        meaning="time of the stack's memory-bound kernels over its kernel set's",
    ),
    Parameter(
        path="profile.compute_slowdown_frac",
        low=0.0,
        high=0.4,
        spread=0.1,
        is_share=True,
        meaning="slowdown of compute beside collectives",
    ),
    Parameter(
        path="profile.hop_scale",
        low=1.0,
        high=4.0,
        spread=0.3,
        meaning="in-training latency of a hop over its idle latency",
    ),
    Parameter(
        path="profile.bandwidth_scale_frac",
        low=0.4,
        high=1.0,
        spread=0.15,
        is_share=True,
        meaning="in-training bandwidth between nodes over its idle bandwidth",
    ),
    Parameter(
        path="profile.tp_overlap_frac",
        low=0.0,
        high=0.98,
        spread=0.2,
        is_share=True,
        meaning="share of tensor-parallel communication hidden beside products",
    ),
    Parameter(
        path="profile.p2p_overlap_frac",
        low=0.0,
        high=1.0,
        spread=0.3,
        is_share=True,
        meaning="share of pipeline transfers hidden beside compute",
    ),
    Parameter(
        path="profile.cp_overlap_frac",
        low=0.0,
        high=1.0,
        spread=0.3,
        is_share=True,
        meaning="share of a context-parallel ring's transfers hidden beside attention",
    ),
    Parameter(
        path="profile.straggler_frac",
        low=0.0,
        high=0.05,
        spread=0.01,
        is_share=True,
        meaning="spread of step times among GPUs",
    ),
    Parameter(
        path="profile.context_bytes", low=0.3e9, high=12e9, spread=0.5, meaning="GPU memory outside the allocator"
    ),
    Parameter(
        path="profile.allocator_frac",
        low=0.0,
        high=0.3,
        spread=0.05,
        is_share=True,
        meaning="memory lost to fragmentation",
    ),
)
"""Every parameter that runs may determine."""


def applied(cluster: Cluster, profile: Profile, values: Values) -> tuple[Cluster, Profile]:
    """Cluster and profile with these values."""
    rooms: dict[str, dict[str, Any]] = {"profile": {}, "gpu": {}, "node": {}, "fabric": {}}
    for path, value in values.items():
        room, _, name = path.partition(".")
        rooms[room][name] = value
    parts = {room: replace(getattr(cluster, room), **rooms[room]) for room in ("gpu", "node", "fabric") if rooms[room]}
    return replace(cluster, **parts) if parts else cluster, replace(profile, **rooms["profile"])


def value_of(cluster: Cluster, profile: Profile, path: str) -> float:
    """What a parameter is now."""
    room, _, name = path.partition(".")
    where = {"profile": profile, "gpu": cluster.gpu, "node": cluster.node, "fabric": cluster.fabric}[room]
    return float(getattr(where, name))
