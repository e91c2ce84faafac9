"""What more of a budget buys: loss against days, dollars, energy and emissions, the knee on each, the curves of equal
loss over GPUs and sizes, what the next unit of each limit is worth, and how sure all of it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from knee.search.budget import HOUR_S, J_PER_MWH, Limits, Name, Problem, Run
from knee.search.family import STEPS_PER_DOUBLING
from knee.search.knee import THRESHOLD
from knee.search.laws import Law
from knee.search.training_bill import DAY_S
from knee.specs.model import Model

Axis = Literal["days", "usd", "mwh", "co2e_kg"]
AXES: tuple[Axis, ...] = ("days", "usd", "mwh", "co2e_kg")
HALVINGS, DOUBLINGS = 5, 2
"""Points of a frontier below and above what the best run takes."""
PAYS_FRAC = THRESHOLD - 1.0
"""Of the drop in loss that the law promises for twice the compute: a doubling that buys less does not pay, as one that
adds less than half of the throughput does not to ``knee scale``."""
COARSE = STEPS_PER_DOUBLING
"""Rungs between the sizes of a frontier's new runs: neighbours are a factor of two apart."""
STEPS_OF_LOSS = (0.02, 0.04, 0.08)
"""Above the least loss, at which curves of equal loss are drawn: about what one, two and four halvings cost."""
ISO_COUNTS, ISO_SIZES = 6, 3
"""Counts of GPUs, and sizes to each side of the best, of those curves."""
KNEE_WORDS = (
    f"the most to which a doubling still buys at least {PAYS_FRAC:.0%} of the drop in loss that the law promises for "
    "twice the compute"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The best run at every value of one limit, the others as they are."""

    axis: Axis
    values: tuple[float, ...]
    """Ascending, by doublings; one is what the best run takes."""
    runs: tuple[Run | None, ...]
    """None where nothing can be trained for so little."""
    worth: tuple[float | None, ...]
    """What the doubling to each value bought, over what the law promises; None for the first."""
    knee: float | None
    """None where no doubling pays."""
    open: bool
    """The last doubling still pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsoLoss:
    """Where a count of GPUs reaches a loss: from the smallest size to the largest that does."""

    loss: float
    gpus: int
    low_params: float
    high_params: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Marginal:
    """What one more unit buys."""

    what: Literal["day", "thousand USD", "MWh", "GPU"]
    loss: float
    """Change in loss, negative where it helps."""
    binds: bool
    """Whether that is the limit that ends the run; what is not, buys nothing unless the other limits give way."""
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Ends of the loss by the law's own errors, by those of the simulator, and by both."""

    law: tuple[float, float] | None
    engine: tuple[float, float] | None
    both: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What another run costs against the best."""

    loss: float
    flop_frac: float
    """Of the compute that the best run is worth, by the law."""
    budget_frac: float
    """Of days, dollars and energy: the best run reaches as low a loss with that much less of them."""


def lost_by(problem: Problem, limits: Limits, best: Run, other: Run) -> Lost:
    """What following ``other`` costs, in loss, compute and budget; what was priced before answers smaller budgets."""
    worth = problem.law.flop_for(other.loss) / problem.law.flop_for(best.loss)
    low, high = 1e-3, 1.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        run = problem.reachable(limits.scaled(middle))
        low, high = (low, middle) if run is not None and run.loss <= other.loss else (middle, high)
    return Lost(loss=other.loss - best.loss, flop_frac=max(0.0, 1.0 - worth), budget_frac=max(0.0, 1.0 - high))


def frontier_of(problem: Problem, limits: Limits, best: Run, axis: Axis, kg_per_j: float) -> Frontier:
    """Loss against one limit. Emissions are the energy's, so that both have the same runs."""
    of_axis: Name = "mwh" if axis == "co2e_kg" else axis
    per = kg_per_j * J_PER_MWH if axis == "co2e_kg" else 1.0
    now = {"days": best.days, "usd": best.cost_usd, "mwh": best.mwh}[of_axis]
    assert now is not None
    values = [now * 2.0**k for k in range(-HALVINGS, DOUBLINGS + 1)]
    found: list[Run | None] = []
    for value in values:
        within = _within(limits, of_axis, value)
        runs = [problem.optimum(within, every=COARSE), problem.reachable(within), *found[-1:]]
        # what a smaller budget reached, a larger one does too
        found.append(min((run for run in runs if run is not None), key=lambda run: run.loss, default=None))
    worth = [None, *(_worth(problem.law, a, b) for a, b in pairwise(found))]
    paying = [i for i, share in enumerate(worth) if share is not None and share >= PAYS_FRAC]
    return Frontier(
        axis=axis,
        values=tuple(value * per for value in values),
        runs=tuple(found),
        worth=tuple(worth),
        knee=values[paying[-1]] * per if paying else None,
        open=bool(paying) and paying[-1] == len(values) - 1,
    )


def _within(limits: Limits, name: Name, value: float) -> Limits:
    if name == "days":
        return replace(limits, days=value)
    return replace(limits, usd=value) if name == "usd" else replace(limits, mwh=value)


def _worth(law: Law, before: Run | None, after: Run | None) -> float | None:
    if before is None or after is None:
        return None
    flop = law.flop_for(before.loss)
    promised = before.loss - float(law.loss(*law.split(2.0 * flop)))
    return (before.loss - after.loss) / promised


def sizes_around(problem: Problem, limits: Limits, best: Run) -> list[Run]:
    """The best runs of sizes around the best one, on its GPUs, by factors of two."""
    around = _sizes(problem, best)
    runs = (problem.best_at(limits, model, best.gpus) for model in around)
    return [run for run in runs if run is not None]


def _sizes(problem: Problem, best: Run) -> list[Model]:
    ladder = problem.ladder()
    if best.model not in ladder:
        return [best.model]
    at = ladder.index(best.model)
    places = (at + COARSE * d for d in range(-ISO_SIZES, ISO_SIZES + 1))
    return [ladder[place] for place in places if 0 <= place < len(ladder)]


def grid_of(problem: Problem, limits: Limits, best: Run) -> dict[tuple[int, Model], Run | None]:
    """Runs over counts of GPUs and sizes around the best."""
    counts = sorted({*problem.doublings(limits)[-ISO_COUNTS:], best.gpus, limits.gpus})
    sizes = _sizes(problem, best)
    return {(gpus, model): problem.best_at(limits, model, gpus) for gpus in counts for model in sizes}


def iso_losses(grid: dict[tuple[int, Model], Run | None], best: Run) -> list[IsoLoss]:
    """Curves of equal loss, between the grid's sizes by straight lines over the logarithm of the parameters."""
    found = []
    for step in STEPS_OF_LOSS:
        for gpus in sorted({gpus for gpus, _ in grid}):
            line = [(run.params, run.loss) for (count, _), run in grid.items() if count == gpus and run is not None]
            ends = _crossings(sorted(line), best.loss + step)
            if ends is not None:
                found.append(IsoLoss(loss=best.loss + step, gpus=gpus, low_params=ends[0], high_params=ends[1]))
    return found


def _crossings(line: Sequence[tuple[float, float]], level: float) -> tuple[float, float] | None:
    below = [i for i, (_, loss) in enumerate(line) if loss <= level]
    if not below:
        return None

    def cross(inside: int, outside: int) -> float:
        (a, la), (b, lb) = line[inside], line[outside]
        return math.exp(math.log(a) + (level - la) / (lb - la) * math.log(b / a))

    low = cross(below[0], below[0] - 1) if below[0] > 0 else line[0][0]
    high = cross(below[-1], below[-1] + 1) if below[-1] < len(line) - 1 else line[-1][0]
    return low, high


def marginals(problem: Problem, limits: Limits, best: Run, max_gpus: int) -> list[Marginal]:
    """What one more day, thousand dollars or MWh of the same run buys, and each GPU of the next doubling.

    Formula: L(N, D + tokens of one unit) - L(N, D); GPU: (L(2 G) - L(G)) / G, each the best run of its count
    """
    law, rate = problem.law, best.rate
    price = problem.rates.cluster.usd_per_gpu_h

    def more(tokens: float) -> float:
        return float(law.loss(best.counted, best.tokens + tokens)) - best.loss

    found = [Marginal(what="day", loss=more(rate.tokens_per_s * DAY_S), binds=best.binding == "days",
                      how="of the same run")]  # fmt: skip
    if price:
        tokens = rate.tokens_per_s * 1e3 / (price * rate.gpus) * HOUR_S
        found.append(Marginal(what="thousand USD", loss=more(tokens), binds=best.binding == "usd",
                              how="of the same run"))  # fmt: skip
    found.append(Marginal(what="MWh", loss=more(rate.tokens_per_j * J_PER_MWH / problem.pue),
                          binds=best.binding == "mwh", how="of the same run"))  # fmt: skip
    twice = 2 * limits.gpus
    if twice <= max_gpus:
        run = problem.best_of_count(replace(limits, gpus=twice), twice, every=COARSE)
        gained = min(0.0, run.loss - best.loss) if run is not None else 0.0
        found.append(Marginal(what="GPU", loss=gained / limits.gpus, binds=gained < 0,
                              how=f"of those that double {limits.gpus:,} to {twice:,}"))  # fmt: skip
    return found


def bands_of(law: Law, run: Run, low_frac: float | None, high_frac: float | None) -> Bands:
    """Ends of the loss: the law's draws; the tokens that throughput's band affords; and both at once."""
    of_law = law.band(run.counted, run.tokens)
    if low_frac is None or high_frac is None:
        return Bands(law=of_law, engine=None, both=None)
    # limits in tokens end a run by data, however fast it is
    ends = [run.tokens * (1.0 + end if run.binding != "tokens_max" else 1.0) for end in (high_frac, low_frac)]
    engine = float(law.loss(run.counted, ends[0])), float(law.loss(run.counted, ends[1]))
    both = None
    if of_law is not None:
        # independent errors: their distances from the answer add in squares
        low = math.hypot(run.loss - of_law[0], run.loss - engine[0])
        high = math.hypot(of_law[1] - run.loss, engine[1] - run.loss)
        both = run.loss - low, run.loss + high
    return Bands(law=of_law, engine=engine, both=both)
