"""The parallel plan: how one model is spread over GPUs. The trainer takes the same spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from knee.base.errors import SpecError, argument, out_of_range
from knee.specs.hardware import Precision
from knee.specs.schedules import INTERLEAVED, ONE_F_ONE_B, Schedule, schedule_of

Sharding = Literal["ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard", "hsdp"]
Recompute = Literal["none", "attention", "ops", "modules", "blocks", "full"]
RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts", "moe"]
CpMethod = Literal["allgather", "ring"]
ReduceDtype = Literal["fp32", "bf16"]
StateDtype = Literal["fp32", "bf16"]
SyncDtype = Literal["fp32", "bf16", "fp8", "fp4"]
Collectives = Literal["flat", "hierarchical"]
Fp8Recipe = Literal["tensorwise", "rowwise"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
Routing = Literal["balanced", "dropless", "power_law:1.01", "power_law:1.2"]

SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
SHARDING_FAMILIES = {
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP",
    "fsdp_no_reshard": "FSDP",
    "hsdp": "FSDP",
}
"""Shardings that communicate alike."""
RESHARDING: tuple[Sharding, ...] = ("fsdp", "hsdp")
"""Modes that drop a layer's parameters after its forward and gather them again for its backward."""
REDUCING: tuple[Sharding, ...] = (*RESHARDING, "zero2")
"""Modes that reduce gradients in every microbatch and keep their part alone."""
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
"""What backward computes again: attention alone (Megatron-LM's "selective"), every second product and what is cheap
(torchtitan's "selective"), modules that are named, a share of the blocks, or all of them."""
RECOMPUTE_MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)
"""Parts of a block, as Megatron-LM's --recompute-modules names them."""
RENAMED = {
    "selective": "say attention (Megatron-LM's selective) or ops (torchtitan's selective)",
    "zero3": "ZeRO-3 is called fsdp here",
}
"""A word of others -> what to say instead."""
CP_METHODS: tuple[CpMethod, ...] = get_args(CpMethod)
REDUCE_DTYPES: tuple[ReduceDtype, ...] = get_args(ReduceDtype)
STATE_DTYPES: tuple[StateDtype, ...] = get_args(StateDtype)
SYNC_DTYPES: tuple[SyncDtype, ...] = get_args(SyncDtype)
COLLECTIVES: tuple[Collectives, ...] = get_args(Collectives)
DISPATCHERS: tuple[Dispatcher, ...] = get_args(Dispatcher)
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
FP8_RECIPES: tuple[Fp8Recipe, ...] = get_args(Fp8Recipe)
MOST = 16_777_216
MOST_IMBALANCE = 1_000
AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
DATA_TYPES = ("precision", "fp8_recipe", "reduce_dtype", "state_dtype")
"""Fields that say in which types a plan computes; a search takes them as given."""
ROUTED = ("dispatcher", "ep_overlap", "routing", "imbalance", "capacity_factor")
"""Fields that say how tokens reach experts; a search takes them as given."""
EXCHANGES = ("collectives", "sync_fragments", "sync_dtype")
"""Fields that say how GPUs exchange; a search takes them as given."""
KEPT_BY_SEARCH = (*DATA_TYPES, *ROUTED, *EXCHANGES, "sync_every", "recompute_modules")
"""Fields that a search for a plan takes as given."""
DEGREES = ("dp_shard", "dp_replicate", "tp", "pp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees, modes and batch cut of one plan."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    dp_shard: int = 1
    """Data-parallel ranks over which parameters, gradients or optimizer states are sharded."""
    dp_replicate: int = 1
    """Copies of the sharded group (HSDP, DDP)."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    """Expert-parallel ranks: each has its part of the experts. They are ranks of the same stage that tp, cp and dp name
    for the rest of the model (Megatron's parallel folding)."""
    etp: int = 1
    """Ranks over which each expert is split, as tp splits the rest of the model."""
    dispatcher: Dispatcher = "alltoall"
    """What sends tokens to their experts and back: NCCL's all-to-all, DeepEP or HybridEP."""
    ep_overlap: bool = False
    """Whether tokens travel beside the compute of another microbatch (Megatron's 1F1B overlap, DualPipe)."""
    routing: Routing = "balanced"
    """How tokens spread over experts: balanced (each expert has equally many, as benchmarks force it), dropless (as
    measured on Qwen3-235B with ep 8: the busiest rank has 1.5 times the mean), or by a power law."""
    imbalance: float | None = None
    """Tokens of the busiest expert-parallel rank over the mean; overrides routing."""
    capacity_factor: float | None = None
    """Tokens that an expert takes at most, over the mean; further ones are dropped. By default none are."""
    sharding: Sharding = "fsdp_no_reshard"
    sequence_parallel: bool = True
    """Norms and residuals are split along the sequence inside the tensor-parallel group."""
    tp_overlap_frac: float | None = None
    """Overrides the profile's share of TP communication that overlaps with GEMMs."""
    schedule: Schedule = ONE_F_ONE_B.name
    """Order of the microbatches in a pipeline. dualpipe runs half of them from each end; every rank holds two stages,
    and tokens travel to experts beside the compute of another microbatch."""
    virtual_stages: int = 1
    """Model chunks per pipeline rank; more than one needs the interleaved schedule."""
    cp_method: CpMethod = "allgather"
    micro_batch: int = 1
    """Sequences per microbatch and data-parallel rank."""
    recompute: Recompute = "none"
    recompute_frac: float = 1.0
    """Of recompute blocks: share of the blocks that are run again in backward; 0.5 is every second one."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """Of recompute modules: the parts of a block that are run again in backward."""
    precision: Precision = "bf16"
    fp8_recipe: Fp8Recipe = "tensorwise"
    """Of precision fp8: one scale for each tensor, or one for each row that a product sums over."""
    prefetch: int = 1
    """Layers whose parameters are gathered ahead of the one that computes; 0 hides no gather."""
    reduce_dtype: ReduceDtype = "fp32"
    """Type in which gradients are reduced."""
    state_dtype: StateDtype = "fp32"
    """Type of the parameters that the optimizer updates, of its moments and of the gradients kept for it."""
    sync_every: int = 1
    """Steps between two exchanges of the replicas. From 2 on they reduce no gradients together, but average how far
    their parameters have moved, and an outer optimizer takes that mean as its gradient (local SGD, DiLoCo)."""
    sync_fragments: int = 1
    """Parts of the model that are exchanged one after the other, spread over the steps between two exchanges. From 2 on
    (Streaming DiLoCo) an exchange runs beside compute, and blocks only what it takes longer than the steps."""
    sync_dtype: SyncDtype | None = None
    """Type in which replicas exchange how far their parameters have moved; by default ``reduce_dtype``."""
    collectives: Collectives = "flat"
    """flat: NCCL's algorithms over all ranks of a group. hierarchical: level by level (node, then each tier of the
    network), if that is faster."""
    placement: tuple[str, ...] = AXES
    """Mesh axes from the innermost (neighbouring GPUs) to the outermost."""

    def __post_init__(self) -> None:
        for name in (*DEGREES, "virtual_stages", "micro_batch", "sync_every", "sync_fragments"):
            if getattr(self, name) < 1:
                raise out_of_range(f"plan.{name}", getattr(self, name), "it must be at least 1")
            if getattr(self, name) > MOST:
                raise out_of_range(f"plan.{name}", getattr(self, name), f"more than {MOST:,} is not supported")
        if self.prefetch < 0:
            raise out_of_range("plan.prefetch", self.prefetch, "it cannot be negative")
        if self.tp_overlap_frac is not None and not 0 <= self.tp_overlap_frac <= 1:
            raise out_of_range("plan.tp_overlap_frac", self.tp_overlap_frac, "it must be between 0 and 1")
        if not 0 < self.recompute_frac <= 1:
            raise out_of_range("plan.recompute_frac", self.recompute_frac, "it must be above 0 and at most 1")
        if self.recompute_frac < 1 and self.recompute != "blocks":
            raise SpecError(
                f"recompute_frac {self.recompute_frac:g} applies only to recompute blocks, but recompute is "
                f"{self.recompute}",
                hint=f"use {argument('recompute')} blocks",
                code="contradiction",
            )
        if self.fp8_recipe != "tensorwise" and self.precision != "fp8":
            raise SpecError(
                f"fp8_recipe {self.fp8_recipe} applies only to precision fp8, but precision is {self.precision}",
                hint=f"use {argument('precision')} fp8, or leave {argument('fp8_recipe')} out",
                code="contradiction",
                field="plan.fp8_recipe",
            )
        self._check_modules()
        for name in ("imbalance", "capacity_factor"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_IMBALANCE:
                raise SpecError(
                    f"plan.{name} is {value:g}; it must be between 1 and {MOST_IMBALANCE}",
                    hint=f"for example {argument(name)} 1.25, or leave it out",
                    code="out-of-range",
                    field=f"plan.{name}",
                )
        if sorted(self.placement) != sorted(AXES):
            raise SpecError(
                f"plan.placement {'-'.join(self.placement)} must name each axis once",
                hint=f"for example {'-'.join(AXES)} (innermost first)",
                code="not-each-once",
                field="plan.placement",
            )
        self._check_sharding()
        self._check_schedule()

    def _check_modules(self) -> None:
        names = self.recompute_modules
        twice = [name for name in names if names.count(name) > 1]
        twice += [name for name in ("moe_act", "shared_experts") if name in names and "moe" in names]
        if twice:
            why = "moe includes it" if "moe" in names and twice[0] != "moe" else "it is named twice"
            text = f"plan.recompute_modules has {twice[0]}, which would be recomputed twice: {why}"
            hint = f"name {twice[0]} once" if why == "it is named twice" else f"leave {twice[0]} out"
            raise SpecError(text, hint=hint, code="contradiction", field="plan.recompute_modules")
        if bool(names) == (self.recompute == "modules"):
            return
        text = (
            f"recompute_modules applies only to recompute modules, but recompute is {self.recompute}"
            if self.recompute_modules
            else "recompute is modules, but recompute_modules names none"
        )
        hint = f"use {argument('recompute')} modules and name some of {', '.join(RECOMPUTE_MODULES)}"
        raise SpecError(text, hint=hint, code="contradiction", field="plan.recompute_modules")

    def _check_sharding(self) -> None:
        if self.sharding == "hsdp" and (self.dp_replicate < 2 or self.dp_shard < 2):
            raise SpecError(
                f"hsdp needs dp_replicate and dp_shard of at least 2; got dp_replicate {self.dp_replicate}, "
                f"dp_shard {self.dp_shard}",
                hint=f"give {argument('dp_replicate')}, or use {argument('sharding')} fsdp",
                code="contradiction",
            )
        if self.sharding == "fsdp" and self.dp_replicate > 1:
            raise SpecError(
                f"fsdp shards over every data-parallel rank, but dp_replicate is {self.dp_replicate}",
                hint=f"use {argument('sharding')} hsdp (reshard) or fsdp_no_reshard with {argument('dp_replicate')}",
                code="contradiction",
            )
        if self.sharding == "ddp" and self.dp_shard > 1:
            raise SpecError(
                f"ddp shards nothing, but dp_shard is {self.dp_shard}",
                hint=f"use dp_replicate for the data-parallel ranks, or use {argument('sharding')} zero1",
                code="contradiction",
            )
        if self.sync_every > 1 and self.dp_replicate == 1:
            raise SpecError(
                f"sync_every is {self.sync_every}, but dp_replicate is 1: there are no replicas to synchronize",
                hint=f"give {argument('dp_replicate')}, for example with {argument('sharding')} hsdp, "
                f"or leave {argument('sync_every')} out",
                code="contradiction",
            )

    def _check_schedule(self) -> None:
        schedule = schedule_of(self.schedule)
        if self.virtual_stages > 1 and not schedule.virtual:
            raise SpecError(
                f"{self.virtual_stages} virtual stages need the {INTERLEAVED.name} schedule, not {self.schedule}",
                hint=f"add {argument('schedule')} {INTERLEAVED.name}, or drop {argument('virtual_stages')}",
                code="contradiction",
            )
        if self.virtual_stages > 1 and self.pp == 1:
            hint = f"give {argument('pp')}, or drop {argument('virtual_stages')}"
            raise SpecError("virtual stages need a pipeline", hint=hint, code="contradiction")
        if schedule.virtual and self.pp > 1 and self.virtual_stages == 1:
            raise SpecError(
                f"the {schedule.name} schedule with one virtual stage is {ONE_F_ONE_B.name}",
                hint=f"give {argument('virtual_stages')} 2 or more, or use {argument('schedule')} {ONE_F_ONE_B.name}",
                code="contradiction",
            )
        if self.pp > 1 and not schedule.takes_ranks(self.pp):
            raise SpecError(
                f"{schedule.name} runs microbatches from both ends of the pipeline, so pp must be even; got {self.pp}",
                hint=f"use an even {argument('pp')}, or {argument('schedule')} {ONE_F_ONE_B.name}",
                code="does-not-divide",
                field="plan.pp",
            )
        if schedule.splits_backward and self.pp > 1 and self.sharding in REDUCING:
            raise SpecError(
                f"{self.schedule} with {self.sharding} is not modelled: it would gather or reduce between the two "
                "halves of backward",
                hint=f"use {argument('sharding')} fsdp_no_reshard, zero1 or ddp",
                code="not-modelled",
            )

    @property
    def dp(self) -> int:
        """Data-parallel ranks, the number of different microbatches in flight at once."""
        return self.dp_shard * self.dp_replicate

    @property
    def gpus(self) -> int:
        """GPUs the plan fills."""
        return self.dp * self.tp * self.pp * self.cp
