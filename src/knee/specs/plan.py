"""The parallel plan: how one model is spread over GPUs. The trainer takes the same spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from knee.base.errors import SpecError, argument, out_of_range
from knee.specs.hardware import Precision
from knee.specs.legality import PlanRule, check, interrupts_backward
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


SHARDING_RULES = (
    PlanRule(
        None,
        lambda p: p.sharding == "hsdp" and (p.dp_replicate < 2 or p.dp_shard < 2),
        "hsdp needs dp_replicate and dp_shard of at least 2; got dp_replicate {dp_replicate}, dp_shard {dp_shard}",
        "give {--dp-replicate}, or use {--sharding} fsdp",
    ),
    PlanRule(
        None,
        lambda p: p.sharding == "fsdp" and p.dp_replicate > 1,
        "fsdp shards over every data-parallel rank, but dp_replicate is {dp_replicate}",
        "use {--sharding} hsdp (reshard) or fsdp_no_reshard with {--dp-replicate}",
    ),
    PlanRule(
        None,
        lambda p: p.sharding == "ddp" and p.dp_shard > 1,
        "ddp shards nothing, but dp_shard is {dp_shard}",
        "use dp_replicate for the data-parallel ranks, or use {--sharding} zero1",
    ),
)
"""Which degrees a mode of sharding allows; a search applies them to every mode and pair of degrees."""
RULES = (
    PlanRule(
        None,
        lambda p: p.recompute_frac < 1 and p.recompute != "blocks",
        "recompute_frac {recompute_frac:g} applies only to recompute blocks, but recompute is {recompute}",
        "use {--recompute} blocks",
    ),
    PlanRule(
        "plan.fp8_recipe",
        lambda p: p.fp8_recipe != "tensorwise" and p.precision != "fp8",
        "fp8_recipe {fp8_recipe} applies only to precision fp8, but precision is {precision}",
        "use {--precision} fp8, or leave {--fp8-recipe} out",
    ),
    *SHARDING_RULES,
    PlanRule(
        None,
        lambda p: p.sync_every > 1 and p.dp_replicate == 1,
        "sync_every is {sync_every}, but dp_replicate is 1: there are no replicas to synchronize",
        "give {--dp-replicate}, for example with {--sharding} hsdp, or leave {--sync-every} out",
    ),
    PlanRule(
        None,
        lambda p: p.virtual_stages > 1 and not schedule_of(p.schedule).virtual,
        f"{{virtual_stages}} virtual stages need the {INTERLEAVED.name} schedule, not {{schedule}}",
        f"add {{--schedule}} {INTERLEAVED.name}, or drop {{--virtual-stages}}",
    ),
    PlanRule(
        None,
        lambda p: p.virtual_stages > 1 and p.pp == 1,
        "virtual stages need a pipeline",
        "give {--pp}, or drop {--virtual-stages}",
    ),
    PlanRule(
        None,
        lambda p: p.virtual_stages == 1 and p.pp > 1 and schedule_of(p.schedule).virtual,
        f"the {{schedule}} schedule with one virtual stage is {ONE_F_ONE_B.name}",
        f"give {{--virtual-stages}} 2 or more, or use {{--schedule}} {ONE_F_ONE_B.name}",
    ),
    PlanRule(
        "plan.pp",
        lambda p: p.pp > 1 and not schedule_of(p.schedule).takes_ranks(p.pp),
        "{schedule} runs microbatches from both ends of the pipeline, so pp must be even; got {pp}",
        f"use an even {{--pp}}, or {{--schedule}} {ONE_F_ONE_B.name}",
        "does-not-divide",
    ),
    PlanRule(
        None,
        lambda p: interrupts_backward(schedule_of(p.schedule).splits_backward, p.sharding in REDUCING, p.pp),
        "{schedule} with {sharding} is not modelled: it would gather or reduce between the two halves of backward",
        "use {--sharding} fsdp_no_reshard, zero1 or ddp",
        "not-modelled",
    ),
)


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
        check(RULES, self)

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

    @property
    def dp(self) -> int:
        """Data-parallel ranks, the number of different microbatches in flight at once."""
        return self.dp_shard * self.dp_replicate

    @property
    def gpus(self) -> int:
        """GPUs the plan fills."""
        return self.dp * self.tp * self.pp * self.cp
