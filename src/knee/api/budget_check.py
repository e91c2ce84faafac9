"""``knee.budget_check``: training runs whose cost was published, against what knee predicts for them."""

from __future__ import annotations

from knee.budgets.published_budgets import published_runs
from knee.inputs.argument_types import checked_arguments
from knee.results.budget_check_result import BudgetCheck


@checked_arguments
def budget_check() -> BudgetCheck:
    """Predict every training run whose cost was published, and say how far off knee is.

    >>> import knee
    >>> check = knee.budget_check()
    >>> all(abs(run.error_frac) < 0.25 for run in check.runs)
    True
    """
    return BudgetCheck(runs=tuple(published_runs()))
