"""How a ranking holds up when the numbers that were fitted are others: the plans near the front, drawn many times."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np

from knee.base.arrays import ByValue, Floats
from knee.engine.simulator import simulate_variants
from knee.search.plan_search import SearchResult, score
from knee.search.space_tables import FLAT
from knee.specs.hardware import Cluster
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter, applied, value_of

NEAR = 0.9
"""Plans that come within a tenth of the best are drawn."""
MOST = 32
DRAWS = 20
CLOSE = 0.98
"""Within 2% of a draw's best is as good as the best."""
CLEARLY = 0.05
"""The plan that is first by the fitted values gives way only to one that is good in so many more draws."""
UNSURE = 0.2
"""A plan that is ahead of the recommended one in at least so many draws cannot be told from it."""
OF_MEMORY = ("profile.context_bytes", "profile.allocator_frac")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Robust(ByValue):
    """Draws of the fitted parameters, and how the first plans of a search did in them."""

    draws: int
    parameters: tuple[Parameter, ...]
    good_frac: Floats
    """Of each plan: share of draws in which it was within 2% of that draw's best."""
    fits_frac: Floats
    """Of each plan: share of draws in which it fits in memory."""
    worst_frac: Floats
    """Of each plan: its score over the best one's in the draw in which it did worst."""
    ahead_frac: Floats
    """Of each plan: share of draws in which it was ahead of the recommended one."""
    recommended: int
    """Row of the first plan, or of the one that is good clearly more often, or as good with collectives of NCCL."""

    @property
    def indistinguishable_rows(self) -> list[int]:
        """Rows of plans that cannot be told from the recommended one."""
        near = self.ahead_frac >= UNSURE
        return [int(row) for row in np.flatnonzero(near) if row != self.recommended]


def robust(found: SearchResult, *, draws: int = DRAWS, seed: int = 0) -> Robust:
    """Draw what is fitted from its spread between stacks, and rank the plans near the front anew each time."""
    scores = found.scores
    best = float(scores[0])
    near = scores >= (best * NEAR if best > 0 else best / NEAR)
    count = int(min(MOST, near.sum()))
    table = found.table.rows(slice(0, count))
    parameters = drawn(found.cluster, found.profile)
    random = np.random.default_rng(seed)
    fitted = {p: value_of(found.cluster, found.profile, p.path) for p in parameters}
    drawn_values = [{p.path: _draw(p, value, random) for p, value in fitted.items()} for _ in range(draws)]
    variants = [applied(found.cluster, found.profile, values) for values in drawn_values]
    results = simulate_variants(found.space.model, variants, table)
    got, fit = score(results, found.objective).reshape(draws, count), results.fits.reshape(draws, count)
    # a plan that does not fit is worth nothing in that draw
    usable = np.where(fit, got, -np.inf)
    top = usable.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # where nothing fits, -inf / -inf is not taken
        share = np.where(fit & np.isfinite(top), np.where(top > 0, usable / top, top / usable), 0.0)
    good = (share >= CLOSE).mean(axis=0)
    recommended = int(np.argmax(good))
    if good[recommended] < good[0] + CLEARLY:
        recommended = 0
    recommended = _runnable(table, scores, good, recommended)
    return Robust(
        draws=draws,
        parameters=parameters,
        good_frac=good,
        fits_frac=fit.mean(axis=0),
        worst_frac=share.min(axis=0),
        ahead_frac=(usable > usable[:, [recommended]]).mean(axis=0),
        recommended=recommended,
    )


def _runnable(table: PlanTable, scores: Floats, good: Floats, row: int) -> int:
    """The row of a plan, or of the first with flat collectives that is as good: NCCL has no others."""
    if table.collectives[row] == FLAT:
        return row
    best = float(scores[row])
    close = scores[: len(table)] >= (best * CLOSE if best > 0 else best / CLOSE)
    flat = np.flatnonzero((table.collectives == FLAT) & close & (good >= good[row] - CLEARLY))
    return int(flat[0]) if len(flat) else row


def drawn(cluster: Cluster, profile: Profile) -> tuple[Parameter, ...]:
    """Parameters that this stack has: one that is 0 is no part of it."""
    return tuple(p for p in PARAMETERS if value_of(cluster, profile, p.path) > 0)


def _draw(parameter: Parameter, value: float, random: np.random.Generator) -> float:
    step = float(random.standard_normal()) * parameter.spread
    if parameter.path in OF_MEMORY:
        step *= 0.5  # a stack's own memory is known better than that of another
    return parameter.inside(value + step if parameter.is_share else exp(log(value) + step))
