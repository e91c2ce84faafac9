"""Which plans fit in memory, and how many layers the others must recompute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Columns, Floats, Ints, joined
from knee.engine.cost.compute_costs import is_narrow, shapes_of
from knee.engine.simulator import CHUNK
from knee.engine.workload.memory import MemoryColumns, memory_of
from knee.engine.workload.traffic import Modes, traffic_of
from knee.search.space import Space, sharded_table, shardings
from knee.specs.model import Model
from knee.specs.plan import RECOMPUTES, REDUCING, SHARDINGS, Sharding
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.variants import variant_rows

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
