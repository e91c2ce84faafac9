"""HOW it is run: what a software stack does with the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from knee.errors import out_of_range
from knee.specs.hardware import AttentionKernel

Kernels = Literal["eager", "native", "fused_norm", "flash_attn", "compiled", "native_compiled", "fused"]
Pat = Literal["off", "nccl", "any"]
LEAST_KEPT_BYTES, MOST_KEPT_BYTES = 2.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A software stack. Belongs to no model and no cluster."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    """Name of the profile; default: the name of the file."""
    kernels: Kernels
    """Memory-bound kernels: eager pays each of them, native has torch's own fused ones, fused_norm and flash_attn have
    some of others, compiled and fused pay what is left after fusion."""
    saves: Kernels | None = None
    """Whose tensors are kept for backward, where a stack's memory is not that of its kernels."""
    attention: AttentionKernel
    """Attention kernel that the stack uses."""
    launch_s: float
    """Host time to launch one kernel: a step cannot be shorter than its launches."""
    issue_s: float = 0.0
    """Host time to issue one tensor-parallel collective, its launch apart."""
    crowded_issue_s: float = 0.0
    """What each rank of a tensor-parallel group adds to that while pipeline transfers cross nodes: the threads that
    serve them compete with the one that launches."""
    step_overhead_s: float
    """Host work once a step (data, logging, grad-norm sync), GPU idle."""
    gemm_scale: float = 1.0
    """This stack's GEMMs against the GPU's own."""
    attention_scale: float = 1.0
    """This stack's attention kernels against the GPU's own of that name."""
    stream_scale: float = 1.0
    """Time of this stack's memory-bound kernels over that of its kernel set."""

    compute_slowdown_frac: float
    """How much slower compute runs during a collective at an H100 node's rates: kappa, time x (1 + kappa). Slower
    networks keep fewer SMs and less memory busy, and so slow compute less."""
    comm_slowdown: float
    """How much longer a collective takes while compute runs: gamma, time x gamma, at least 1."""
    hop_scale: float
    """In-training latency of a ring hop over its idle latency."""
    bandwidth_scale_frac: float
    """In-training bandwidth between nodes over its idle bandwidth."""
    tp_overlap_frac: float
    """Share of tensor-parallel communication that overlaps with GEMMs; only inside a node."""
    p2p_overlap_frac: float
    """Share of pipeline transfers that overlaps with compute."""
    cp_overlap_frac: float
    """Share of context-parallel transfers of KV that overlaps with attention (ring; all-gather blocks)."""
    skew_s: float = 0.0
    """One standard deviation of the ranks' arrival at a collective between nodes; each waits for the last."""
    straggler_frac: float
    """Spread of step times among GPUs (one standard deviation over the mean)."""

    copy_frac: float
    """FSDP's copy-out after an all-gather: rate over the HBM streaming rate."""
    reduce_copy_frac: float
    """FSDP's copy-in (and cast) before a reduce-scatter: rate over the HBM streaming rate."""
    reduces_in_flight: int
    """Reduce-scatters that may be outstanding before the compute stream waits; 0 is unlimited."""
    reduce_overlap: bool = True
    """DDP and ZeRO-1 reduce gradients during the backward pass, not after it."""
    gather_overlap: bool
    """ZeRO-1 gathers parameters during the next forward pass, not after the optimizer."""
    deals_by_cost: bool = False
    """Pipeline stages get layers by cost, the output projection counted, not by number."""
    scatters_sends: bool = False
    """Pipeline sends are cut over the tensor-parallel group without sequence parallelism too, and gathered after."""
    ddp_bucket_bytes: float = 25 * 2.0**20
    """Gradient bucket of DDP."""
    pat: Pat = "off"
    """Logarithmic all-gather and reduce-scatter where they are faster than a ring: "nccl" in groups with one GPU per
    node, as NCCL has them since 2.23; "any", a what-if, in all groups that leave a node, as no NCCL up to 2.30 has."""

    context_bytes: float
    """GPU memory outside the allocator: CUDA context, NCCL buffers."""
    allocator_frac: float
    """Memory lost to fragmentation, over what is allocated."""
    rmsnorm_bytes: float | None = None
    """Kept for backward by an RMSNorm for each element of its input; None: what its kernels keep."""
    logit_bytes: float | None = None
    """Held for each logit when backward begins; None: what its kernels hold."""
    loss_parallel: bool = True
    """The loss works on a tensor-parallel rank's part of the vocabulary; else every rank gathers all logits."""
    packed_qkv: bool = False
    """Values are a view of the packed projection, which stays beside the rotated queries and keys."""
    keeps_gathered: bool = False
    """Sequence parallelism keeps the gathered inputs of its products for backward, and does not gather them again."""
    casts_weights: bool = False
    """Whole fp32 parameters (one GPU, DDP) are cast in every forward, as autocast does; else a 16-bit copy is kept."""
    keeps_half_gradients: bool = False
    """Gradients in 16 bit stay beside the fp32 sum that is reduced (not under FSDP)."""
    bf16_layers_frac: float = 0.16
    """Of a plan in fp4: share of the layers, at both ends, whose products stay in bf16 as the recipe asks."""
    checked_error_frac: float = 0.0
    """Error of tokens/s within which four of five of the user's runs were predicted by fits that did not see them; 0:
    not checked."""

    @property
    def saved(self) -> Kernels:
        """Kernels whose saved tensors count towards memory."""
        return self.saves or self.kernels

    def __post_init__(self) -> None:
        for name in (
            "compute_slowdown_frac",
            "launch_s",
            "issue_s",
            "crowded_issue_s",
            "step_overhead_s",
            "skew_s",
            "straggler_frac",
            "allocator_frac",
            "context_bytes",
            "reduces_in_flight",
            "checked_error_frac",
        ):
            if getattr(self, name) < 0:
                raise out_of_range(f"profile.{name}", getattr(self, name), "it cannot be negative")
        for name in ("tp_overlap_frac", "p2p_overlap_frac", "cp_overlap_frac", "bf16_layers_frac"):
            if not 0 <= getattr(self, name) <= 1:
                raise out_of_range(f"profile.{name}", getattr(self, name), "it must be between 0 and 1")
        for name in ("bandwidth_scale_frac", "copy_frac", "reduce_copy_frac"):
            if not 0 < getattr(self, name) <= 1:
                raise out_of_range(f"profile.{name}", getattr(self, name), "it must be above 0 and at most 1")
        for name in ("hop_scale", "gemm_scale", "attention_scale", "stream_scale", "ddp_bucket_bytes"):
            if not getattr(self, name) > 0:
                raise out_of_range(f"profile.{name}", getattr(self, name), "it must be positive")
        for name in ("rmsnorm_bytes", "logit_bytes"):
            value = getattr(self, name)
            if value is not None and not LEAST_KEPT_BYTES <= value <= MOST_KEPT_BYTES:
                rule = f"between {LEAST_KEPT_BYTES:g} (one 16-bit tensor) and {MOST_KEPT_BYTES:g} (five in fp32)"
                raise out_of_range(f"profile.{name}", value, f"it must be {rule}")
        if self.comm_slowdown < 1:
            raise out_of_range("profile.comm_slowdown", self.comm_slowdown, "it must be at least 1 (1 is no slowdown)")
