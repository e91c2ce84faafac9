"""One question: this model, on this cluster, with this stack and plan, at this batch."""

from __future__ import annotations

from dataclasses import dataclass

from knee.errors import SpecError
from knee.specs.hardware import Cluster
from knee.specs.model import Model
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
        self._check_plan_fills_gpus()
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
        for name in ("gpus", "global_batch", "seq_len"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.gpus > self.cluster.max_gpus:
            raise SpecError(f"gpus is {self.gpus:,}; {self.cluster.name} is described up to {self.cluster.max_gpus:,}")
        if self.seq_len > 2**24 or self.global_batch > 2**24:
            raise SpecError(f"seq_len {self.seq_len:,} or global_batch {self.global_batch:,} is beyond 16,777,216")

    def _check_plan_fills_gpus(self) -> None:
        plan = self.plan
        if plan.gpus != self.gpus:
            raise SpecError(
                f"the plan fills {plan.gpus} GPUs, not {self.gpus}: dp_replicate({plan.dp_replicate}) * "
                f"dp_shard({plan.dp_shard}) * tp({plan.tp}) * pp({plan.pp}) * cp({plan.cp}) != gpus({self.gpus})",
                hint=f"make the product {self.gpus}, for example by leaving --dp-shard out",
            )

    def _check_split_of_model(self) -> None:
        model, plan = self.model, self.plan
        if model.heads % plan.tp:
            raise SpecError(
                f"{model.name} has {model.heads} heads, which tp {plan.tp} does not divide",
                hint=f"use a tp that divides {model.heads}",
            )
        if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
            raise SpecError(
                f"{model.name} has {model.kv_heads} key-value heads; tp {plan.tp} neither divides them nor is a "
                "multiple of them",
                hint=f"use a tp that divides {model.kv_heads} or is a multiple of it",
            )
        chunks = plan.pp * plan.virtual_stages
        # the embedding and the loss may have a stage of their own
        if chunks > model.layers + 2:
            raise SpecError(
                f"pp({plan.pp}) * virtual_stages({plan.virtual_stages}) = {chunks} stages, but {model.name} has "
                f"{model.layers} layers",
                hint=f"use at most {model.layers} stages in all, or two more for the embedding and the loss",
            )
        if plan.tp > 1 and plan.sequence_parallel and (self.seq_len // plan.cp) % plan.tp:
            raise SpecError(
                f"sequence parallelism splits {self.seq_len // plan.cp} tokens a sequence over tp {plan.tp}, which "
                "does not divide them",
                hint="use --no-sequence-parallel, or a sequence length that tp x cp divides",
            )
        if self.seq_len % (2 * plan.cp) and plan.cp > 1:
            raise SpecError(
                f"cp {plan.cp} cuts a sequence into {2 * plan.cp} equal blocks, but seq_len is {self.seq_len}",
                hint=f"use a seq_len that is a multiple of {2 * plan.cp}",
            )

    def _check_batch(self) -> None:
        plan = self.plan
        if self.global_batch % plan.dp:
            raise SpecError(
                f"global_batch {self.global_batch} does not split over {plan.dp} data-parallel ranks "
                f"(dp_replicate {plan.dp_replicate} * dp_shard {plan.dp_shard})",
                hint="raise tp, pp or cp so that fewer ranks share the batch, or change the batch",
            )
        per_rank = self.global_batch // plan.dp
        if per_rank % plan.micro_batch:
            raise SpecError(
                f"micro_batch {plan.micro_batch} does not divide the {per_rank} sequences of a data-parallel rank "
                f"(global_batch {self.global_batch} / dp {plan.dp})",
                hint=f"use a divisor of {per_rank}",
            )
        if plan.schedule == "interleaved" and plan.pp > 1 and self.microbatches % plan.pp:
            raise SpecError(
                f"the interleaved schedule runs microbatches in groups of pp; {self.microbatches} is not a multiple "
                f"of {plan.pp}",
                hint="change --micro-batch or the batch, or use --schedule 1f1b",
            )

    def _check_modelled(self) -> None:
        if self.plan.prefetch > self.model.layers:
            raise SpecError(
                f"prefetch is {self.plan.prefetch}, but {self.model.name} has {self.model.layers} layers",
                hint="1 is what FSDP2 does; more only costs memory",
            )
        self.cluster.gpu.peak_flop_per_s(self.plan.precision)
        if self.plan.precision == "fp16" and self.plan.reduce_dtype == "bf16":
            raise SpecError("fp16 training cannot reduce gradients in bf16", hint="use --reduce-dtype fp32")
        if self.profile.attention not in self.cluster.gpu.attention:
            known = ", ".join(self.cluster.gpu.attention)
            raise SpecError(
                f"no rate is known for {self.profile.attention} attention on {self.cluster.gpu.name}",
                hint=f"use a profile with {known}, or --set profile.attention=...",
            )
        if self.model.positions == "learned" and self.seq_len > self.model.max_seq_len:
            raise SpecError(
                f"{self.model.name} has {self.model.max_seq_len} learned positions; seq_len is {self.seq_len}",
            )
