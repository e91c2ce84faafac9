"""Sizes that lose as little as the best one, as far as that matters."""

from __future__ import annotations

from collections.abc import Iterable

from knee.commands.budget.budget_run import BudgetLimits, BudgetRun
from knee.commands.budget.budget_search import Problem
from knee.engine.workload.parameters import parameter_count
from knee.specs.model import Model

EVEN_LOSS = 0.001
"""Above the least loss: what lies below is decided by how layers and heads divide, not by the law."""
PATIENCE = 2
"""Rungs in a row that lose more: one alone may only divide badly."""


def even_sizes(problem: Problem, limits: BudgetLimits, best: BudgetRun) -> tuple[int, int]:
    """Parameters of the smallest and the largest shape that lose less than ``EVEN_LOSS`` above the best, on its
    GPUs."""
    ladder = problem.ladder()
    if best.model not in ladder:
        return best.params, best.params
    at = ladder.index(best.model)

    beside = [ladder[at + d] for d in range(-PATIENCE, PATIENCE + 1) if 0 <= at + d < len(ladder)]
    problem.look_ahead(limits, [(best.gpus, model) for model in beside], best.loss + EVEN_LOSS)

    def furthest(rungs: Iterable[Model]) -> int:
        found, missed = best.params, 0
        for model in rungs:
            run = problem.best_at(limits, model, best.gpus, below=best.loss + EVEN_LOSS)
            missed = 0 if run is not None else missed + 1
            found = parameter_count(model) if run is not None else found
            if missed == PATIENCE:
                break
        return found

    return furthest(reversed(ladder[:at])), furthest(ladder[at + 1 :])
