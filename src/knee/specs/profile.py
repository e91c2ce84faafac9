"""HOW it is run: what a software stack does with the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from knee.base.errors import out_of_range
from knee.specs.hardware import AttentionKernel, Strict, check_range

MegatronKernels = Literal["fused", "fused_eager_router", "fused_eager_latent"]
MEGATRON_KERNELS: tuple[MegatronKernels, ...] = get_args(MegatronKernels)
"""Kernel sets of Megatron-LM with Transformer Engine, from the most fused to the least."""
Kernels = Literal["eager", "native", "fused_norm", "flash_attn", "compiled", "native_compiled", MegatronKernels]
Fp8Keeps = Literal["none", "inputs", "activations"]
Pat = Literal["off", "nccl", "any"]
LEAST_KEPT_BYTES, MOST_KEPT_BYTES = 2.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Strict):
    """A software stack. Belongs to no model and no cluster."""

    name: str
    """Name of the profile. It defaults to the file's name."""
    kernels: Kernels
    """Set of memory-bound kernels. eager: PyTorch's separate kernels. native: PyTorch's own fused kernels. fused_norm
    and flash_attn: eager with some fused kernels from other libraries. compiled: fused by torch.compile.
    native_compiled: knee's trainer with torch.compile. fused: hand-written fused kernels. fused_eager_router: the same
    with the router of experts in separate kernels, which is Megatron-LM's default. fused_eager_latent: also with the
    rotation of latent attention in separate kernels."""
    saves: Kernels | None = None
    """Kernel set whose saved tensors count in memory, if it is not that of ``kernels``."""
    attention: AttentionKernel
    """Attention kernel of the stack."""
    launch_s: float
    """Host time to launch one kernel. A step cannot be shorter than the sum of its launches."""
    issue_s: float = 0.0
    """Host time to issue one tensor-parallel collective, without its launch."""
    crowded_issue_s: float = 0.0
    """Host time that each rank of a tensor-parallel group adds to ``issue_s`` while pipeline transfers cross nodes,
    because the threads of these transfers compete with the thread that launches kernels."""
    step_overhead_s: float
    """Host time per step during which the GPU is idle: data, logging, synchronisation of the gradient norm."""
    gemm_scale: float = 1.0
    """Rate of this stack's matrix products, divided by the GPU's own rate."""
    attention_scale: float = 1.0
    """Rate of this stack's attention kernel, divided by the GPU's own rate for that kernel."""
    stream_scale: float = 1.0
    """Time of this stack's memory-bound kernels, divided by the time of its kernel set."""

    expert_gemm_scale: float = 1.0
    """Rate of the experts' products relative to other products."""
    expert_stream_scale: float = 1.0
    """Time of the memory-bound kernels of experts relative to other such kernels."""
    expert_kernel_s: float = 0.0
    """Time that each kernel of one expert adds to that of its work, in stacks that launch the products and casts of
    experts one by one. 0 means one kernel for all experts of a rank."""
    expert_host_s: float = 0.0
    """Host time of a pass through a layer with experts, in addition to the launches of its kernels: the dispatcher's
    bookkeeping, and the numbers of tokens, for which the host waits."""
    compute_slowdown_frac: float
    """kappa: while a collective runs at the same time, compute takes 1 + kappa times as long, at the network rate of an
    H100 node. Slower networks slow compute less, because they use fewer SMs and less memory bandwidth."""
    comm_slowdown: float
    """gamma: while compute runs at the same time, a collective takes gamma times as long; at least 1."""
    hop_scale: float
    """Latency of a ring hop during training, divided by its latency on idle GPUs."""
    bandwidth_scale_frac: float
    """Bandwidth between nodes during training, divided by the bandwidth on idle GPUs."""
    tp_overlap_frac: float
    """Share of tensor-parallel communication that overlaps with matrix products; only inside a node."""
    p2p_overlap_frac: float
    """Share of pipeline transfers that overlaps with compute."""
    cp_overlap_frac: float
    """Share of context-parallel transfers that overlaps with attention. Only the ring method overlaps; the all-gather
    method blocks."""
    skew_s: float = 0.0
    """Standard deviation of the times at which ranks arrive at a collective between nodes. Each rank waits for the last
    one."""
    straggler_frac: float
    """Standard deviation of step times among GPUs, divided by their mean."""

    copy_frac: float
    """Rate of FSDP's copy-out after an all-gather, divided by the memory's streaming rate."""
    reduce_copy_frac: float
    """Rate of FSDP's copy-in (and cast) before a reduce-scatter, divided by the memory's streaming rate."""
    reduces_in_flight: int
    """Number of unfinished reduce-scatters that are allowed before the compute stream waits; 0 means no limit."""
    reduce_overlap: bool = True
    """Whether DDP and ZeRO-1 reduce gradients during backward, and not after it."""
    gather_overlap: bool
    """Whether ZeRO-1 gathers parameters during the next forward, and not after the optimizer."""
    deals_by_cost: bool = False
    """Whether layers are divided among pipeline stages by their compute cost, including the output projection, and not
    by their number."""
    scatters_sends: bool = False
    """Whether each tensor-parallel rank sends only its part of an activation to the next pipeline stage, where it is
    gathered, even without sequence parallelism."""
    ddp_bucket_bytes: float = 25 * 2.0**20
    """Size of DDP's gradient buckets."""
    pat: Pat = "off"
    """When all-gather and reduce-scatter use a logarithmic algorithm if it is faster than a ring: "off"; "nccl", in
    groups with one GPU per node, as NCCL does since 2.23; "any", in all groups that span nodes, a what-if that no NCCL
    up to 2.30 offers."""

    context_bytes: float
    """GPU memory outside the allocator: CUDA context and NCCL buffers."""
    allocator_frac: float
    """Memory lost to fragmentation, divided by the allocated memory."""
    rmsnorm_bytes: float | None = None
    """Bytes that an RMSNorm keeps for backward per element of its input; None means the value of the kernel set."""
    logit_bytes: float | None = None
    """Bytes per logit that are allocated when backward begins; None means the value of the kernel set."""
    loss_parallel: bool = True
    """Whether each tensor-parallel rank computes the loss on its part of the vocabulary. Otherwise every rank gathers
    all logits."""
    packed_qkv: bool = False
    """Whether values are a view of the packed QKV projection, which then stays in memory in addition to the rotated
    queries and keys."""
    keeps_gathered: bool = False
    """Whether sequence parallelism keeps the gathered inputs of matrix products for backward, instead of gathering them
    again."""
    casts_weights: bool = False
    """Whether unsharded fp32 parameters (one GPU, DDP) are cast in every forward, as autocast does. Otherwise a 16-bit
    copy is kept."""
    fsdp_on_one_gpu: bool = False
    """Whether a plan of one GPU with the sharding "fsdp" runs under FSDP2, on a mesh of one. It then copies parameters
    and gradients as on many GPUs."""
    keeps_half_gradients: bool = False
    """Whether 16-bit gradients stay in memory in addition to the fp32 sum that is reduced (not with FSDP)."""
    fp8_keeps: Fp8Keeps = "none"
    """With fp8, what layers with experts keep for backward in fp8 and not in 16 bit: "inputs" of their matrix products,
    or all "activations", which are what the activation function of an expert reads too, and the output of attention in
    12 bit."""
    fp8_dispatch: bool = False
    """With fp8, whether tokens travel to their experts in fp8 (their outputs travel back in bf16)."""
    bf16_layers_frac: float = 0.16
    """With fp4: share of the layers, at both ends of the model, whose matrix products stay in bf16 as the recipe
    asks."""
    fp8_shared_casts: bool = False
    """With fp8: whether an input is cast once for all matrix products that read it and each output gradient once, by
    rows and by columns, and only the fp8 columns of inputs are kept for backward. Otherwise every matrix product casts
    its operands, and 16-bit inputs are kept."""
    fp8_gathers: bool = False
    """With fp8, shared casts and the recipe tensorwise: whether FSDP gathers weights in fp8, and sequence parallelism
    activations and output gradients."""
    fp8_smallest: int = 0
    """With fp8 and shared casts: weights that are narrower in either direction keep 16-bit matrix products."""
    fp8_forward_scale: float = 1.0
    """With fp8: rate of forward matrix products, which may sum in fewer bits (fast accumulation), divided by the rate
    of backward ones."""
    checked_error_frac: float = 0.0
    """Error of tokens/s that 80% of your held-out runs stayed within when ``knee calibrate`` checked the fit; 0 means
    not checked."""

    @property
    def saved(self) -> Kernels:
        """Kernels whose saved tensors count towards memory."""
        return self.saves or self.kernels

    def __post_init__(self) -> None:
        host = ("launch_s", "issue_s", "crowded_issue_s", "step_overhead_s", "expert_kernel_s", "expert_host_s")
        spread = ("skew_s", "straggler_frac", "allocator_frac", "context_bytes", "reduces_in_flight", "fp8_smallest")
        check_range("profile", self, "not negative", "compute_slowdown_frac", *host, *spread, "checked_error_frac")
        overlaps = ("tp_overlap_frac", "p2p_overlap_frac", "cp_overlap_frac")
        check_range("profile", self, "share", *overlaps, "bf16_layers_frac")
        check_range("profile", self, "fraction", "bandwidth_scale_frac", "copy_frac", "reduce_copy_frac")
        scales = ("hop_scale", "gemm_scale", "attention_scale", "stream_scale", "expert_gemm_scale")
        check_range(
            "profile", self, "positive", *scales, "expert_stream_scale", "fp8_forward_scale", "ddp_bucket_bytes"
        )
        for name in ("rmsnorm_bytes", "logit_bytes"):
            value = getattr(self, name)
            if value is not None and not LEAST_KEPT_BYTES <= value <= MOST_KEPT_BYTES:
                rule = f"between {LEAST_KEPT_BYTES:g} (one 16-bit tensor) and {MOST_KEPT_BYTES:g} (five in fp32)"
                raise out_of_range(f"profile.{name}", value, f"it must be {rule}")
        if self.comm_slowdown < 1:
            raise out_of_range("profile.comm_slowdown", self.comm_slowdown, "it must be at least 1 (1 is no slowdown)")
