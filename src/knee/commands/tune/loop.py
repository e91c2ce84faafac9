"""The loop: choose a plan, run it for some steps, learn, and stop when little is left to gain.

All state is in the folder: what was asked, and the runs. A loop that was interrupted, killed or preempted is entered
again with the same question, reads the runs, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Literal

import numpy as np

from knee.base.arrays import Floats
from knee.commands.tune.posterior import Beliefs, Outcome, Posterior
from knee.commands.tune.tuning_folder import MadeRun, add_runs, made_runs, put_back
from knee.training.launch.run_status import Status
from knee.training.launch.sweep_folder import Sweep
from knee.training.sweeps.preflight import PlannedRun
from knee.training.sweeps.totals import totals_of

# Which plan is run next, and what could still be gained by going on.

DRAWS = 2_000
BOUND = 0.9
"""Probability with which the stated bound holds."""
SHORT = 0.5
"""What a run counts that ends out of memory, over one that completes: it ends early, and waits for its start as long
(assumed; 0.3 to 0.7 do as well in replay)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known after some runs."""

    best: int | None
    """Row of the fastest plan that was measured; None where none ran."""
    best_tokens_per_s_per_gpu: float | None
    expected_gain_frac: float | None
    """What the most promising untried plan is expected to win over the best one; None where none ran, or none is
    left."""
    bound_frac: float | None
    """With 90% probability no untried plan is faster than the best one by more than this."""
    next: int | None
    """Row of the plan to run next; None where none is left."""
    fits: Floats
    """Of each plan: the probability that it fits in memory."""
    low: Floats
    """Of each plan: tokens/s per GPU that it exceeds with 90% probability, if it fits."""
    mean: Floats
    high: Floats

    def enough(self, within_frac: float) -> bool:
        """Whether no untried plan is expected to win more than this; never with 0, which runs every candidate."""
        return within_frac > 0 and self.best is not None and (self.expected_gain_frac or 0.0) <= within_frac


def standing(beliefs: Beliefs, outcomes: Sequence[Outcome], *, busy: Collection[int] = (), seed: int = 0) -> Standing:
    """What the runs tell, and the next plan: the largest expected improvement per GPU-hour.

    Formula: E[max(0, u - best)] / (gpu_h (P(fits) + SHORT (1 - P(fits)))); u is 0 where a plan does not fit, and best
        is 0 before a run has completed
    Where: the expectation is over joint draws of the posterior; the bound is the 0.9 quantile of the largest u / best
        over untried plans, less 1
    Source: expected improvement (Jones, Schonlau and Welch 1998) per unit of cost (Snoek, Larochelle and Adams 2012)

    ``busy``: plans that run now; they are neither chosen nor in the bound's way.
    """
    posterior = beliefs.after(outcomes)
    tried = {o.plan for o in outcomes if o.end != "lost"}
    open_ = np.array([row for row in range(beliefs.runs) if row not in tried], dtype=np.int64)
    draws, log_rate = posterior.draws(DRAWS, seed)
    # what a plan is worth is its throughput at full size
    worth, goal = draws[:, beliefs.goal :], slice(beliefs.goal, None)
    best, reference = _best(outcomes, (np.exp(log_rate[:, goal]), posterior.fits[goal]) if beliefs.goal else None)
    rate = None if best is None else float(np.mean(reference))
    low, high = np.exp(np.quantile(log_rate[:, goal], (1.0 - BOUND, BOUND), axis=0))
    found = Standing(
        best=best,
        best_tokens_per_s_per_gpu=rate,
        expected_gain_frac=None,
        bound_frac=None if rate is None else 0.0,
        next=None,
        fits=posterior.fits[goal],
        low=low,
        mean=np.exp(posterior.log_rate[goal]),
        high=high,
    )
    if not len(open_):
        return found
    runs = posterior.fits[open_]
    gain = np.maximum(worth[:, open_] - reference[:, None], 0.0).mean(axis=0) * (runs if beliefs.goal else 1.0)
    cost = beliefs.candidates.gpu_h[open_] * (runs + SHORT * (1.0 - runs))
    # equal gains, as where nothing can be gained any more, go to the larger prediction, not to the first row
    order = np.lexsort((-posterior.log_rate[open_], -gain / cost))
    chosen = next((int(open_[at]) for at in order if int(open_[at]) not in busy), None)
    if rate is None:
        return replace(found, next=chosen)
    ahead = worth[:, open_].max(axis=1) / reference - 1.0
    return replace(
        found,
        next=chosen,
        expected_gain_frac=float(gain.max()) / rate,
        bound_frac=max(0.0, float(np.quantile(ahead, BOUND))),
    )


def next_plans(beliefs: Beliefs, outcomes: Sequence[Outcome], busy: Collection[int], count: int) -> list[int]:
    """Plans to run at once: each is chosen as if those before it had given what is expected of them."""
    told = list(outcomes)
    chosen: list[int] = []
    posterior = beliefs.after(told)
    told += [_expected(posterior, plan) for plan in busy]
    for _ in range(count):
        plan = standing(beliefs, told, busy=[*busy, *chosen]).next
        if plan is None:
            break
        chosen.append(plan)
        told.append(_expected(beliefs.after(told), plan))
    return chosen


def _expected(posterior: Posterior, plan: int) -> Outcome:
    return Outcome(plan=plan, end="ok", tokens_per_s_per_gpu=exp(float(posterior.log_rate[plan])))


def _best(outcomes: Sequence[Outcome], full: tuple[Floats, Floats] | None) -> tuple[int | None, Floats]:
    """The best plan that ran, and its throughput: the median of its runs, or draws of it at full size, for which
    ``full`` has draws of all plans and the probability that each fits."""
    rates: dict[int, list[float]] = {}
    for o in outcomes:
        if o.tokens_per_s_per_gpu is not None:
            rates.setdefault(o.plan, []).append(o.tokens_per_s_per_gpu)
    if not rates:
        return None, np.zeros(1)
    if full is not None:
        draws, fits = full
        plan = max(rates, key=lambda row: float(np.mean(draws[:, row]) * fits[row]))
        return plan, draws[:, plan]
    plan = max(rates, key=lambda row: float(np.median(rates[row])))
    return plan, np.array([float(np.median(rates[plan]))])


CRASHED = 3
"""Plans that crash, and not for memory, while none has run: something else than the plan is wrong."""
Why = Literal["within", "budget", "runs", "all", "none", "interrupted", ""]
"""Why it stopped: little is left to gain, the GPU-hours or runs are spent, every plan was tried, plans only fail, a
signal; empty while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When the loop ends."""

    within_frac: float
    max_gpu_h: float | None = None
    max_runs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Candidates that are compared with each other: the plans, or the settings of one plan."""

    name: str
    keys: tuple[str, ...]
    """Of each candidate, the same in every call."""
    beliefs: Beliefs
    make: Callable[[Sequence[int], int], list[PlannedRun]]
    """Rows and the number of the first run -> runs that can be started."""
    known: tuple[Outcome, ...] = ()
    """What runs of another stage tell about these candidates."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Key -> row; the first one, where several plans are the same smaller run."""
        return {key: row for row, key in reversed(list(enumerate(self.keys)))}

    def told_by(self, run: MadeRun) -> list[Outcome]:
        """What a run tells about every plan that it is the run of."""
        if run.outcome is None:
            return []
        return [replace(run.outcome, plan=row) for row, key in enumerate(self.keys) if key == run.plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """How far a stage has come."""

    sweep: Sweep
    made: tuple[MadeRun, ...]
    outcomes: tuple[Outcome, ...]
    standing: Standing
    gpu_h: float
    why: Why = ""
    signal: int | None = None


Start = Callable[[Sweep, Sequence[str]], int | None]
"""Starts runs by their ids and sees them through; the signal that ended it."""
Told = Callable[[Progressed], None]


def progressed(sweep: Sweep, stage: Stage, limits: Limits, statuses: Mapping[str, Status] | None = None) -> Progressed:
    """How a stage stands by the runs of the folder; nothing is started or written."""
    now = sweep.statuses() if statuses is None else statuses
    made = made_runs(sweep, stage.rows, now)
    outcomes = (*stage.known, *(outcome for run in made for outcome in stage.told_by(run)))
    found = standing(stage.beliefs, outcomes)
    spent = totals_of(sweep, now).gpu_h
    return Progressed(
        sweep=sweep,
        made=tuple(made),
        outcomes=outcomes,
        standing=found,
        gpu_h=spent,
        why=_reason(found, stage, limits, outcomes, len(sweep.entries), spent),
    )


def _reason(found: Standing, stage: Stage, limits: Limits, outcomes: Sequence[Outcome], runs: int, spent: float) -> Why:
    if found.next is None:
        return "all" if found.best is not None else "none"
    if found.best is None and sum(o.end == "failed" for o in outcomes) >= CRASHED:
        return "none"
    if found.enough(limits.within_frac):
        return "within"
    if limits.max_runs is not None and runs >= limits.max_runs:
        return "runs"
    cost = float(stage.beliefs.candidates.gpu_h[found.next])
    return "budget" if limits.max_gpu_h is not None and spent + cost > limits.max_gpu_h else ""


def run_stage(
    sweep: Sweep, stage: Stage, limits: Limits, *, start: Start, at_once: int = 1, told: Told = lambda _: None
) -> Progressed:
    """Run plans until the stage is over. The caller holds the folder's lock."""
    while True:
        now = progressed(sweep, stage, limits)
        told(now)
        put_back(sweep, now.made)
        waiting = [run.id for run in now.made if run.plan in stage.rows and run.outcome is None]
        if not waiting and now.why:
            return now
        if not waiting:
            count = at_once if limits.max_runs is None else min(at_once, limits.max_runs - len(sweep.entries))
            rows = next_plans(stage.beliefs, now.outcomes, (), max(1, count))
            planned = stage.make(rows, len(sweep.entries) + 1)
            sweep = add_runs(sweep, planned)
            waiting = [one.entry.id for one in planned]
        signal = start(sweep, waiting)
        statuses = sweep.statuses()
        if signal is not None or any(statuses[run].cause == "cancelled" for run in waiting):
            return replace(progressed(sweep, stage, limits), why="interrupted", signal=signal)
