"""Which plans fit in memory, and how many layers the others must recompute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knee.arrays import Bools, Floats
from knee.cost.step_parts import shapes_of
from knee.search.space import Space, joined
from knee.simulator import CHUNK
from knee.specs.plan import RECOMPUTES
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.workload.memory import MemoryColumns, memory_of
from knee.workload.traffic import Modes, traffic_of

SHARES = (0.25, 0.5, 0.75)
"""Of the layers, that a plan recomputes where none do not fit: every fourth, every second, three of four."""


def memory_table(space: Space, profile: Profile, table: PlanTable) -> MemoryColumns:
    """Memory of every plan."""
    modes = Modes.of(table)
    traffic = traffic_of(space.model, table, modes, scatters_sends=profile.scatters_sends)
    return memory_of(space.model, profile, table, shapes_of(table), modes, traffic)


def memory_bytes(space: Space, profile: Profile, table: PlanTable) -> Floats:
    """All of it, for a table of any length."""
    pieces = [table.rows(slice(i, i + CHUNK)) for i in range(0, len(table), CHUNK)]
    return np.concatenate([np.zeros(0), *(memory_table(space, profile, piece).total_bytes for piece in pieces)])


def least_memory_bytes(space: Space, profile: Profile, unsharded: PlanTable) -> Floats:
    """What no sharding of these plans needs less than, however many of its layers are recomputed where that is open:
    activations, logits, and a part of the optimizer's states."""
    if recomputes_shares(space):
        none = unsharded.recompute == RECOMPUTES.index("none")
        most = with_share(unsharded, max(SHARES))
        unsharded = replace(
            unsharded,
            recompute=np.where(none, most.recompute, unsharded.recompute),
            recompute_frac=np.where(none, most.recompute_frac, unsharded.recompute_frac),
        )
    m = memory_table(space, profile, unsharded)
    least = m.activations_bytes + m.logits_bytes + m.optimizer_bytes
    return profile.context_bytes + (1.0 + profile.allocator_frac) * least


def recomputes_shares(space: Space) -> bool:
    """Whether plans may recompute a share of their layers."""
    given = set(space.recomputes)
    return not given or ("none" in given and bool(given & {"blocks", "full"}))


def with_share(table: PlanTable, share: float) -> PlanTable:
    """The plans with that share of their layers recomputed."""
    blocks = np.full(len(table), RECOMPUTES.index("blocks"))
    return replace(table, recompute=blocks, recompute_frac=np.full(len(table), share))


def fitting(space: Space, profile: Profile, table: PlanTable, hbm_bytes: float) -> tuple[PlanTable, Floats]:
    """Plans that fit, some with a share of their layers recomputed, and the memory of each."""
    needs = memory_bytes(space, profile, table)
    fits = needs <= hbm_bytes
    partly, partly_needs = partly_recomputed(space, profile, table, fits, hbm_bytes)
    return joined(table.rows(np.flatnonzero(fits)), partly), np.concatenate((needs[fits], partly_needs))


def partly_recomputed(
    space: Space, profile: Profile, table: PlanTable, fits: Bools, hbm_bytes: float
) -> tuple[PlanTable, Floats]:
    """Plans that do not fit without recomputation, with the least share of layers recomputed that makes them fit; and
    their memory.

    More than that share only costs time, and a plan that fits without needs none.
    """
    open_ = np.flatnonzero(~fits & (table.recompute == RECOMPUTES.index("none")) & recomputes_shares(space))
    # what does not fit with most of its layers recomputed need not be asked again
    *less, most = SHARES
    some = with_share(table.rows(open_), most)
    needs = memory_bytes(space, profile, some)
    at = np.flatnonzero(needs <= hbm_bytes)
    left, left_needs = some.rows(at), needs[at]
    found, found_needs = [], []
    for share in less:
        some = with_share(left, share)
        needs = memory_bytes(space, profile, some)
        fit = needs <= hbm_bytes
        found.append(some.rows(np.flatnonzero(fit)))
        found_needs.append(needs[fit])
        left, left_needs = left.rows(np.flatnonzero(~fit)), left_needs[~fit]
    return joined(*found, left), np.concatenate((*found_needs, left_needs))
