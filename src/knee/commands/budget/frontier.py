"""What more of a budget buys: loss against days, dollars, energy and emissions, the knee on each, the curves of equal
loss over GPUs and sizes, what the next unit of each limit is worth, and how sure all of it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from knee.base.units import DAY_S, HOUR_S
from knee.commands.budget.model_family import STEPS_PER_DOUBLING
from knee.commands.budget.scaling_laws import Law
from knee.commands.budget.search import J_PER_MWH, BudgetLimits, BudgetRun, Name, Problem
from knee.specs.defaults import THRESHOLD
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
SHOWN_LOSS = 5e-5
"""Losses are shown to four places: what differs by less is the same."""
STEPS_OF_LOSS = (0.02, 0.04, 0.08)
"""Above the least loss, at which curves of equal loss are drawn: about what one, two and four halvings cost."""
ISO_COUNTS, ISO_SIZES = 6, 3
"""Counts of GPUs, and sizes to each side of the best, of those curves."""
KNEE_WORDS = (
    f"the largest value at which the last doubling gives at least {PAYS_FRAC:.0%} of the drop in loss that the law "
    "predicts for twice the compute"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The best run at every value of one limit, the others as they are."""

    axis: Axis
    values: tuple[float, ...]
    """Ascending, by doublings; one is what the best run takes."""
    runs: tuple[BudgetRun | None, ...]
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
    low_affords: bool | None
    """Whether the limits still afford the run where throughput is at its low end; a ratio may be missed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What another run costs against the best."""

    loss: float
    flop_frac: float
    """Of the compute that the best run is worth, by the law."""
    budget_frac: float
    """Of what the other run spends of the limited days, dollars and energy: so much less of each reaches as low a loss
    with another size."""


def lost_by(problem: Problem, limits: BudgetLimits, best: BudgetRun, other: BudgetRun) -> Lost:
    """What following ``other`` costs, in loss, compute and budget; what was priced before answers smaller budgets."""
    if other.loss - best.loss < SHOWN_LOSS:
        return Lost(loss=0.0, flop_frac=0.0, budget_frac=0.0)
    worth = problem.law.flop_for(other.loss) / problem.law.flop_for(best.loss)
    spent = replace(
        limits,
        days=None if limits.days is None else other.days,
        usd=None if limits.usd is None else other.cost_usd,
        mwh=None if limits.mwh is None else other.mwh,
    )
    low, high = 1e-3, 1.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        run = problem.reachable(spent.scaled(middle), without=other.model)
        low, high = (low, middle) if run is not None and run.loss <= other.loss else (middle, high)
    # no other size may do with less than what this one spends
    frac = 0.0 if high > 1.0 - 1e-6 else 1.0 - high
    return Lost(loss=other.loss - best.loss, flop_frac=max(0.0, 1.0 - worth), budget_frac=frac)


def frontier_of(problem: Problem, limits: BudgetLimits, best: BudgetRun, axis: Axis, kg_per_j: float) -> Frontier:
    """Loss against one limit. Emissions are the energy's, so that both have the same runs."""
    of_axis: Name = "mwh" if axis == "co2e_kg" else axis
    per = kg_per_j * J_PER_MWH if axis == "co2e_kg" else 1.0
    now = {"days": best.days, "usd": best.cost_usd, "mwh": best.mwh}[of_axis]
    assert now is not None
    values = [now * 2.0**k for k in range(-HALVINGS, DOUBLINGS + 1)]
    found: list[BudgetRun | None] = []
    every = [_within(limits, of_axis, value) for value in values]
    problem.look_ahead_at(every, every=COARSE)
    for within in every:
        run = problem.optimum(within, every=COARSE)
        runs = [run and _climbed(problem, within, run), problem.reachable(within), *found[-1:]]
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


def _climbed(problem: Problem, limits: BudgetLimits, run: BudgetRun) -> BudgetRun:
    """From a size of the coarse ladder to the rung beside which none is better, on the same GPUs."""
    ladder = problem.ladder()
    if run.model not in ladder:
        return run
    near = problem.sizes_near(run.model, COARSE // 2)
    problem.look_ahead(limits, [(run.gpus, model) for model in near], run.loss)
    for step in (COARSE // 2, 1):
        better: BudgetRun | None = run
        while better is not None:
            run, at = better, ladder.index(better.model)
            beside = [ladder[i] for i in (at - step, at + step) if 0 <= i < len(ladder)]
            runs = [problem.best_at(limits, model, run.gpus, below=run.loss) for model in beside]
            better = min((one for one in runs if one is not None), key=lambda one: one.loss, default=None)
    return run


def _within(limits: BudgetLimits, name: Name, value: float) -> BudgetLimits:
    changed: dict[str, Any] = {name: value}
    return replace(limits, **changed)


def _worth(law: Law, before: BudgetRun | None, after: BudgetRun | None) -> float | None:
    if before is None or after is None:
        return None
    flop = law.flop_for(before.loss)
    promised = before.loss - float(law.loss(*law.split(2.0 * flop)))
    return (before.loss - after.loss) / promised


def sizes_around(problem: Problem, limits: BudgetLimits, best: BudgetRun) -> list[BudgetRun]:
    """The best runs of sizes around the best one, on its GPUs, by factors of two."""
    around = _sizes(problem, best)
    problem.look_ahead(limits, [(best.gpus, model) for model in around])
    runs = (problem.best_at(limits, model, best.gpus) for model in around)
    return [run for run in runs if run is not None]


def _sizes(problem: Problem, best: BudgetRun) -> list[Model]:
    ladder = problem.ladder()
    if best.model not in ladder:
        return [best.model]
    at = ladder.index(best.model)
    places = (at + COARSE * d for d in range(-ISO_SIZES, ISO_SIZES + 1))
    return [ladder[place] for place in places if 0 <= place < len(ladder)]


def grid_of(problem: Problem, limits: BudgetLimits, best: BudgetRun) -> dict[tuple[int, Model], BudgetRun | None]:
    """Runs over counts of GPUs and sizes around the best."""
    counts = sorted({*problem.doublings(limits)[-ISO_COUNTS:], best.gpus, limits.gpus})
    sizes = _sizes(problem, best)
    problem.look_ahead(limits, [(gpus, model) for gpus in counts for model in sizes])
    for model in sizes:
        problem.price(limits, model, counts)
    return {(gpus, model): problem.best_at(limits, model, gpus) for gpus in counts for model in sizes}


def iso_losses(grid: dict[tuple[int, Model], BudgetRun | None], best: BudgetRun) -> list[IsoLoss]:
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


def marginals(problem: Problem, limits: BudgetLimits, best: BudgetRun, max_gpus: int) -> list[Marginal]:
    """What one more day, thousand dollars or MWh buys, and each GPU of the next doubling.

    Formula: L(limits and one unit) - L(limits), each the best of the runs that were priced; GPU: (L(2 G) - L(G)) / G.
             Of what is not limited, by
             L(N, D + tokens of one unit) - L(N, D) of the same run, and nothing where data or a ratio ends it
    """
    law, rate, price = problem.law, best.rate, problem.rates.cluster.usd_per_gpu_h

    def of(what: Literal["day", "thousand USD", "MWh"], name: Name, unit: float, tokens: float) -> Marginal:
        now = getattr(limits, name)
        if now is None:
            free = best.binding not in ("tokens_max", "tokens_per_param")
            gained = float(law.loss(best.counted, best.tokens + tokens)) - best.loss if free else 0.0
            return Marginal(what=what, loss=gained, binds=False, how="same model and plan, trained on more tokens")
        # of all that was priced: next to an answer that is the best run, and to look at others takes many times longer
        run = problem.reachable(_within(limits, name, now + unit))
        gained = min(0.0, run.loss - best.loss) if run is not None else 0.0
        return Marginal(what=what, loss=gained, binds=gained < 0, how="best run within the raised limit")

    found = [of("day", "days", 1.0, rate.tokens_per_s * DAY_S)]
    if price:
        found.append(of("thousand USD", "usd", 1e3, rate.tokens_per_s * 1e3 / (price * rate.gpus) * HOUR_S))
    found.append(of("MWh", "mwh", 1.0, rate.tokens_per_j * J_PER_MWH / problem.pue))
    twice = 2 * limits.gpus
    if twice <= max_gpus:
        more = replace(limits, gpus=twice)
        # where the best run leaves half of the GPUs idle, more of them change nothing
        run = problem.reachable(more) if 2 * best.gpus <= limits.gpus else problem.optimum(more)
        gained = min(0.0, run.loss - best.loss) if run is not None else 0.0
        found.append(
            Marginal(
                what="GPU",
                loss=gained / limits.gpus,
                binds=gained < 0,
                how=f"mean per GPU from {limits.gpus:,} to {twice:,} GPUs",
            )
        )
    return found


def bands_of(
    problem: Problem, limits: BudgetLimits, run: BudgetRun, low_frac: float | None, high_frac: float | None
) -> Bands:
    """Ends of the loss: the law's draws; the tokens that all limits afford within throughput's band; and both at once.
    A ratio fixes the tokens, so that throughput only says whether the limits still afford them."""
    law, rate = problem.law, run.rate
    of_law = law.band(run.counted, run.tokens)
    if low_frac is None or high_frac is None:
        return Bands(law=of_law, engine=None, both=None, low_affords=None)
    # as fast at the same power: tokens a joule move as tokens a second
    ends = [
        problem.tokens(limits, rate.gpus, rate.tokens_per_s * times, rate.tokens_per_j * times, run.model)[0]
        for times in (1.0 + high_frac, 1.0 + low_frac)
    ]
    losses = [float(law.loss(run.counted, tokens or run.tokens)) for tokens in ends]
    engine = losses[0], losses[1]
    both = None
    if of_law is not None:
        # independent errors: their distances from the answer add in squares
        low = math.hypot(run.loss - of_law[0], run.loss - engine[0])
        high = math.hypot(of_law[1] - run.loss, engine[1] - run.loss)
        both = run.loss - low, run.loss + high
    return Bands(law=of_law, engine=engine, both=both, low_affords=ends[1] > 0)
