"""Every valid plan for a model, a number of GPUs and a batch, as columns; nothing is sampled.

Options that change nothing in a plan (the schedule without a pipeline, say) have their default value there, so that no
plan is in the space twice. What no plan could be is not generated: the rules are those of ``specs.plan`` and
``specs.job``, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, Ints, distinct, joined
from knee.base.errors import InputError
from knee.engine.cost.compute_costs import is_narrow, shapes_of
from knee.engine.cost.placement import gpus_used
from knee.engine.simulator import CHUNK, Results
from knee.engine.workload.memory import MemoryColumns, memory_of
from knee.engine.workload.traffic import Modes, traffic_of
from knee.specs.hardware import Cluster
from knee.specs.legality import expert_ranks, fills_ranks, first_broken, interrupts_backward
from knee.specs.model import Model
from knee.specs.model.split_rules import OWN_STAGES, splits_heads, splits_sequence, splits_tokens
from knee.specs.plan import (
    COLLECTIVES,
    CP_METHODS,
    FIXED,
    GIVEN,
    RECOMPUTES,
    REDUCING,
    SHARDING_RULES,
    SHARDINGS,
    Collectives,
    Plan,
    RecomputeModule,
    Sharding,
)
from knee.specs.plan_table import COLUMNS, SIZES, PlanTable, column_of, same_columns, variant_rows
from knee.specs.profile import Profile
from knee.specs.schedules import ONE_F_ONE_B, PIPELINE_SCHEDULES, SCHEDULES, searched_schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched: all of it, within these limits. Empty tuples mean every value."""

    model: Model
    gpus: int
    global_batch: int
    seq_len: int
    fixed: Plan = field(default_factory=Plan)
    """Whose precision, types, prefetch and placement all plans have."""
    max_tp: int | None = None
    max_pp: int | None = None
    max_cp: int | None = None
    max_ep: int | None = None
    shardings: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    recomputes: tuple[str, ...] = ()
    modules: tuple[RecomputeModule, ...] = ()
    """What plans recompute that recompute modules."""
    micro_batches: tuple[int, ...] = ()
    sync_every: int = 1
    """Steps between exchanges of replicas, in all plans that have some."""
    collectives: tuple[Collectives, ...] = ()
    """Kinds that every plan is tried with; empty: that of ``fixed``."""
    attention_again: bool = False
    """Whether recomputing attention alone saves anything: not beside kernels that keep no scores."""

    def __post_init__(self) -> None:
        for name in ("gpus", "global_batch", "seq_len", "sync_every"):
            if getattr(self, name) < 1:
                raise _too_small(name, getattr(self, name))
        limits = {"max_tp": self.max_tp, "max_pp": self.max_pp, "max_cp": self.max_cp, "max_ep": self.max_ep}
        limits |= {"micro_batch": min(self.micro_batches, default=1)}
        for name, value in limits.items():
            if value is not None and value < 1:
                raise _too_small(name, value)

    @property
    def every_collectives(self) -> tuple[Collectives, ...]:
        """Kinds that every plan is tried with, the one that is never slower alone last."""
        return self.collectives or (self.fixed.collectives,)


def _too_small(name: str, value: int) -> InputError:
    return InputError(f"{name} is {value}; it must be at least 1", code="out-of-range", field=name)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(small + [number // i for i in reversed(small) if i * i != number])


def degrees(space: Space) -> Iterator[tuple[int, int, int, int]]:
    """(tp, pp, cp, dp) of every factorisation that the model, the sequence and the batch allow."""
    model = space.model
    for tp in divisors(space.gpus):
        if tp > (space.max_tp or tp) or not splits_heads(model, tp):
            continue
        for pp in divisors(space.gpus // tp):
            if pp > min(space.max_pp or pp, model.walked_layers + OWN_STAGES):
                continue
            for cp in divisors(space.gpus // tp // pp):
                dp = space.gpus // (tp * pp * cp)
                if cp > (space.max_cp or cp) or space.global_batch % dp or not splits_sequence(space.seq_len, cp):
                    continue
                yield tp, pp, cp, dp


def folds(space: Space, tp: int, cp: int, dp: int) -> list[tuple[int, int]]:
    """(ep, etp) of every way to lay the experts over the ranks of a stage; an expert is whole, or split as often as
    the rest of the model."""
    experts = space.model.experts
    if experts is None:
        return [(1, 1)]
    eps = [ep for ep in divisors(experts.count) if ep <= (space.max_ep or ep)]
    etps = [etp for etp in dict.fromkeys((1, tp)) if experts.ffn % etp == 0]
    return [(ep, etp) for ep in eps for etp in etps if fills_ranks(tp * cp * dp, ep, etp)]


def shardings(space: Space, dp: int) -> list[tuple[Sharding, int, int]]:
    """(mode, dp_shard, dp_replicate) of so many data-parallel ranks.

    Modes differ on one rank too: FSDP keeps 16-bit copies of a few layers where others keep all.
    """
    return [one for one in _legal_shardings(dp) if (one[0] in space.shardings if space.shardings else one[0] != RARE)]


MODES: tuple[Sharding, ...] = ("ddp", "zero1", "fsdp_no_reshard", "zero2", "fsdp", "hsdp")
"""In the order of a search."""
RARE: Sharding = "zero2"
"""Tried only where it is asked for: few stacks have it."""


@cache
def _legal_shardings(dp: int) -> tuple[tuple[Sharding, int, int], ...]:
    """Every mode with every pair of degrees, less those that a plan refuses."""
    every = ((mode, shard, dp // shard) for shard in divisors(dp) for mode in MODES)
    return tuple(one for one in every if first_broken(SHARDING_RULES, _Degrees(*one)) is None)


class _Degrees(NamedTuple):
    sharding: Sharding
    dp_shard: int
    dp_replicate: int


def schedules(space: Space, pp: int) -> list[tuple[str, int]]:
    """(schedule, virtual stages) of a pipeline."""
    if pp == 1:
        return [(ONE_F_ONE_B.name, 1)]
    layers = space.model.walked_layers
    virtual = [v for v in range(2, (layers + OWN_STAGES) // pp + 1) if _sensible(layers, pp, v)]
    return [
        (schedule.name, v)
        for schedule in searched_schedules()
        if (schedule.name in space.schedules if space.schedules else schedule.by_default) and schedule.takes_ranks(pp)
        for v in (virtual if schedule.virtual else (1,))
    ]


def _sensible(layers: int, pp: int, virtual: int) -> bool:
    """Virtual stages that cut the model evenly; where its pipeline does not, those that leave its two ends a layer
    short (Llama-3 405B: 126 layers on 16 stages of 8 chunks), or two parts."""
    if layers % pp == 0:
        return layers % (pp * virtual) == 0
    return (layers + OWN_STAGES) % (pp * virtual) == 0 or virtual == 2


Shared = Sequence[tuple[Sharding, int, int]]
"""Mode, dp_shard and dp_replicate of some shardings."""


def whole_table(space: Space) -> PlanTable:
    """The space as one table; of no rows where there is no plan."""
    plans = _plans_of(space, kernel_shapes(space), lambda dp: shardings(space, dp))
    return with_each(plans, space.every_collectives)


def whole_tables(space: Space) -> Iterator[PlanTable]:
    """The space as tables of bounded length, of which one is held at a time."""
    shapes = kernel_shapes(space)
    for start in range(0, len(shapes), TOGETHER):
        some = shapes.rows(slice(start, start + TOGETHER))
        yield with_each(_plans_of(space, some, lambda dp: shardings(space, dp)), space.every_collectives)


TOGETHER = 2048
"""Kernel shapes whose plans are one of ``whole_tables``."""


def unsharded_table(space: Space, shapes: PlanTable | None = None) -> PlanTable:
    """Plans that differ in more than their sharding and collectives, of some kernel shapes or of all; all are ZeRO-1,
    whose compute is the least, with the faster collectives. ``sharded_table`` has the rest."""
    return _plans_of(space, kernel_shapes(space) if shapes is None else shapes, lambda dp: [("zero1", dp, 1)])


def sharded_table(space: Space, unsharded: PlanTable) -> PlanTable:
    """Every sharding of these plans, with each kind of collectives."""
    parts = []
    for dp in distinct(unsharded.dp_shard).tolist():
        plans, shared = np.flatnonzero(unsharded.dp_shard == dp), shardings(space, dp)
        plan, share = (grid.ravel() for grid in np.indices((len(plans), len(shared))))
        some, (shard, copies) = unsharded.rows(plans[plan]), (ranks[share] for ranks in _ranks(shared))
        mode = _codes(SHARDINGS, [one[0] for one in shared])[share]
        some = replace(some, sharding=mode, dp_shard=shard, dp_replicate=copies, **_synced(space, copies))
        # experts fill the ranks of a stage evenly
        folds_evenly = fills_ranks(_stage_ranks(mode, shard, copies, some.tp, some.cp), some.ep, some.etp)
        parts.append(some.rows(np.flatnonzero(_can_be(mode, some.schedule, some.pp) & folds_evenly)))
    return with_each(joined(unsharded.rows(slice(0, 0)), *parts), space.every_collectives)


def count_plans(space: Space) -> int:
    """Rows of ``whole_table``, which is not made for it."""
    found = 0
    for tp, pp, cp, dp in degrees(space):
        orders, folded, shared = schedules(space, pp), folds(space, tp, cp, dp), shardings(space, dp)
        sizes, others = _ints(_sizes(space, dp)), prod(len(option) for option in _options(space, tp, cp))
        modes, codes = (_codes(SHARDINGS, [one[0] for one in shared]), _codes(SCHEDULES, [one[0] for one in orders]))
        shard, copies = (ranks[:, None] for ranks in _ranks(shared))
        ranks = _stage_ranks(modes[:, None], shard, copies, tp, cp)
        laid = (ranks % _ints([ep * etp for ep, etp in folded])[None] == 0).sum(axis=1)
        cut = _cuts_batch(space, pp, dp, sizes[:, None], codes[None]).sum(axis=0)
        found += int((laid[:, None] * cut[None] * _can_be(modes[:, None], codes[None], pp)).sum()) * others
    return found * len(space.every_collectives)


def kernel_shapes(space: Space) -> PlanTable:
    """One plan of each shape that the kernels and the messages between tensor-, context- and expert-parallel ranks of a
    plan can have. It has the most stages, and the plainest schedule."""
    deep: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for tp, pp, cp, dp in degrees(space):
        deep.setdefault((tp, cp), []).append((pp, dp))
    parts = [_shapes_of(space, 1, 1, [])]
    parts += [_shapes_of(space, tp, cp, stages) for (tp, cp), stages in deep.items()]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows = len(columns["tp"])
    modules = int(column_of("recompute_modules", [space.modules])[0])
    first = Plan(sharding="zero1", schedule=ONE_F_ONE_B.name, collectives=space.every_collectives[-1])
    columns |= same_columns(space.fixed, (*GIVEN, *FIXED), rows)
    columns |= same_columns(first, ("dp_replicate", "sharding", "schedule", "virtual_stages", "collectives"), rows)
    columns |= {name: np.full(rows, getattr(space, name), dtype=np.int64) for name in SIZES}
    columns |= _synced(space, columns["dp_replicate"]) | {
        "dp_shard": space.gpus // (columns["tp"] * columns["pp"] * columns["cp"]),
        "recompute_frac": np.where(columns["recompute"] == RECOMPUTES.index("blocks"), 0.5, 1.0),
        "recompute_modules": np.where(columns["recompute"] == RECOMPUTES.index("modules"), modules, 0),
    }
    return PlanTable(**columns, placement=space.fixed.placement)


def _shapes_of(space: Space, tp: int, cp: int, stages: list[tuple[int, int]]) -> dict[str, Any]:
    """The shapes of two degrees and of (pp, dp) beside them, as columns."""
    sizes = sorted({size for _, dp in stages for size in _sizes(space, dp)})
    folded = sorted({fold for _, dp in stages for fold in folds(space, tp, cp, dp)})
    size_of, ranks_of = _ints(sizes)[:, None], _ints([ep * etp for ep, etp in folded])[None]
    deepest = np.zeros((len(sizes), len(folded)), dtype=np.int64)
    for pp, dp in stages:
        fits = (space.global_batch // dp % size_of == 0) & (tp * cp * dp % ranks_of == 0)
        deepest = np.where(fits, np.maximum(deepest, pp), deepest)
    splits, again, methods = _options(space, tp, cp)
    lengths = (len(sizes), len(splits), len(again), len(methods), len(folded))
    size, split, recompute, method, fold = np.unravel_index(np.arange(prod(lengths)), lengths)
    good = np.flatnonzero(deepest[size, fold])
    ep, etp = (_ints([one[i] for one in folded])[fold[good]] for i in range(2))
    return {
        "tp": np.full(len(good), tp, dtype=np.int64),
        "cp": np.full(len(good), cp, dtype=np.int64),
        "pp": deepest[size[good], fold[good]],
        "ep": ep,
        "etp": etp,
        "micro_batch": _ints(sizes)[size[good]],
        "sequence_parallel": np.array(splits, dtype=np.bool_)[split[good]],
        "recompute": _codes(RECOMPUTES, again)[recompute[good]],
        "cp_method": _codes(CP_METHODS, methods)[method[good]],
    }


def _plans_of(space: Space, shapes: PlanTable, shared_of: Callable[[int], Shared]) -> PlanTable:
    """Every plan of these shapes, with the shardings that so many data-parallel ranks have."""
    pairs: dict[tuple[int, int], Ints] = {}
    for tp in distinct(shapes.tp).tolist():
        own = np.flatnonzero(shapes.tp == tp)
        pairs |= {(tp, cp): own[shapes.cp[own] == cp] for cp in distinct(shapes.cp[own]).tolist()}
    none = np.zeros(0, dtype=np.int64)
    parts: list[tuple[Ints, ...]] = [(none,) * 7]
    for tp, pp, cp, dp in degrees(space):
        own = pairs.get((tp, cp), none)
        folded = shapes.ep[own] * shapes.etp[own]
        rows = own[(space.global_batch // dp % shapes.micro_batch[own] == 0) & (tp * cp * dp % folded == 0)]
        if len(rows):
            parts.append(_cut_and_shared(space, shapes, rows, pp, dp, shared_of(dp)))
    row, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    names = ("pp", "dp_shard", "dp_replicate", "sharding", "schedule", "virtual_stages")
    cut: dict[str, Any] = dict(zip(names, columns, strict=True))
    return replace(shapes.rows(row), **cut, **_synced(space, cut["dp_replicate"]))


def _cut_and_shared(space: Space, shapes: PlanTable, rows: Ints, pp: int, dp: int, shared: Shared) -> tuple[Ints, ...]:
    """Every combination of shapes, schedules and shardings, less those that cannot be: the row of its shape, pp,
    dp_shard, dp_replicate, sharding, schedule and virtual stages."""
    orders = schedules(space, pp)
    lengths = (len(shared), len(rows), len(orders))
    share, shape, order = np.unravel_index(np.arange(prod(lengths)), lengths)
    modes, codes = _codes(SHARDINGS, [one[0] for one in shared]), _codes(SCHEDULES, [one[0] for one in orders])
    cut = _cuts_batch(space, pp, dp, shapes.micro_batch[rows][:, None], codes[None])
    can_be = _can_be(modes[:, None], codes[None], pp)[share, order] & cut[shape, order]
    shard, copies = _ranks(shared)
    if space.model.experts is not None:
        some = shapes.rows(rows[:1])
        ranks = _stage_ranks(modes, shard, copies, some.tp, some.cp)
        laid = fills_ranks(ranks[:, None], shapes.ep[rows][None], shapes.etp[rows][None])
        can_be &= laid[share, shape]
    good = np.flatnonzero(can_be)
    share, shape, order = share[good], shape[good], order[good]
    virtual, stages = _ints([one[1] for one in orders]), np.full(len(good), pp, dtype=np.int64)
    return rows[shape], stages, shard[share], copies[share], modes[share], codes[order], virtual[order]


def _cuts_batch(space: Space, pp: int, dp: int, micro: Ints, schedule: Ints) -> Bools:
    count = space.global_batch // dp // micro
    if pp == 1:
        return np.ones(np.broadcast_shapes(count.shape, schedule.shape), dtype=np.bool_)
    takes = [one.takes_microbatches(pp, count) for one in PIPELINE_SCHEDULES]
    return np.asarray(np.select([schedule == code for code in range(len(takes))], takes), dtype=np.bool_)


def _sizes(space: Space, dp: int) -> list[int]:
    found = divisors(space.global_batch // dp)
    return [size for size in found if not space.micro_batches or size in space.micro_batches]


def _options(space: Space, tp: int, cp: int) -> tuple[list[bool], list[str], Sequence[str]]:
    """Sequence parallelism, recomputation and the ways of context parallelism that two degrees leave open."""
    splits = [True, False][: 2 if tp > 1 else 1] if splits_tokens(space.seq_len, cp, tp) else [False]
    if space.model.experts is not None and tp > 1:
        splits = [split for split in splits if split]  # experts take each token from one rank
    usual = (
        "none",
        *(("attention",) if space.attention_again else ()),
        *(("modules",) if space.modules else ()),
        "full",
    )
    # ops, and every second block, only where they are asked for; the search adds the least share of blocks that fits
    again = [name for name in RECOMPUTES if name in (space.recomputes or usual)]
    again = [name for name in again if name != "attention" or space.attention_again]
    again = [name for name in again if name != "modules" or space.modules]
    return splits, [str(name) for name in again], CP_METHODS if cp > 1 else CP_METHODS[:1]


_REDUCES = np.array([name in REDUCING for name in SHARDINGS])
_SPLITS = np.array([schedule.splits_backward for schedule in PIPELINE_SCHEDULES])


def _can_be(mode: Ints, schedule: Ints, pp: Ints | int) -> Bools:
    """Nothing is gathered or reduced between the halves of a split backward."""
    return np.asarray(~interrupts_backward(_SPLITS[schedule], _REDUCES[mode], pp), dtype=np.bool_)


def _stage_ranks(mode: Ints, shard: Ints, copies: Ints, tp: Ints | int, cp: Ints | int) -> Ints:
    return np.asarray(expert_ranks(mode == SHARDINGS.index("ddp"), shard, copies, cp, tp), dtype=np.int64)


def _synced(space: Space, copies: Ints) -> dict[str, Any]:
    """How replicas exchange, in plans that have some and let them run apart."""
    apart = (copies > 1) & (space.sync_every > 1)
    fixed, alone = space.fixed, Plan()
    values = {"sync_every": (space.sync_every, 1)}
    values |= {name: (getattr(fixed, name), getattr(alone, name)) for name in ("sync_fragments", "sync_dtype")}
    return {name: np.where(apart, *column_of(name, pair)) for name, pair in values.items()}


def _ranks(shared: Shared) -> tuple[Ints, Ints]:
    return _ints([shard for _, shard, _ in shared]), _ints([copies for _, _, copies in shared])


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _codes(names: Sequence[str], values: Sequence[str]) -> Ints:
    return np.array([names.index(value) for value in values], dtype=np.int64)


# Flat or hierarchical collectives: a choice where a job crosses a slow tier of the network.

FLAT, HIERARCHICAL = COLLECTIVES.index("flat"), COLLECTIVES.index("hierarchical")


def searched_collectives(cluster: Cluster, gpus: int) -> tuple[Collectives, ...]:
    """Both kinds if the job crosses a tier that is oversubscribed, or farther away than a hop between nodes; else none
    that a plan does not have anyway, because other searches would take twice as long for nothing."""
    fabric = cluster.fabric
    nodes = -(-gpus // int(gpus_used(np.array(gpus), cluster.node.gpus)))
    slow = [tier for tier in fabric.tiers if tier.oversubscription > 1 or tier.hop_s > fabric.hop_s]
    return COLLECTIVES if any(nodes > tier.nodes for tier in slow) else ()


def with_each(table: PlanTable, choices: tuple[Collectives, ...]) -> PlanTable:
    """Every plan with each kind of collectives."""
    if len(choices) == 1:
        return table
    row, choice = (grid.ravel() for grid in np.indices((len(table), len(choices))))
    return replace(table.rows(row), collectives=np.array([COLLECTIVES.index(name) for name in choices])[choice])


def without_twins(table: PlanTable, results: Results) -> Ints:
    """Rows, less those of hierarchical plans that take exactly what the same plan with flat collectives takes."""
    if not (table.collectives == HIERARCHICAL).any() or not (table.collectives == FLAT).any():
        return np.arange(len(table))
    names = [name for name in COLUMNS if name != "collectives"]
    columns = [np.nan_to_num(getattr(table, name), nan=-1.0).tolist() for name in names]
    takes = [results.step_s.tolist(), results.power_w_per_gpu.tolist()]
    keys = list(zip(*columns, *takes, strict=True))
    flat = {key for key, kind in zip(keys, table.collectives.tolist(), strict=True) if kind == FLAT}
    kept = [kind == FLAT or key not in flat for key, kind in zip(keys, table.collectives.tolist(), strict=True)]
    return np.flatnonzero(kept)


SHARES = (0.25, 0.5, 0.75)
"""Of the layers, that a plan recomputes where none do not fit: every fourth, every second, three of four."""


def memory_table(model: Model, profile: Profile, table: PlanTable) -> MemoryColumns:
    """The parts of every plan's memory."""
    modes = Modes.of(table)
    shapes = shapes_of(model, table, profile)
    traffic = traffic_of(model, table, modes, scatters_sends=profile.scatters_sends, fp8=shapes.fp8)
    return memory_of(model, profile, table, shapes, modes, traffic)


def memory_bytes(model: Model, profile: Profile, table: PlanTable) -> Floats:
    """Bytes that every plan needs, for a table of any length."""
    pieces = [slice(i, i + CHUNK) for i in range(0, len(table), CHUNK)]
    needs = [memory_table(variant_rows(model, some), profile, table.rows(some)).total_bytes for some in pieces]
    return np.concatenate([np.zeros(0), *needs])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory:
    """What no sharding of a plan needs less than, however many of its layers are recomputed where that is open."""

    any_bytes: Floats
    """Activations, logits, and a part of the optimizer's states."""
    whole_bytes: Floats
    """And weights and gradients, where neither is sharded in between: ZeRO-1 over all ranks, without its buffers."""

    @classmethod
    def of(cls, space: Space, profile: Profile, unsharded: PlanTable) -> LeastMemory:
        """The memory of plans before their sharding is chosen."""
        if recomputes_shares(space):
            none = unsharded.recompute == RECOMPUTES.index("none")
            most = with_share(unsharded, max(SHARES))
            recompute = np.where(none, most.recompute, unsharded.recompute)
            recompute_frac = np.where(none, most.recompute_frac, unsharded.recompute_frac)
            unsharded = replace(unsharded, recompute=recompute, recompute_frac=recompute_frac)
        m = memory_table(space.model, profile, unsharded)
        least = m.activations_bytes + m.logits_bytes + m.optimizer_bytes
        whole = least + m.weights_bytes + m.gradients_bytes
        each = 1.0 + profile.allocator_frac
        return cls(any_bytes=profile.context_bytes + each * least, whole_bytes=profile.context_bytes + each * whole)


def shardings_that_may_fit(space: Space, profile: Profile, unsharded: PlanTable, hbm_bytes: float) -> PlanTable:
    """Every sharding of these plans but some that certainly do not fit."""
    least = LeastMemory.of(space, profile, unsharded)
    may = least.any_bytes <= hbm_bytes
    # DDP needs no less than ZeRO-1 over all ranks; copies in fewer than 16 bits differ between modes
    less_only = may & (least.whole_bytes > hbm_bytes) & ~is_narrow(unsharded)
    every = sharded_table(space, unsharded.rows(np.flatnonzero(may & ~less_only)))
    considered = {mode for mode, *_ in shardings(space, 4)}
    less = tuple(mode for mode in MAY_NEED_LESS if mode in considered)
    if not less or not less_only.any():
        return every
    some = sharded_table(replace(space, shardings=less), unsharded.rows(np.flatnonzero(less_only)))
    # nor do parameters that stay gathered, beside gradients that stay whole for several microbatches
    stays = (some.sharding == SHARDINGS.index("fsdp_no_reshard")) & (some.dp_shard * some.cp > 1)
    stays &= (some.microbatches > 1) & (not profile.keeps_half_gradients)
    return joined(every, some.rows(np.flatnonzero(~stays)))


MAY_NEED_LESS: tuple[Sharding, ...] = (*REDUCING, "fsdp_no_reshard")
"""Modes that may need less memory than ZeRO-1 over all ranks."""


def recomputes_shares(space: Space) -> bool:
    """Whether plans may recompute a share of their layers."""
    given = set(space.recomputes)
    return not given or ("none" in given and bool(given & {"blocks", "full"}))


def with_share(table: PlanTable, share: float) -> PlanTable:
    """The plans with that share of their layers recomputed."""
    blocks = np.full(len(table), RECOMPUTES.index("blocks"))
    return replace(table, recompute=blocks, recompute_frac=np.full(len(table), share))


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingPlans(Columns):
    """Plans that fit."""

    table: PlanTable
    memory_bytes: Floats
    row: Ints
    """Of each: its row among the plans in question."""


def fitting(space: Space, profile: Profile, table: PlanTable, hbm_bytes: float) -> FittingPlans:
    """Plans that fit: first those that do as they are, then those without recomputation that do with a share of their
    layers recomputed, each with the least share.

    More than that share only costs time, and a plan that fits without needs none.
    """

    def of(some: PlanTable, row: Ints) -> FittingPlans:
        needs = memory_bytes(variant_rows(space.model, row), profile, some)
        return FittingPlans(table=some, memory_bytes=needs, row=row).rows(np.flatnonzero(needs <= hbm_bytes))

    found = of(table, np.arange(len(table)))
    fits = np.zeros(len(table), dtype=np.bool_)
    fits[found.row] = True
    open_ = np.flatnonzero(~fits & (table.recompute == RECOMPUTES.index("none")) & recomputes_shares(space))
    # what does not fit with most of its layers recomputed need not be asked again
    *less, most = SHARES
    left = of(with_share(table.rows(open_), most), open_)
    for share in less:
        some = of(with_share(left.table, share), left.row)
        found = joined(found, some)
        fits[some.row] = True
        left = left.rows(np.flatnonzero(~fits[left.row]))
    return joined(found, left)
