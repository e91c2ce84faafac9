"""``knee.plan``: the best parallel plan of a job, out of all there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from knee.base.arrays import extreme_values
from knee.base.errors import DoesNotFit, InputError, argument
from knee.base.limits import MOST_LISTED_PLANS
from knee.base.progress import Progress, silent
from knee.commands.job_request import Amount, ClusterLike, ModelLike, Overrides, ProfileLike, pairs_of, training_of
from knee.commands.plan.request import searched_parts, takes_search_arguments
from knee.commands.plan.result import PlanSearch, RankedPlan, tell_better
from knee.search.follow_ups import FollowUpSearches, no_plan, nothing_fits, robust
from knee.search.plan_search import NUMBERS, RANKED, WORDS, SearchResult, search
from knee.search.space import Space, searched_collectives, whole_table
from knee.specs.argument_types import checked_arguments
from knee.specs.choices import Objective
from knee.specs.defaults import DEFAULT_GRID
from knee.specs.model.split_rules import check_searched_exchanges
from knee.specs.plan import KEPT
from knee.specs.plan_table import PlanTable


@extreme_values()
@checked_arguments
@takes_search_arguments(*KEPT)
def plan(
    model: ModelLike,
    *,
    cluster: ClusterLike | None = None,
    gpus: int | None = None,
    global_batch: int | None = None,
    local_batch: float | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    only: str | None = None,
    objective: Objective = "tokens_per_s",
    top: int = 10,
    tokens: Amount | None = None,
    grid: str = DEFAULT_GRID,
    pue: float | None = None,
    progress: Progress | None = None,
    on_better: Callable[[RankedPlan], None] | None = None,
    **searched: Any,
) -> PlanSearch:
    """Find the best parallel plan among all valid plans.

    ``model`` is the same as for ``knee.simulate``. If it is a job file, the search keeps the data types of its plan and
    replaces the rest. ``searched`` has fields of ``knee.Plan`` that all plans have (``precision``, ``dispatcher``,
    ``sync_every``, ...; ``help(knee.plan)`` lists them), the largest degrees (``max_tp``, ``max_pp``, ``max_cp``,
    ``max_ep``), and the values to consider (lists for ``sharding``, ``schedule``, ``recompute`` and ``micro_batch``).
    ``collectives`` left out tries both kinds where the job crosses a slow tier of the network. ``only`` is a condition
    such as ``"pp == 1 and tp <= 8"``. ``progress`` is called with the current activity and the share that is done; an
    exception that it raises ends the search. ``on_better`` is called with each plan that is better than all before it,
    while the search runs.

    If ``tokens`` is given, ``training`` has the cost of the whole run, as in ``knee.simulate``.

    If no plan fits, ``DoesNotFit`` is raised; it names the plan that comes closest.

    >>> import knee
    >>> found = knee.plan("llama2-7b", cluster="dgx-h100", gpus=8, global_batch=16, max_pp=1, max_cp=1)
    >>> found.best.plan.tp in (1, 2, 4, 8)
    True
    """
    if not 1 <= top <= MOST_LISTED_PLANS:
        text = f"{argument('top')} is {top:,}; it must be from 1 to {MOST_LISTED_PLANS:,}"
        raise InputError(text, hint=f"for example {argument('top')} 10", code="out-of-range", field="top")
    whole_run = training_of(tokens, grid, pue)
    sizes = {"gpus": gpus, "global_batch": global_batch, "local_batch": local_batch, "seq_len": seq_len}
    parts = searched_parts(model, cluster, profile, sizes, pairs_of(overrides))
    given = searched.get("sync_every")
    every = parts.sync_every if given is None else given
    both = () if searched.get("collectives") else searched_collectives(parts.cluster, parts.gpus)
    space = parts.space(searched, sync_every=every, collectives=both)
    check_searched_exchanges(space.fixed, every)
    found = search(
        space,
        parts.cluster,
        parts.profile,
        objective=objective,
        only=only,
        keep=max(top, RANKED),
        front=True,
        progress=progress or silent,
        watch=None if on_better is None else tell_better(on_better, objective, parts.cluster.gpu.hbm_bytes),
    )
    if not len(found):
        raise _none_fits(found, space, only)
    drawn = robust(found)
    return PlanSearch(
        found=found,
        drawn=drawn,
        follow_ups=FollowUpSearches(found=found, recommended=drawn.recommended),
        top=min(top, len(found)),
        whole_run=whole_run,
    )


def _none_fits(found: SearchResult, space: Space, only: str | None) -> DoesNotFit:
    if found.plans:
        words, hint = nothing_fits(found)
        return DoesNotFit(words, hint=hint, code="no-plan-fits")
    free: dict[str, Any] = dict.fromkeys(("max_tp", "max_pp", "max_cp", "max_ep"))
    free |= dict.fromkeys(("shardings", "schedules", "recomputes", "micro_batches"), ())
    whole = replace(space, **free)
    table = whole_table(whole)
    if len(table):
        return DoesNotFit(
            f"the limits exclude all {len(table):,} plans", hint=_values(table, only), code="limits-leave-no-plan"
        )
    words, hint = no_plan(whole)
    return DoesNotFit(words, hint=hint, code="no-valid-plan")


def _values(table: PlanTable, only: str | None) -> str:
    given = set(re.findall(r"[a-z_]+", only or ""))
    named = [name for name in (*NUMBERS, *WORDS) if name in given]
    lines = []
    for name in named or ["tp", "pp", "cp", "sharding"]:
        values = np.unique(getattr(table, name)).tolist()
        words = [WORDS[name][v] if name in WORDS else f"{int(v):,}" for v in values]
        lines.append(f"{name} must be one of {', '.join(words[:16])}{', ...' if len(words) > 16 else ''}")
    return "; ".join(lines)
