"""The plans of a space, best first. See ``search.best_first`` for how few of them are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from knee.base.arrays import Bools, ByValue, Floats, Ints
from knee.base.errors import InputError, argument
from knee.base.progress import Progress, silent
from knee.engine.simulator import Results
from knee.search.best_first import BestFirst, Unsharded
from knee.search.memory_fit import memory_bytes
from knee.search.pareto_front import FRONT_STEP
from knee.search.plan_filter import matching
from knee.search.space import Space
from knee.search.space_tables import count_plans, whole_tables, without_twins
from knee.specs.choices import Objective
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.plan import Plan
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile

RANKED = 64
"""Plans whose order is that of simulating everything."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult(ByValue):
    """A searched space."""

    space: Space
    cluster: Cluster
    profile: Profile
    objective: Objective
    only: str | None
    plans: int
    """Valid plans within the limits; those that recompute a share of their layers count where there are no others."""
    ranked: int
    """Plans at the head of the table that no other plan of the space is better than."""
    table: PlanTable
    """What was simulated, best first."""
    results: Results
    start: Unsharded = field(compare=False)

    def __len__(self) -> int:
        return len(self.table)

    def job(self, row: int) -> Job:
        """One of the simulated plans as a job."""
        space = self.space
        return Job(
            model=space.model,
            cluster=self.cluster,
            profile=self.profile,
            plan=self.table.plan(row),
            gpus=space.gpus,
            global_batch=space.global_batch,
            seq_len=space.seq_len,
        )

    @property
    def scores(self) -> Floats:
        """What the plans are ordered by; more is better."""
        return score(self.results, self.objective)

    def fastest_with_memory(self, hbm_bytes: float) -> float:
        """Tokens/s of the fastest plan that so much memory would hold; 0 where none fits."""
        known = self.results.tokens_per_s[self.results.memory_bytes <= hbm_bytes].max(initial=0.0)
        fastest = float(self.results.tokens_per_s.max())
        # the front has the fastest plan of every size that is not much slower than the fastest of all
        if hbm_bytes <= self.cluster.gpu.hbm_bytes and known * FRONT_STEP >= fastest:
            return float(known)
        tokens = self.space.global_batch * self.space.seq_len
        below = tokens / known if known else np.inf
        start, now = self.start, self.cluster.gpu.hbm_bytes
        # of the plans that fit now, the fastest is known
        above = now if hbm_bytes > now else 0.0
        if self.objective == "tokens_per_j":
            start, above = Unsharded(self.space, self.cluster, self.profile, "tokens_per_s"), 0.0
        found = BestFirst(start, hbm_bytes=hbm_bytes, below=below, above_bytes=above, wanted=wanted_by(self.only))
        found.rank(1)
        return float(found.results.tokens_per_s.max(initial=known))

    def least_memory(self) -> tuple[Plan, float]:
        """Of all plans, the one that needs least memory, and the bytes."""
        found: list[tuple[float, Plan]] = []
        for table in _every_plan(self.space, self.only):
            needs = memory_bytes(self.space.model, self.profile, table)
            if len(needs) and (not found or needs.min() < found[-1][0]):
                found.append((float(needs.min()), table.plan(int(np.argmin(needs)))))
        needed, plan = found[-1]
        return plan, needed


def score(results: Results, objective: Objective) -> Floats:
    """What the objective ranks plans by; the larger the better."""
    column: Floats = getattr(results, objective)
    return -column if objective == "usd_per_mtoken" else column


def search(
    space: Space,
    cluster: Cluster,
    profile: Profile,
    *,
    objective: Objective = "tokens_per_s",
    only: str | None = None,
    keep: int = RANKED,
    front: bool = False,
    progress: Progress = silent,
    watch: Callable[[PlanTable, Results], None] | None = None,
) -> SearchResult:
    """Find the best ``keep`` plans of a space, and with ``front`` those that no other beats in speed, energy and memory
    at once. ``watch`` sees what has been simulated, each time that there is more."""
    if objective == "usd_per_mtoken" and cluster.usd_per_gpu_h is None:
        hint = f"give {argument('overrides')} cluster.usd_per_gpu_h='2.5 USD/h'"
        text = f"the price of {cluster.name} is unknown"
        raise InputError(text, hint=hint, code="no-rate", field="cluster.usd_per_gpu_h")
    if space.gpus > cluster.max_gpus:
        text = f"gpus is {space.gpus:,}; {cluster.name} is described only up to {cluster.max_gpus:,}"
        raise InputError(text, code="out-of-range", field="gpus")
    _check_modelled(space, cluster, profile)
    wanted = wanted_by(only)
    progress("listing plans", 0, 0)
    start = Unsharded(space, cluster, profile, objective)
    plans = count_plans(space) if only is None else sum(map(len, _every_plan(space, only)))

    def watched(table: PlanTable, results: Results) -> None:
        progress("simulating plans", 0, 0)
        if watch is not None:
            watch(table, results)

    found = BestFirst(start, hbm_bytes=cluster.gpu.hbm_bytes, wanted=wanted, watch=watched)
    # a plan may take the same time with each kind of collectives, and counts once
    found.rank(keep * len(space.every_collectives))
    if front:
        found.find_front()
    order = _order(found.table, score(found.results, objective))
    order = order[without_twins(found.table.rows(order), results_rows(found.results, order))]
    return SearchResult(
        space=space,
        cluster=cluster,
        profile=profile,
        objective=objective,
        only=only,
        plans=max(plans, len(order)),
        ranked=min(keep, len(order)),
        table=found.table.rows(order),
        results=results_rows(found.results, order),
        start=start,
    )


def wanted_by(only: str | None) -> Callable[[PlanTable], Bools] | None:
    """A function of a table: whether each plan meets the condition."""
    if only is None:
        return None
    return lambda table: matching(table, only)


def _every_plan(space: Space, only: str | None) -> Iterator[PlanTable]:
    """Tables of all plans that are asked for, of which one is held at a time."""
    for table in whole_tables(space):
        yield table if only is None else table.rows(np.flatnonzero(matching(table, only)))


SPLITS = ("pp", "cp", "tp", "virtual_stages", "dp_replicate")
REST = ("sharding", "schedule", "recompute", "recompute_frac", "micro_batch", "cp_method", "ep", "etp", "collectives")
TIES = (*SPLITS, *REST)
"""Of plans with the same score, those that split the model less come first."""


def _order(table: PlanTable, scores: Floats) -> Ints:
    """Best first; plans of the same score always in the same order."""
    columns = [getattr(table, name) for name in TIES]
    return np.lexsort((~table.sequence_parallel, *reversed(columns), -scores))


def results_rows(results: Results, index: Ints) -> Results:
    """The results of the rows at these places."""
    return Results(**{f.name: getattr(results, f.name)[index] for f in fields(Results)})


def _check_modelled(space: Space, cluster: Cluster, profile: Profile) -> None:
    """Refuse what no plan could be simulated on: a precision, an attention kernel, a length, parts to recompute that
    are not named or that no plan may recompute."""
    one = replace(Plan(), precision=space.fixed.precision, reduce_dtype=space.fixed.reduce_dtype)
    if space.modules or "modules" in space.recomputes:
        again = "modules" if not space.recomputes or "modules" in space.recomputes else space.recomputes[0]
        changed: dict[str, Any] = {"recompute": again, "recompute_modules": space.modules}
        one = replace(one, **changed)
    Job(model=space.model, cluster=cluster, profile=profile, plan=one, gpus=1, global_batch=1, seq_len=space.seq_len)


# The best plan of every pair of tp and pp: what a heat map of a search shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBest:
    """One pair; without a plan, none of its plans fits in memory."""

    tp: int
    pp: int
    plans: int
    """Plans of the pair before their sharding is chosen."""
    plan: Plan | None = None
    results: Results | None = None
    """Of that plan alone."""


def cell_pairs(found: SearchResult) -> list[tuple[int, int]]:
    """Pairs of tp and pp that have plans."""
    found.start.extend_to(np.inf)
    pairs = np.stack((found.start.table.tp, found.start.table.pp), axis=1)
    return [(tp, pp) for tp, pp in np.unique(pairs, axis=0).tolist()]


def cell_bests(found: SearchResult) -> Iterator[CellBest]:
    """Each of them, searched as the whole space was, for its best plan alone."""
    start = found.start
    for tp, pp in cell_pairs(found):
        rows = np.flatnonzero((start.table.tp == tp) & (start.table.pp == pp))
        best = BestFirst(start.part(rows), hbm_bytes=found.cluster.gpu.hbm_bytes, wanted=wanted_by(found.only))
        best.rank(1)
        if not len(best.table):
            yield CellBest(tp=tp, pp=pp, plans=len(rows))
            continue
        row = int(np.argmax(score(best.results, found.objective)))
        results = results_rows(best.results, np.array([row]))
        yield CellBest(tp=tp, pp=pp, plans=len(rows), plan=best.table.plan(row), results=results)
