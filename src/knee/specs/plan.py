"""The parallel plan: how one model is spread over GPUs. The trainer takes the same spec."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from knee.base.errors import SpecError, argument, out_of_range
from knee.specs.hardware import Precision, Strict
from knee.specs.legality import PlanRule, check, interrupts_backward
from knee.specs.schedules import INTERLEAVED, ONE_F_ONE_B, Schedule, schedule_of

Search = Literal["varied", "limited", "listed", "kept", "fixed"]
"""What a search for a plan does with a field. varied: it tries every value. limited: every value up to ``max_<name>``.
listed: every value, or those that are listed. kept: it takes the value as given. fixed: all plans have the default;
``knee scale --best`` takes it as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One field of a plan. Its name, type, choices and default are read from the field itself by ``read_knobs``."""

    search: Search = "varied"
    needs: str | None = None
    """Degree without which the field means nothing: ``ep`` for the dispatcher of tokens."""
    words: str | None = None
    """How a value is written in a plan's words, as a format; by default its name and value. What begins with a space is
    joined to the words before it."""
    always: bool = False
    """Whether the words of a plan have it even where it is the default."""
    default_words: str = ""
    """The default as the help says it, where that is not one value."""
    filled: bool = False
    """Whether knee chooses the value from the job where it is not given."""
    simulated_only: bool = False
    """Whether neither knee's trainer nor an export has any value but the default."""
    metavar: str = "N"
    label: str = ""
    noun: str = ""
    """What a value is called in the limits of a search."""
    least: float = 1
    most: float | None = None
    slider: int | None = None
    """How far a slider goes; a question may go up to ``most``."""
    doubles: bool = False
    """Whether a slider moves by doublings."""
    choices: tuple[str, ...] = ()
    name: str = ""
    kind: type = int
    """int, float, bool or str."""
    hint: Any = None
    """The whole type, for checks of arguments."""
    optional: bool = False
    """Whether None is a value."""
    many: bool = False
    """Whether the value is a tuple of words."""
    joint: str = "+"
    """What joins the words of a tuple."""
    default: Any = None

    def describe(self, value: Any) -> str:
        """A value in words: ``tp 8``, ``no sequence_parallel``, ``hierarchical collectives``."""
        if self.kind is bool and self.words is None:
            return self.name if value else f"no {self.name}"
        shown = self.joint.join(value) if self.many else value
        if self.words is None:
            return f"{self.name} {shown:,}" if self.kind is int else f"{self.name} {shown}"
        return self.words.format(shown)


def read_knobs(spec: type) -> dict[str, Knob]:
    """Field -> its declaration, completed with its name, type, choices and default."""
    hints = get_type_hints(spec, include_extras=True)
    return {one.name: _read(one.name, hints[one.name], one.default) for one in fields(spec)}


def _read(name: str, hint: Any, default: Any) -> Knob:
    said = Knob()
    if get_origin(hint) is Annotated:
        hint, said = get_args(hint)[0], next(one for one in get_args(hint) if isinstance(one, Knob))
    options = [one for one in get_args(hint) if one is not type(None)] if type(None) in get_args(hint) else [hint]
    many = get_origin(options[0]) is tuple
    inner = get_args(options[0])[0] if many else options[0]
    words = get_args(inner) if get_origin(inner) is Literal else ()
    return replace(
        said,
        name=name,
        kind=str if words else inner,
        hint=hint,
        choices=said.choices or words,
        optional=type(None) in get_args(hint),
        many=many,
        default=default,
    )


def names_of(knobs: Mapping[str, Knob], *searches: Search) -> tuple[str, ...]:
    """Names of the fields with which a search does this."""
    return tuple(name for name, knob in knobs.items() if knob.search in searches)


Sharding = Literal["ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard", "hsdp"]
Recompute = Literal["none", "attention", "ops", "modules", "blocks", "full"]
RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts", "moe"]
CpMethod = Literal["allgather", "ring"]
ReduceDtype = Literal["fp32", "bf16"]
StateDtype = Literal["fp32", "bf16"]
MomentDtype = Literal["fp32", "bf16", "fp8"]
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
MOMENT_DTYPES: tuple[MomentDtype, ...] = get_args(MomentDtype)
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
class Plan(Strict):
    """Degrees, modes and batch cut of one plan.

    This is the only list of a plan's knobs: see ``Knob`` for what a field declares. The docstring below a field
    is its help; double backticks name other fields, which the command line shows as options.
    """

    dp_shard: Annotated[
        int,
        Knob(
            filled=True,
            doubles=True,
            default_words="all GPUs that the other degrees leave",
            label="Sharded data parallelism (dp_shard)",
        ),
    ] = 1
    """Number of data-parallel ranks that one copy of the model is sharded over."""
    dp_replicate: Annotated[int, Knob(filled=True, doubles=True, label="Replicas (dp_replicate)")] = 1
    """Number of copies of the sharded group (for hsdp and ddp)."""
    tp: Annotated[int, Knob(search="limited", doubles=True, slider=64, label="Tensor parallelism (tp)")] = 1
    """Tensor-parallel degree."""
    pp: Annotated[int, Knob(search="limited", doubles=True, slider=64, label="Pipeline stages (pp)")] = 1
    """Number of pipeline stages."""
    cp: Annotated[int, Knob(search="limited", doubles=True, slider=64, label="Context parallelism (cp)")] = 1
    """Context-parallel degree."""
    ep: Annotated[int, Knob(search="limited", doubles=True, slider=512, label="Expert parallelism (ep)")] = 1
    """Expert-parallel degree: number of ranks that hold different experts. They are ranks of ``dp_shard``, ``cp`` and
    ``tp`` (Megatron's parallel folding)."""
    etp: Annotated[int, Knob(doubles=True, slider=64, label="Tensor parallelism of experts (etp)")] = 1
    """Tensor-parallel degree of each expert: 1 or ``tp``."""
    dispatcher: Annotated[Dispatcher, Knob(search="kept", needs="ep", words="{}")] = "alltoall"
    """What sends tokens to their experts and back. alltoall is NCCL's all-to-all; the others are DeepEP and
    HybridEP."""
    ep_overlap: Annotated[bool, Knob(search="kept", needs="ep")] = False
    """Send tokens to experts while another microbatch computes (Megatron's 1F1B overlap, DualPipe)."""
    routing: Annotated[Routing, Knob(search="kept", needs="ep", words="{} routing")] = "balanced"
    """How tokens spread over experts. balanced: every expert gets equally many, as benchmarks force it. dropless: as
    measured in training on Qwen3-235B with ep 8, where the busiest rank has 1.5 times the mean. power_law: by a power
    law with this exponent."""
    imbalance: Annotated[
        float | None,
        Knob(search="kept", needs="ep", most=MOST_IMBALANCE, metavar="FACTOR", default_words="what ``routing`` means"),
    ] = None
    """Tokens of the busiest expert-parallel rank, relative to the mean."""
    capacity_factor: Annotated[
        float | None, Knob(search="kept", needs="ep", most=MOST_IMBALANCE, metavar="FACTOR", default_words="no limit")
    ] = None
    """Maximum number of tokens per expert, relative to the mean; further tokens are dropped."""
    sharding: Annotated[Sharding, Knob(search="listed", words="{}", always=True)] = "fsdp_no_reshard"
    """What data parallelism shards. fsdp gathers the parameters again in the backward pass; fsdp_no_reshard keeps them
    after the forward pass."""
    sequence_parallel: Annotated[bool, Knob(needs="tp")] = True
    """Shard norms and residuals along the sequence within the tensor-parallel group."""
    tp_overlap_frac: Annotated[
        float | None,
        Knob(search="fixed", needs="tp", least=0, most=1, metavar="FRAC", default_words="the profile's value"),
    ] = None
    """Share of tensor-parallel communication that overlaps with GEMMs, from 0 to 1."""
    schedule: Annotated[
        Schedule, Knob(search="listed", needs="pp", words="{}", always=True, noun="pipeline schedule")
    ] = ONE_F_ONE_B.name
    """Pipeline schedule: the order of the microbatches. dualpipe runs half of them from each end; every rank holds two
    stages, and tokens travel to experts beside the compute of another microbatch."""
    virtual_stages: Annotated[int, Knob(needs="pp", words=" x {}", slider=16)] = 1
    """Model chunks per pipeline stage (for the interleaved schedule)."""
    cp_method: Annotated[CpMethod, Knob(needs="cp", words="{}")] = "allgather"
    """How context parallelism exchanges keys and values."""
    micro_batch: Annotated[
        int,
        Knob(
            search="listed",
            filled=True,
            doubles=True,
            slider=64,
            words="micro-batch {:,}",
            always=True,
            metavar="M",
            noun="microbatch size",
            default_words="all sequences of the rank in one microbatch, or 1 with a pipeline",
        ),
    ] = 1
    """Sequences per microbatch on each data-parallel rank."""
    recompute: Annotated[Recompute, Knob(search="listed", noun="recomputation policy")] = "none"
    """Which activations the backward pass recomputes instead of storing them. attention: only attention (Megatron-LM
    calls this selective). ops: everything except attention and every second matrix product (torchtitan calls this
    selective). modules: the parts of a block that ``recompute_modules`` names. blocks: the share of blocks given by
    ``recompute_frac``. full: every block."""
    recompute_frac: Annotated[
        float,
        Knob(words=" ({:.0%})", least=0, most=1, metavar="FRAC", default_words="0.5, which is every second block"),
    ] = 1.0
    """Share of the blocks that ``recompute`` blocks recomputes."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], Knob(search="kept", words=" ({})", metavar="NAMES")] = ()
    """Parts of a block that ``recompute`` modules recomputes, named as in Megatron-LM."""
    precision: Annotated[Precision, Knob(search="kept", words="{}")] = "bf16"
    """Data type of the matrix products."""
    fp8_recipe: Annotated[Fp8Recipe, Knob(search="kept", words="{}")] = "tensorwise"
    """How ``precision`` fp8 scales its operands. tensorwise: one scale for each tensor. rowwise: one scale for each row
    that a matrix product sums over."""
    prefetch: Annotated[int, Knob(search="fixed", least=0)] = 1
    """Number of layers whose parameters FSDP gathers in advance; 0 hides no gather."""
    reduce_dtype: Annotated[ReduceDtype, Knob(search="kept", words="reduce {}")] = "fp32"
    """Data type of the gradient reduction."""
    state_dtype: Annotated[StateDtype, Knob(search="kept", words="states {}")] = "fp32"
    """Data type of the parameters and moments in the optimizer, and of the gradients kept for it."""
    moment_dtype: Annotated[
        MomentDtype | None,
        Knob(search="kept", simulated_only=True, words="moments {}", default_words="that of ``state_dtype``"),
    ] = None
    """Data type of the optimizer's two moments, where it is not that of the parameters."""
    sync_every: Annotated[
        int, Knob(search="kept", simulated_only=True, words="synchronize replicas every {:,} steps", metavar="H")
    ] = 1
    """Number of steps between synchronizations of the replicas (local SGD, DiLoCo); the answer is the mean over these
    steps. From 2 on, replicas reduce no gradients together; an outer optimizer takes the mean of how far their
    parameters have moved as its gradient."""
    sync_fragments: Annotated[int, Knob(search="kept", words="in {:,} fragments", metavar="P")] = 1
    """Parts of the model that replicas exchange one after the other beside compute (Streaming DiLoCo), with
    ``sync_every``. With 1, the exchange blocks; from 2 on it blocks only for what it takes longer than the steps."""
    sync_dtype: Annotated[
        SyncDtype | None, Knob(search="kept", words="in {}", default_words="that of the gradient reduction")
    ] = None
    """Data type of the exchange with ``sync_every``."""
    collectives: Annotated[Collectives, Knob(search="kept", simulated_only=True, words="{} collectives")] = "flat"
    """How ranks of a group exchange. flat: NCCL's algorithms. hierarchical: level by level through the node and the
    tiers of the network, if that is faster."""
    placement: Annotated[tuple[str, ...], Knob(search="fixed", choices=AXES, joint="-", metavar="AXES")] = AXES
    """Order of the mesh axes, from neighbouring GPUs outwards."""

    def __post_init__(self) -> None:
        for knob in COUNTS:
            value = getattr(self, knob.name)
            if value < knob.least:
                raise out_of_range(f"plan.{knob.name}", value, f"it must be at least {knob.least}")
            if value > MOST:
                raise out_of_range(f"plan.{knob.name}", value, f"more than {MOST:,} is not supported")
        if self.tp_overlap_frac is not None and not 0 <= self.tp_overlap_frac <= 1:
            raise out_of_range("plan.tp_overlap_frac", self.tp_overlap_frac, "it must be between 0 and 1")
        if not 0 < self.recompute_frac <= 1:
            raise out_of_range("plan.recompute_frac", self.recompute_frac, "it must be above 0 and at most 1")
        self._check_modules()
        for name in ("imbalance", "capacity_factor"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_IMBALANCE:
                text = f"plan.{name} is {value:g}; it must be between 1 and {MOST_IMBALANCE}"
                hint = f"for example {argument(name)} 1.25, or leave it out"
                raise SpecError(text, hint=hint, code="out-of-range", field=f"plan.{name}")
        if sorted(self.placement) != sorted(AXES):
            text = f"plan.placement {'-'.join(self.placement)} must name each axis once"
            hint = f"for example {'-'.join(AXES)} (innermost first)"
            raise SpecError(text, hint=hint, code="not-each-once", field="plan.placement")
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
        text = "recompute is modules, but recompute_modules names none"
        if self.recompute_modules:
            text = f"recompute_modules applies only to recompute modules, but recompute is {self.recompute}"
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


KNOBS = read_knobs(Plan)
"""Field -> its declaration."""
COUNTS = tuple(knob for knob in KNOBS.values() if knob.kind is int)
KEPT = names_of(KNOBS, "kept")
"""Fields that a search for a plan takes as given."""
GIVEN = tuple(name for name in KEPT if name not in ("sync_every", "recompute_modules"))
"""Those of them that all plans of a search have; the others apply to plans with replicas, or that recompute modules."""
FIXED = names_of(KNOBS, "fixed")
"""Fields that have their default in all plans of a search, unless ``knee scale --best`` is given another value."""
ROUTED = tuple(name for name in KEPT if KNOBS[name].needs == "ep")
"""Fields that say how tokens reach experts."""
ORDER = tuple(dict.fromkeys(("sharding", "dp_replicate", *KNOBS)))


def plan_words(plan: Plan, *, also: Collection[str] = (), without: Collection[str] = ()) -> str:
    """Describe a plan in one line: ``hsdp, dp_replicate 8, dp_shard 8, micro-batch 2``.

    Fields at their default are left out, except those in ``also``; fields in ``without`` are always left out.
    """
    words: list[str] = []
    for name in ORDER:
        knob, value = KNOBS[name], getattr(plan, name)
        means_something = knob.needs is None or getattr(plan, knob.needs) > 1
        if name in without or not (name in also or (means_something and (knob.always or value != knob.default))):
            continue
        text = knob.describe(value)
        if text.startswith(" "):
            words[-1] += text
        else:
            words.append(text)
    return ", ".join(words)


def only_simulated(text: str, hint: str, *, code: str = "contradiction") -> tuple[PlanRule, ...]:
    """Rules for a trainer or an export: one for each field of a plan that only the simulator has.

    ``{words}`` in the text is the value in words; ``{argument}`` in the hint is the field as the reader writes it, and
    ``{option}`` as the command line does.
    """
    return tuple(_only_simulated(knob, text, hint, code) for knob in KNOBS.values() if knob.simulated_only)


def _only_simulated(knob: Knob, text: str, hint: str, code: str) -> PlanRule:
    return PlanRule(
        f"plan.{knob.name}",
        lambda job: getattr(job.plan, knob.name) != knob.default,
        lambda job: text.format(words=knob.describe(getattr(job.plan, knob.name))),
        lambda _: hint.format(argument=argument(knob.name), option=f"--{knob.name.replace('_', '-')}"),
        code,
    )
