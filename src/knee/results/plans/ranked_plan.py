"""One plan of a search, with its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from knee.results.result import Result
from knee.search.plan_search import score
from knee.simulator import Results
from knee.specs import Plan
from knee.specs.choices import Objective
from knee.specs.plan_table import PlanTable

METRICS = (
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu_frac",
    "step_s",
    "compute_s",
    "exposed_comm_s",
    "overlapped_comm_s",
    "bubble_s",
    "memory_bytes",
    "power_w_per_gpu",
    "tokens_per_j",
    "usd_per_mtoken",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan(Result):
    """One plan of a search, with its metrics and its results in the random draws of the fitted parameters."""

    rank: int | None
    """Its place by the objective, from 1; None where it was not simulated within the search."""
    plan: Plan
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_frac: float
    step_s: float
    compute_s: float
    exposed_comm_s: float
    overlapped_comm_s: float
    bubble_s: float
    memory_bytes: float
    power_w_per_gpu: float | None
    tokens_per_j: float | None
    usd_per_mtoken: float | None
    exposed_frac: float
    bubble_frac: float
    headroom_bytes: float
    """Memory of a GPU that the plan leaves free."""
    good_frac: float | None
    """Share of draws in which it was within 2% of the best; None where it was not drawn."""
    fits_frac: float | None
    worst_frac: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the name of each key ends in its unit."""
        return asdict(self)


def ranked_plan(
    plan: Plan,
    values: Mapping[str, float | None],
    hbm_bytes: float,
    rank: int | None = None,
    shares: Sequence[float | None] = (None, None, None),
) -> RankedPlan:
    """A plan with its metrics; what is not finite is not known."""
    finite: dict[str, Any] = {
        name: value if value is not None and math.isfinite(value) else None for name, value in values.items()
    }
    good, fits, worst = shares
    return RankedPlan(
        rank=rank,
        plan=plan,
        **finite,
        exposed_frac=finite["exposed_comm_s"] / finite["step_s"],
        bubble_frac=finite["bubble_s"] / finite["step_s"],
        headroom_bytes=hbm_bytes - finite["memory_bytes"],
        good_frac=good,
        fits_frac=fits,
        worst_frac=worst,
    )


def tell_better(
    on_better: Callable[[RankedPlan], None], objective: Objective, hbm_bytes: float
) -> Callable[[PlanTable, Results], None]:
    """Hears of all simulated plans, and tells of the best where it is another."""
    best = -math.inf

    def watch(table: PlanTable, results: Results) -> None:
        nonlocal best
        scores = score(results, objective)
        row = int(np.argmax(scores))
        if scores[row] > best:
            best = float(scores[row])
            values = {name: float(getattr(results, name)[row]) for name in METRICS}
            on_better(ranked_plan(table.plan(row), values, hbm_bytes))

    return watch
