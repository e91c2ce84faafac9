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


_ROWS = (
    ("launch_s", "floor", 1e-6, 150e-6, 1.0, "host time to launch a kernel"),
    ("issue_s", "floor", 1e-6, 1e-3, 1.5, "host time to issue a tensor-parallel collective"),
    ("crowded_issue_s", "floor", 1e-6, 2e-3, 2.0, "additional host time per rank while pipeline transfers cross nodes"),
    ("step_overhead_s", "scale", 1e-3, 0.5, 0.7, "host work per step"),
    ("gemm_scale", "scale", 0.8, 1.04, 0.05, "rate of the stack's matrix products relative to the GPU's rate"),
    ("attention_scale", "scale", 0.25, 4.0, 0.3, "rate of the stack's attention kernels relative to the GPU's rate"),
    ("stream_scale", "scale", 0.3, 2.5, 0.3, "time of the stack's memory-bound kernels relative to its kernel set"),
    ("compute_slowdown_frac", "share", 0.0, 0.4, 0.1, "slowdown of compute while collectives run"),
    ("hop_scale", "scale", 1.0, 4.0, 0.3, "latency of a hop in training relative to an idle network"),
    (
        "bandwidth_scale_frac",
        "share",
        0.4,
        1.0,
        0.15,
        "bandwidth between nodes in training relative to an idle network",
    ),
    (
        "tp_overlap_frac",
        "share",
        0.0,
        0.98,
        0.2,
        "share of tensor-parallel communication overlapped with matrix products",
    ),
    ("p2p_overlap_frac", "share", 0.0, 1.0, 0.3, "share of pipeline transfers overlapped with compute"),
    ("cp_overlap_frac", "share", 0.0, 1.0, 0.3, "share of context-parallel ring transfers overlapped with attention"),
    ("skew_s", "scale", 0.05e-3, 5e-3, 0.7, "spread of the times at which ranks arrive at collectives between nodes"),
    ("straggler_frac", "share", 0.0, 0.05, 0.01, "spread of step times among GPUs"),
    ("context_bytes", "scale", 0.3e9, 12e9, 0.5, "GPU memory outside the PyTorch allocator"),
    ("allocator_frac", "share", 0.0, 0.3, 0.05, "memory lost to fragmentation"),
)
PARAMETERS = tuple(
    Parameter(
        path=f"profile.{name}",
        low=low,
        high=high,
        spread=spread,
        meaning=meaning,
        is_share=kind == "share",
        is_floor=kind == "floor",
    )
    for name, kind, low, high, spread, meaning in _ROWS
)
"""Every parameter that runs may determine."""
OF_MEMORY = ("profile.context_bytes", "profile.allocator_frac")
"""Those that change memory and no time."""


def applied(cluster: Cluster, profile: Profile, values: Values) -> tuple[Cluster, Profile]:
    """Cluster and profile with these values."""
    changes: dict[str, dict[str, Any]] = {"profile": {}, "gpu": {}, "node": {}, "fabric": {}}
    for path, value in values.items():
        part, _, name = path.partition(".")
        changes[part][name] = value
    parts = {
        part: replace(getattr(cluster, part), **changes[part]) for part in ("gpu", "node", "fabric") if changes[part]
    }
    return replace(cluster, **parts) if parts else cluster, replace(profile, **changes["profile"])


def value_of(cluster: Cluster, profile: Profile, path: str) -> float:
    """What a parameter is now."""
    part, _, name = path.partition(".")
    where = {"profile": profile, "gpu": cluster.gpu, "node": cluster.node, "fabric": cluster.fabric}[part]
    return float(getattr(where, name))
