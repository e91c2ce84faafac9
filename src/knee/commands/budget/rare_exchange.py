"""Whether a budget does better if replicas exchange only every few steps: more tokens, at a cost in loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from knee.commands.budget.budget_run import BudgetLimits, BudgetRun
from knee.commands.budget.budget_search import Problem
from knee.commands.budget.scaling_laws import Law
from knee.engine.workload.outer_sync_loss import fitted_replicas, loss_ratio, outside_fit
from knee.specs.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RareExchange:
    """The best run within the same limits whose replicas run apart: its size, GPUs, batch and plan chosen anew."""

    sync_every: int
    replicas: int
    gpus: int
    global_batch: int
    params: int
    plan: Plan
    tokens_per_s: float
    tokens: float
    days: float
    cost_usd: float | None
    loss_ratio: float
    """Loss with the replicas over that of data parallelism, by the law."""
    loss: float
    gained: float
    """Loss that is saved; negative if an exchange in every step is better."""
    extrapolated: tuple[str, ...]
    """What is outside the runs that the law was fitted to; empty if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLaw(Law):
    """A scaling law of models that are trained by replicas.

    Formula: L(N, D) r(N, M)
    Source:  r as ``workload.outer_sync_loss``
    Valid:   where both laws are; r was fitted to 20 tokens per parameter
    """

    replicas: int

    def loss(self, params: Any, tokens: Any, values: Any = None) -> Any:
        """Of the law without replicas, times their ratio."""
        return Law.loss(self, params, tokens, values) * loss_ratio(params, self.replicas)

    def tokens_for(self, loss: float, params: float) -> float:
        """The tokens after which so many parameters reach a loss with the replicas."""
        return Law.tokens_for(self, loss / loss_ratio(params, self.replicas), params)


def rare_exchange(
    problem: Problem, limits: BudgetLimits, best: BudgetRun, sync_every: int, fixed: Plan
) -> RareExchange | None:
    """The run of the lowest loss with an exchange every ``sync_every`` steps, in the fragments and the type of
    ``fixed``; None if no plan has replicas.

    The search is that of the budget, over sizes, GPU counts and batches, once for each number of replicas that the law
    was fitted to. The critical batch size is that of data parallelism.
    """
    found = []
    for replicas in fitted_replicas():
        run = _with_replicas(problem, fixed, sync_every, replicas).optimum(limits)
        if run is not None:
            found.append((run.loss, replicas, run))
    if not found:
        return None
    loss, replicas, run = min(found, key=lambda one: one[:2])
    return RareExchange(
        sync_every=sync_every,
        replicas=replicas,
        gpus=run.gpus,
        global_batch=run.rate.global_batch,
        params=run.params,
        plan=run.rate.plan,
        tokens_per_s=run.rate.tokens_per_s,
        tokens=run.tokens,
        days=run.days,
        cost_usd=run.cost_usd,
        loss_ratio=loss_ratio(run.counted, replicas),
        loss=loss,
        gained=best.loss - loss,
        extrapolated=tuple(outside_fit(run.counted, replicas, sync_every=sync_every)),
    )


def _with_replicas(problem: Problem, fixed: Plan, sync_every: int, replicas: int) -> Problem:
    """The same question of models that so many replicas train."""
    law = problem.law
    values = {name: getattr(law, name) for name in Law.__dataclass_fields__}
    return replace(
        problem,
        rates=problem.rates.apart(fixed, sync_every, replicas),
        law=ReplicaLaw(**values, replicas=replicas),
    )
