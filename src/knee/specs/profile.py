"""HOW it is run: what a software stack does with the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from knee.errors import SpecError
from knee.specs.hardware import AttentionKernel

Kernels = Literal["eager", "compiled", "fused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A software stack. Belongs to no model and no cluster."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    kernels: Kernels
    """Memory-bound kernels: eager pays each of them, compiled and fused pay what is left after fusion."""
    saves: Kernels | None = None
    """Whose tensors are kept for backward, where a stack's memory is not that of its kernels."""
    attention: AttentionKernel
    launch_s: float
    """Host time to launch one kernel: a step cannot be shorter than its launches."""
    step_overhead_s: float
    """Host work once a step (data, logging, grad-norm sync), GPU idle."""
    gemm_scale: float = 1.0
    """This stack's GEMMs against the GPU's ``gemm_frac``."""

    compute_slowdown_frac: float
    """How much slower compute runs while a collective kernel is resident: kappa, time x (1 + kappa)."""
    comm_slowdown: float
    """How much longer a collective takes while compute runs beside it: gamma, time x gamma, at least 1."""
    hop_scale: float
    """In-training latency of a ring hop over its idle latency."""
    bandwidth_scale_frac: float
    """In-training bandwidth of a collective over its idle bandwidth."""
    tp_overlap_frac: float
    """Share of tensor-parallel communication that runs beside GEMMs; only inside a node."""
    p2p_overlap_frac: float
    """Share of pipeline transfers that runs beside compute."""
    cp_overlap_frac: float
    """Share of context-parallel transfers of KV that runs beside attention (ring; all-gather blocks)."""
    straggler_frac: float
    """Spread of step times among GPUs (one standard deviation over the mean)."""

    copy_frac: float
    """FSDP's copy-out after an all-gather: rate over the HBM streaming rate."""
    reduce_copy_frac: float
    """FSDP's copy-in (and cast) before a reduce-scatter: rate over the HBM streaming rate."""
    reduces_in_flight: int
    """Reduce-scatters that may be outstanding before the compute stream waits; 0 is unlimited."""
    gather_overlap: bool
    """ZeRO-1 gathers parameters beside the next forward, not after the optimizer."""
    ddp_bucket_bytes: float = 25 * 2.0**20
    """Gradient bucket of DDP."""
    pat: bool = False
    """NCCL 2.23 and later: logarithmic all-gather and reduce-scatter in groups with one GPU per node."""

    context_bytes: float
    """GPU memory outside the allocator: CUDA context, NCCL buffers."""
    allocator_frac: float
    """Memory lost to fragmentation, over what is allocated."""

    @property
    def saved(self) -> Kernels:
        """Kernels whose saved tensors count towards memory."""
        return self.saves or self.kernels

    def __post_init__(self) -> None:
        for name in (
            "compute_slowdown_frac",
            "launch_s",
            "step_overhead_s",
            "straggler_frac",
            "allocator_frac",
            "context_bytes",
            "reduces_in_flight",
        ):
            if getattr(self, name) < 0:
                raise SpecError(f"profile.{name} is {getattr(self, name)}; it cannot be negative")
        for name in ("tp_overlap_frac", "p2p_overlap_frac", "cp_overlap_frac"):
            if not 0 <= getattr(self, name) <= 1:
                raise SpecError(f"profile.{name} is {getattr(self, name)}; it must be between 0 and 1")
        for name in ("bandwidth_scale_frac", "copy_frac", "reduce_copy_frac"):
            if not 0 < getattr(self, name) <= 1:
                raise SpecError(f"profile.{name} is {getattr(self, name)}; it must be above 0 and at most 1")
        for name in ("hop_scale", "gemm_scale", "ddp_bucket_bytes"):
            if not getattr(self, name) > 0:
                raise SpecError(f"profile.{name} is {getattr(self, name)}; it must be positive")
        if self.comm_slowdown < 1:
            raise SpecError(f"profile.comm_slowdown is {self.comm_slowdown}; 1 is no slowdown, more is slower")
