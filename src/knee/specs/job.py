"""One question: this model, on this cluster, with this stack and plan, at this batch."""

from __future__ import annotations

from dataclasses import dataclass

from knee.base.errors import SpecError, argument, either, out_of_range
from knee.specs.hardware import AttentionKernel, Cluster
from knee.specs.model import Model
from knee.specs.model.split_rules import (
    OWN_STAGES,
    check_divided,
    check_experts,
    check_fills,
    check_microbatches,
    check_modules,
    check_outer_sync,
    check_reduce_dtype,
    check_routed,
    check_sequence,
    check_stages,
    splits_heads,
    splits_tokens,
)
from knee.specs.plan import Plan
from knee.specs.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a simulation or a real run needs to know."""

    model: Model
    cluster: Cluster
    profile: Profile
    plan: Plan
    gpus: int
    global_batch: int
    """Sequences per optimizer step, over all GPUs."""
    seq_len: int

    def __post_init__(self) -> None:
        self._check_sizes()
        check_fills(self.plan, self.gpus, unit="GPUs", shown=f"gpus({self.gpus})")
        self._check_split_of_model()
        self._check_batch()
        self._check_modelled()

    @property
    def microbatches(self) -> int:
        """Microbatches that each data-parallel rank runs in one step."""
        return self.global_batch // (self.plan.dp * self.plan.micro_batch)

    @property
    def local_batch(self) -> float:
        """Global batch over all GPUs, as the paper counts it."""
        return self.global_batch / self.gpus

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch * self.seq_len

    def _check_sizes(self) -> None:
        check_described(self.gpus, self.cluster)
        for name in ("global_batch", "seq_len"):
            if getattr(self, name) < 1:
                raise out_of_range(name, getattr(self, name), "it must be at least 1")
        if self.seq_len > 2**24 or self.global_batch > 2**24:
            text = f"seq_len {self.seq_len:,} or global_batch {self.global_batch:,} is above 16,777,216"
            raise SpecError(text, code="out-of-range", field="seq_len" if self.seq_len > 2**24 else "global_batch")

    def _check_split_of_model(self) -> None:
        model, plan = self.model, self.plan
        check_divided(model, model.heads, "heads", plan.tp)
        if not splits_heads(model, plan.tp):
            text = f"{model.name} has {model.kv_heads} key-value heads; tp {plan.tp} neither divides them nor is a "
            text += "multiple of them"
            hint = f"use a tp that divides {model.kv_heads} or is a multiple of it"
            raise SpecError(text, hint=hint, code="does-not-divide", field="plan.tp")
        check_experts(model, plan)
        check_routed(model, plan)
        check_modules(model, plan)
        check_stages(model, plan, own_stages=OWN_STAGES)
        if plan.sequence_parallel and not splits_tokens(self.seq_len, plan.cp, plan.tp):
            raise SpecError(
                f"sequence parallelism splits {self.seq_len // plan.cp} tokens per sequence over tp {plan.tp}, which "
                "does not divide evenly",
                hint=either("use sequence_parallel=False", "use --no-sequence-parallel")
                + ", or a sequence length that tp x cp divides",
                code="does-not-divide",
                field="plan.tp",
            )
        check_sequence(self.seq_len, plan.cp)

    def _check_batch(self) -> None:
        plan = self.plan
        if self.global_batch % plan.dp:
            text = f"global_batch {self.global_batch} does not split over {plan.dp} data-parallel ranks "
            text += f"(dp_replicate {plan.dp_replicate} * dp_shard {plan.dp_shard})"
            hint = "raise tp, pp or cp so that fewer ranks share the batch, or change the batch"
            raise SpecError(text, hint=hint, code="does-not-divide", field="global_batch")
        per_rank = self.global_batch // plan.dp
        if per_rank % plan.micro_batch:
            text = f"micro_batch {plan.micro_batch} does not divide the {per_rank} sequences of a data-parallel rank "
            text += f"(global_batch {self.global_batch} / dp {plan.dp})"
            hint = f"use a divisor of {per_rank}"
            raise SpecError(text, hint=hint, code="does-not-divide", field="plan.micro_batch")
        check_microbatches(plan, self.microbatches)

    def _check_modelled(self) -> None:
        if self.plan.prefetch > self.model.layers:
            text = f"prefetch is {self.plan.prefetch}, but {self.model.name} has {self.model.layers} layers"
            hint = "FSDP2 uses 1; larger values only cost memory"
            raise SpecError(text, hint=hint, code="out-of-range", field="plan.prefetch")
        self.cluster.gpu.peak_flop_per_s(self.plan.precision)
        check_reduce_dtype(self.plan, self.plan.precision)
        check_outer_sync(self.plan)
        if self.profile.attention not in self.cluster.gpu.attention:
            known = ", ".join(self.cluster.gpu.attention)
            text = f"no rate is known for {self.profile.attention} attention on {self.cluster.gpu.name}"
            hint = f"use a profile with {known}, or {argument('overrides')} profile.attention=..."
            raise SpecError(text, hint=hint, code="no-rate", field="profile.attention")
        check_kernel(self.model, self.profile, self.seq_len)
        if self.model.positions == "learned" and self.seq_len > self.model.max_seq_len:
            text = f"{self.model.name} has {self.model.max_seq_len} learned positions; seq_len is {self.seq_len}"
            raise SpecError(text, code="out-of-range", field="seq_len")


WINDOWS: tuple[AttentionKernel, ...] = ("flash2", "flash3", "cudnn", "cutlass")
"""Attention kernels that skip what lies outside a sliding window."""
SOFT_CAPS: tuple[AttentionKernel, ...] = ("flash2", "flash3")
"""Attention kernels that cap scores."""


def check_kernel(model: Model, profile: Profile, seq_len: int) -> None:
    """Refuse an attention kernel that cannot compute the model's attention."""
    for needed, what, kernels in (
        (model.attention_soft_cap > 0, "attention_soft_cap", SOFT_CAPS),
        (model.slides(seq_len), "window", WINDOWS),
    ):
        if needed and profile.attention not in kernels:
            text = f"{model.name} has {what} {getattr(model, what):g}, which {profile.attention} attention of profile "
            text += f"{profile.name} does not support"
            hint = f"use a profile with {' or '.join(kernels)} attention, or {argument('overrides')} "
            hint += f"profile.attention={kernels[0]}"
            raise SpecError(text, hint=hint, code="not-modelled", field="profile.attention")


def check_described(gpus: int, cluster: Cluster) -> None:
    """Refuse more GPUs than the cluster's network is described for, or none."""
    if gpus < 1:
        raise out_of_range("gpus", gpus, "it must be at least 1")
    if gpus > cluster.max_gpus:
        raise out_of_range("gpus", f"{gpus:,}", f"{cluster.name} is described only up to {cluster.max_gpus:,}")
