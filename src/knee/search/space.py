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

from knee.arrays import Bools, Floats, Ints, distinct
from knee.errors import InputError
from knee.search.collective_choice import with_each
from knee.specs.model import Model
from knee.specs.model.split_rules import OWN_STAGES, splits_directions, splits_heads, splits_sequence, splits_tokens
from knee.specs.plan import (
    COLLECTIVES,
    CP_METHODS,
    DISPATCHERS,
    FP8_RECIPES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    REDUCE_DTYPES,
    REDUCING,
    ROUTINGS,
    SCHEDULES,
    SHARDINGS,
    SPLIT_BACKWARD,
    STATE_DTYPES,
    Collectives,
    Plan,
    RecomputeModule,
    Sharding,
)
from knee.specs.plan_table import COLUMNS, PlanTable, sync_code


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
    """Ascending."""
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
    return [(ep, etp) for ep in eps for etp in etps if (tp * cp * dp) % (ep * etp) == 0]


def shardings(space: Space, dp: int) -> list[tuple[Sharding, int, int]]:
    """(mode, dp_shard, dp_replicate) of so many data-parallel ranks.

    Modes differ on one rank too: FSDP keeps 16-bit copies of a few layers where others keep all.
    """
    found: list[tuple[Sharding, int, int]] = [("ddp", 1, dp)]
    for shard in divisors(dp):
        replicate = dp // shard
        found += [("zero1", shard, replicate), ("fsdp_no_reshard", shard, replicate)]
        if "zero2" in space.shardings:  # only where it is asked for: few stacks have it
            found.append(("zero2", shard, replicate))
        if replicate == 1:
            found.append(("fsdp", shard, 1))
        elif shard > 1:
            found.append(("hsdp", shard, replicate))
    return [one for one in found if not space.shardings or one[0] in space.shardings]


def schedules(space: Space, pp: int) -> list[tuple[str, int]]:
    """(schedule, virtual stages) of a pipeline."""
    if pp == 1:
        return [("1f1b", 1)]
    found = [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1)]
    most = (space.model.walked_layers + OWN_STAGES) // pp
    found += [("interleaved", v) for v in range(2, most + 1) if _sensible(space.model.walked_layers, pp, v)]
    if "dualpipe" in space.schedules and pp % 2 == 0:  # only where it is asked for: few stacks have it
        found.append(("dualpipe", 1))
    return [one for one in found if not space.schedules or one[0] in space.schedules]


def _sensible(layers: int, pp: int, virtual: int) -> bool:
    """Virtual stages that cut the model evenly; where its pipeline does not, those that leave its two ends a layer
    short (Llama-3 405B: 126 layers on 16 stages of 8 chunks), or two parts."""
    if layers % pp == 0:
        return layers % (pp * virtual) == 0
    return (layers + OWN_STAGES) % (pp * virtual) == 0 or virtual == 2


def whole_table(space: Space) -> PlanTable:
    """The space as one table; of no rows where there is no plan."""
    return with_each(_table(space, lambda dp: shardings(space, dp)), space.every_collectives)


def unsharded_table(space: Space) -> PlanTable:
    """Plans that differ in more than their sharding and collectives; all are ZeRO-1, whose compute is the least, with
    the faster collectives. ``sharded_table`` has the rest."""
    return _table(space, lambda dp: [("zero1", dp, 1)])


def sharded_table(space: Space, unsharded: PlanTable) -> PlanTable:
    """Every sharding of these plans, with each kind of collectives."""
    parts = []
    for dp in distinct(unsharded.dp_shard).tolist():
        plans, shared = np.flatnonzero(unsharded.dp_shard == dp), shardings(space, dp)
        plan, share = (grid.ravel() for grid in np.indices((len(plans), len(shared))))
        some, copies = unsharded.rows(plans[plan]), _ints([one[2] for one in shared])[share]
        mode = _codes(SHARDINGS, [one[0] for one in shared])[share]
        some = replace(
            some,
            sharding=mode,
            dp_shard=_ints([one[1] for one in shared])[share],
            dp_replicate=copies,
            **_synced(space, copies),
        )
        parts.append(some.rows(np.flatnonzero(_can_be(mode, some.schedule, some.pp) & _folds(some))))
    return with_each(joined(unsharded.rows(slice(0, 0)), *parts), space.every_collectives)


def count_plans(space: Space, unsharded: PlanTable) -> int:
    """Rows of ``whole_table``, which is not made for it."""
    found = 0
    for dp in distinct(unsharded.dp_shard).tolist():
        some = unsharded.rows(np.flatnonzero(unsharded.dp_shard == dp))
        folded = some.ep * some.etp
        for name, shard, copies in shardings(space, dp):
            mode = np.full(len(some), SHARDINGS.index(name))
            fits = _stage_ranks(mode, shard, copies, some.tp, some.cp) % folded == 0
            found += int((_can_be(mode, some.schedule, some.pp) & fits).sum())
    return found * len(space.every_collectives)


def joined(*tables: PlanTable) -> PlanTable:
    """Tables one after the other."""
    columns = {name: np.concatenate([getattr(t, name) for t in tables]) for name in COLUMNS}
    return PlanTable(placement=tables[0].placement, **columns)


_REDUCES = np.array([name in REDUCING for name in SHARDINGS])
_SPLITS = np.array([name in SPLIT_BACKWARD for name in SCHEDULES])


def _can_be(mode: Ints, schedule: Ints, pp: Ints | int) -> Bools:
    """Nothing is gathered or reduced between the halves of a split backward."""
    return np.asarray(~(_REDUCES[mode] & _SPLITS[schedule] & (pp > 1)), dtype=np.bool_)


def _stage_ranks(mode: Ints, shard: Ints | int, copies: Ints | int, tp: Ints | int, cp: Ints | int) -> Ints:
    """Ranks of a stage over which experts are laid: those of one replica, or all of them under DDP."""
    return np.asarray(np.where(mode == SHARDINGS.index("ddp"), copies, shard) * tp * cp, dtype=np.int64)


def _folds(table: PlanTable) -> Bools:
    """Plans whose experts fill the ranks of a stage evenly."""
    ranks = _stage_ranks(table.sharding, table.dp_shard, table.dp_replicate, table.tp, table.cp)
    return np.asarray(ranks % (table.ep * table.etp) == 0, dtype=np.bool_)


class _Open(NamedTuple):
    """What a factorisation of the GPUs leaves open, as columns."""

    dp_shard: Ints
    dp_replicate: Ints
    sharding: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    schedule: Ints
    virtual_stages: Ints
    sequence_parallel: Bools
    recompute: Ints
    cp_method: Ints


def _table(space: Space, shared: Callable[[int], Sequence[tuple[Sharding, int, int]]]) -> PlanTable:
    """Every plan, with the shardings that so many data-parallel ranks have."""
    factors = list(degrees(space))
    modes = {dp: _sharding_columns(shared(dp)) for dp in {dp for *_, dp in factors}}
    nothing = _open(space, 1, 1, 1, 1, _sharding_columns([]))
    parts = [nothing, *(_open(space, tp, pp, cp, dp, modes[dp]) for tp, pp, cp, dp in factors)]
    open_ = _Open(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    counts = [len(part.sharding) for part in parts]
    tp, pp, cp, _ = np.repeat(np.array([(1, 1, 1, 1), *factors]), counts, axis=0).T
    fixed, n = space.fixed, len(tp)
    modules = sum(1 << RECOMPUTE_MODULES.index(module) for module in space.modules)

    def same(value: int) -> Ints:
        return np.full(n, value, dtype=np.int64)

    return PlanTable(
        **open_._asdict(),
        gpus=same(space.gpus),
        global_batch=same(space.global_batch),
        seq_len=same(space.seq_len),
        tp=np.ascontiguousarray(tp),
        pp=np.ascontiguousarray(pp),
        cp=np.ascontiguousarray(cp),
        prefetch=same(fixed.prefetch),
        precision=same(PRECISIONS.index(fixed.precision)),
        fp8_recipe=same(FP8_RECIPES.index(fixed.fp8_recipe)),
        reduce_dtype=same(REDUCE_DTYPES.index(fixed.reduce_dtype)),
        state_dtype=same(STATE_DTYPES.index(fixed.state_dtype)),
        **_synced(space, open_.dp_replicate),
        collectives=same(COLLECTIVES.index(space.every_collectives[-1])),
        recompute_frac=np.where(open_.recompute == RECOMPUTES.index("blocks"), 0.5, 1.0),
        modules=np.where(open_.recompute == RECOMPUTES.index("modules"), modules, 0),
        dispatcher=same(DISPATCHERS.index(fixed.dispatcher)),
        routing=same(ROUTINGS.index(fixed.routing)),
        ep_overlap=np.full(n, fixed.ep_overlap),
        tp_overlap_frac=_maybe(n, fixed.tp_overlap_frac),
        imbalance=_maybe(n, fixed.imbalance),
        capacity_factor=_maybe(n, fixed.capacity_factor),
        placement=fixed.placement,
    )


def _synced(space: Space, copies: Ints) -> dict[str, Any]:
    """How replicas exchange, in plans that have some and let them run apart."""
    apart = (copies > 1) & (space.sync_every > 1)
    values = {"sync_every": (space.sync_every, 1), "sync_fragments": (space.fixed.sync_fragments, 1)}
    values |= {"sync_dtype": (sync_code(space.fixed), 0)}
    return {name: np.where(apart, *pair) for name, pair in values.items()}


def _sharding_columns(shared: Sequence[tuple[Sharding, int, int]]) -> tuple[Ints, Ints, Ints]:
    """Mode, dp_shard and dp_replicate."""
    modes = _codes(SHARDINGS, [mode for mode, _, _ in shared])
    return modes, _ints([shard for _, shard, _ in shared]), _ints([copies for _, _, copies in shared])


def _open(space: Space, tp: int, pp: int, cp: int, dp: int, shared: tuple[Ints, Ints, Ints]) -> _Open:
    """Every combination of what a factorisation leaves open, less those that cannot be."""
    per_rank = space.global_batch // dp
    sizes = [size for size in divisors(per_rank) if not space.micro_batches or size in space.micro_batches]
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
    methods = CP_METHODS if cp > 1 else CP_METHODS[:1]
    orders, folded = schedules(space, pp), folds(space, tp, cp, dp)
    lengths = (len(shared[0]), len(sizes), len(orders), len(splits), len(again), len(methods), len(folded))
    share, size, order, split, recompute, method, fold = np.unravel_index(np.arange(prod(lengths)), lengths)
    mode = shared[0][share]
    schedule = _codes(SCHEDULES, [one[0] for one in orders])[order]
    micro = _ints(sizes)[size]
    interleaved = (schedule == SCHEDULES.index("interleaved")) & (pp > 1)
    can_be = _can_be(mode, schedule, pp) & ~(interleaved & ((per_rank // micro) % pp > 0))
    two_way = (schedule == SCHEDULES.index("dualpipe")) & (pp > 1)
    if two_way.any():
        can_be &= ~two_way | np.array([splits_directions(pp, per_rank // size) for size in sizes])[size]
    ep, etp = (_ints([one[i] for one in folded])[fold] for i in range(2))
    if space.model.experts is not None:
        ranks = _stage_ranks(mode, shared[1][share], shared[2][share], tp, cp)
        can_be = can_be & (ranks % (ep * etp) == 0)
    good = np.flatnonzero(can_be)
    return _Open(
        dp_shard=shared[1][share[good]],
        dp_replicate=shared[2][share[good]],
        ep=ep[good],
        etp=etp[good],
        sharding=mode[good],
        micro_batch=micro[good],
        schedule=schedule[good],
        virtual_stages=_ints([one[1] for one in orders])[order[good]],
        sequence_parallel=np.array(splits, dtype=np.bool_)[split[good]],
        recompute=_codes(RECOMPUTES, again)[recompute[good]],
        cp_method=_codes(CP_METHODS, methods)[method[good]],
    )


def _maybe(rows: int, value: float | None) -> Floats:
    """The same value in all rows; NaN for none."""
    return np.full(rows, np.nan if value is None else value)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _codes(names: Sequence[str], values: Sequence[str]) -> Ints:
    return np.array([names.index(value) for value in values], dtype=np.int64)
