"""WHAT comes back: one record for a simulated, a measured and a published step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Kind = Literal["simulated", "measured", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per GPU at the worst moment of the step, by part, on the GPU that needs most."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    comm_buffers_bytes: float
    context_bytes: float
    """CUDA context, NCCL's own buffers and what the allocator loses."""

    @property
    def total_bytes(self) -> float:
        """All parts together."""
        return float(sum(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommLoad:
    """One kind of collective in one kind of group, per GPU and step."""

    collective: str
    """all_gather, reduce_scatter, all_reduce, send_recv; straggler_wait is time in them spent waiting for slow GPUs."""
    group: str
    """The mesh axes it runs over: dp_shard, dp_replicate, tp, cp, pp or world; replica is all of one, where they do
    not meet in every step."""
    group_size: int
    calls: float
    """A fraction where it is not in every step."""
    message_bytes: float
    """Bytes of one full (gathered or unreduced) message."""
    load_s: float
    """Summed kernel time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One training step. Times are means over the GPUs of the job, except ``step_s``.

    ``step_s = compute_s + exposed_comm_s + bubble_s + idle_s`` and
    ``comm_s = exposed_comm_s + overlapped_comm_s`` hold for every simulated record.
    """

    kind: Kind
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_frac: float
    flop_convention: str
    compute_load_s: float
    """Summed time of compute kernels."""
    comm_load_s: float
    """Summed time of communication kernels; those that run at the same time count twice."""
    compute_s: float
    """Time with at least one compute kernel running (the union of their intervals)."""
    comm_s: float
    """Time with at least one communication kernel running."""
    exposed_comm_s: float
    """Time with communication and no compute."""
    overlapped_comm_s: float
    """Time with both."""
    bubble_s: float
    """Time a pipeline stage waits for another stage."""
    idle_s: float
    """Time with no kernel that is not a bubble: the host is late."""
    straggler_s: float
    """Part of the exposed communication that is waiting for the slowest GPU."""
    comm_loads: tuple[CommLoad, ...] = ()
    memory_bytes: float
    """Per GPU, on the GPU that needs most."""
    memory: Memory | None = None
    fits: bool
    power_w_per_gpu: float | None
    tokens_per_j: float | None
    usd_per_mtoken: float | None
    assumptions: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``--json``; every key carries its unit."""
        return asdict(self)
