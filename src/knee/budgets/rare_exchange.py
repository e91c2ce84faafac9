"""Whether a budget does better if replicas exchange only every few steps: more tokens, at a cost in loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from knee.budgets.budget_run import HOUR_S, BudgetLimits, BudgetRun
from knee.budgets.budget_search import Problem
from knee.budgets.training_cost import DAY_S
from knee.search.plan_search import search
from knee.search.space import Space
from knee.specs.plan import Plan
from knee.workload.outer_sync_loss import loss_ratio

RANKED = 64
"""Fastest plans that are weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RareExchange:
    """The best run's model with the plan of the lowest loss among those with replicas that run apart."""

    sync_every: int
    gpus: int
    plan: Plan
    replicas: int
    tokens_per_s: float
    tokens: float
    loss_ratio: float
    """Loss with the replicas over that of data parallelism, by the law."""
    loss: float
    gained: float
    """Loss that is saved; negative if every step is better."""


def rare_exchange(problem: Problem, limits: BudgetLimits, best: BudgetRun, sync_every: int) -> RareExchange | None:
    """The same model with an exchange every ``sync_every`` steps, on the best run's GPUs and on all; None if no plan
    has replicas.

    Formula: loss = L(N, D) r(N, M)
    Where:   L the budget's scaling law, D the tokens that the plan trains on within the limits of days and dollars,
             r the law of M replicas
    Source:  r as ``workload.outer_sync_loss``
    Valid:   the batch is at most the best run's critical batch size; a limit of energy is not checked
    """
    runs = [run for gpus in {best.gpus, limits.gpus} for run in _runs(problem, limits, best, gpus, sync_every)]
    return min(runs, key=lambda run: run.loss, default=None)


def _runs(
    problem: Problem, limits: BudgetLimits, best: BudgetRun, gpus: int, sync_every: int
) -> Iterator[RareExchange]:
    rates = problem.rates
    most = int(best.critical_batch_tokens // rates.seq_len)
    batch = best.rate.global_batch if gpus == best.gpus else most // gpus * gpus
    if batch < 1:
        return
    space = Space(
        model=best.model,
        gpus=gpus,
        global_batch=batch,
        seq_len=rates.seq_len,
        fixed=rates.fixed,
        sync_every=sync_every,
        shardings=("ddp", "hsdp", "fsdp_no_reshard", "zero1"),
        max_cp=1,
    )
    with np.errstate(all="ignore"):
        found = search(space, rates.cluster, rates.profile, only="dp_replicate > 1", keep=RANKED)
    price = rates.cluster.usd_per_gpu_h
    time_s = np.inf if limits.days is None else limits.days * DAY_S
    if limits.usd is not None and price:
        time_s = min(time_s, limits.usd / price / gpus * HOUR_S)
    time_s = time_s if np.isfinite(time_s) else best.time_s
    for row in range(min(len(found), RANKED)):
        plan, speed = found.table.plan(row), float(found.results.tokens_per_s[row])
        tokens = min(speed * time_s, limits.tokens_max or np.inf)
        ratio = loss_ratio(best.params, plan.dp_replicate)
        loss = float(problem.law.loss(best.counted, tokens)) * ratio
        yield RareExchange(
            sync_every=sync_every,
            gpus=gpus,
            plan=plan,
            replicas=plan.dp_replicate,
            tokens_per_s=speed,
            tokens=float(tokens),
            loss_ratio=ratio,
            loss=loss,
            gained=best.loss - loss,
        )
