"""Plans of a model, count of GPUs and batch, and what is known of them so far: bounds, memory, simulated steps.

A budget asks for the same plans again and again, each time for those that are faster than something else. Nothing is
priced before it is asked for, and nothing twice. Those of several models are priced in one call: ``space.model`` then
has columns over plans (``specs.variants``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from knee.arrays import Bools, Floats, Ints, expanded, names_of
from knee.search.bound import by_chunk, least_step, least_unsharded_step
from knee.search.memory_fit import SHARES, fitting, memory_bytes
from knee.search.space import Space
from knee.search.space_tables import joined
from knee.simulator import simulate_table
from knee.specs.hardware import Cluster
from knee.specs.plan import RECOMPUTES
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.variants import variant_rows

UNKNOWN, NEVER = -2, -1
"""Whether a plan fits: not asked yet, or with no recomputation."""
POLICIES = ("none", *("blocks" for _ in SHARES), "full")
FRACS = (1.0, *SHARES, 1.0)
"""Recomputation, least first: a plan has the first with which it fits."""
_CODES = np.array([RECOMPUTES.index(name) for name in POLICIES])


@dataclass(slots=True, kw_only=True)
class PricedPlans:
    """Columns over plans that recompute nothing; NaN stands for what is not known."""

    table: PlanTable
    least_s: Floats
    """Bound of the step, whatever the sharding until ``is_sharded``; 0 at first."""
    is_sharded: Bools
    least_j: Floats
    recompute: Ints
    """The least recomputation with which the plan fits: an index of ``POLICIES``, or one of the two above."""
    fit_s: Floats
    """Bounds with that recomputation."""
    fit_j: Floats
    step_s: Floats
    """As it was simulated, with that recomputation."""
    tokens_per_s: Floats
    tokens_per_j: Floats
    mfu_frac: Floats
    exposed_comm_s: Floats

    @classmethod
    def of(cls, table: PlanTable) -> PricedPlans:
        """Nothing is known yet."""
        n = len(table)
        unknown = {name: np.full(n, np.nan) for name in ("least_j", "fit_s", "fit_j", *MEASURED)}
        return cls(
            table=table,
            least_s=np.zeros(n),
            is_sharded=np.zeros(n, dtype=np.bool_),
            recompute=np.full(n, UNKNOWN),
            **unknown,
        )

    def is_narrowed(self, longest_s: float) -> bool:
        """Whether ``bound`` and ``fit`` have nothing to find out for plans that take no longer than this."""
        asked = self.least_s <= longest_s
        unknown = ~self.is_sharded | (self.recompute == UNKNOWN)
        return not (asked & unknown).any()

    def fitted(self, rows: Ints) -> PlanTable:
        """Some of the plans, with the recomputation with which they fit."""
        chosen = self.recompute[rows]
        return replace(self.table.rows(rows), recompute=_CODES[chosen], recompute_frac=np.array(FRACS)[chosen])

    def bound(self, space: Space, cluster: Cluster, profile: Profile, longest_s: Floats) -> None:
        """Find the plans that may take no longer than this. Most others are ruled out whatever their sharding."""
        rows = np.flatnonzero(self.least_s == 0.0)
        if len(rows) and np.isfinite(longest_s).all():
            model, some = variant_rows(space.model, rows), self.table.rows(rows)
            self.least_s[rows] = by_chunk(least_unsharded_step, model, cluster, profile, some).step_s
        rows = np.flatnonzero(~self.is_sharded & (self.least_s <= longest_s))
        if len(rows):
            model = variant_rows(space.model, rows)
            least = by_chunk(least_step, model, cluster, profile, self.table.rows(rows))
            self.least_s[rows], self.least_j[rows], self.is_sharded[rows] = least.step_s, least.energy_j, True

    def fit(self, space: Space, cluster: Cluster, profile: Profile, longest_s: Floats) -> None:
        """Find with which recomputation they fit: the least, as more only costs time. What is too slow without it need
        not be tried."""
        rows = np.flatnonzero((self.recompute == UNKNOWN) & (self.least_s <= longest_s))
        if not len(rows):
            return
        table, hbm_bytes = self.table.rows(rows), cluster.gpu.hbm_bytes
        self.recompute[rows] = NEVER
        found = fitting(replace(space, model=variant_rows(space.model, rows)), profile, table, hbm_bytes)
        none = found.table.recompute == RECOMPUTES.index("none")
        self.recompute[rows[found.row]] = np.where(none, 0, 1 + np.searchsorted(SHARES, found.table.recompute_frac))
        rest = rows[self.recompute[rows] == NEVER]
        full = replace(self.table.rows(rest), recompute=np.full(len(rest), RECOMPUTES.index("full")))
        needs = memory_bytes(variant_rows(space.model, rest), profile, full)
        self.recompute[rest[needs <= hbm_bytes]] = POLICIES.index("full")
        same, again = rows[self.recompute[rows] == 0], rows[self.recompute[rows] > 0]
        self.fit_s[same], self.fit_j[same] = self.least_s[same], self.least_j[same]
        if len(again):
            model = variant_rows(space.model, again)
            least = by_chunk(least_step, model, cluster, profile, self.fitted(again))
            self.fit_s[again], self.fit_j[again] = least.step_s, least.energy_j

    def simulate(self, space: Space, cluster: Cluster, profile: Profile, rows: Ints) -> None:
        """Simulate those of them that were not simulated before."""
        new = rows[np.isnan(self.step_s[rows])]
        if len(new):
            results = simulate_table(variant_rows(space.model, new), cluster, profile, self.fitted(new))
            for name in MEASURED:
                getattr(self, name)[new] = getattr(results, name)

    def take(self, other: PricedPlans, rows: slice) -> None:
        """Take over what others know of these plans."""
        for name in KNOWN:
            getattr(self, name)[:] = getattr(other, name)[rows]


MEASURED = ("step_s", "tokens_per_s", "tokens_per_j", "mfu_frac", "exposed_comm_s")
KNOWN = tuple(name for name in names_of(PricedPlans) if name != "table")


def joined_plans(parts: Sequence[PricedPlans]) -> PricedPlans:
    """All of them, so that they are priced together; ``give_back`` returns what was found."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in KNOWN}
    return PricedPlans(table=joined(*(part.table for part in parts)), **columns)


def give_back(together: PricedPlans, parts: Sequence[PricedPlans]) -> None:
    """Hand what is known now to the parts."""
    ends = accumulate((len(part.table) for part in parts), initial=0)
    for part, (start, end) in zip(parts, pairwise(ends), strict=True):
        part.take(together, slice(start, end))


def some_of(plans: PricedPlans, rows: Ints) -> PricedPlans:
    """Some of the plans, with the recomputation with which they fit."""
    columns = {name: expanded(getattr(plans, name), rows) for name in KNOWN}
    return PricedPlans(table=plans.fitted(rows), **columns)
