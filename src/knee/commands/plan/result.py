"""What a search of plans found: the ranking, the recommended plan, and what stands behind the choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.errors import InputError
from knee.engine.measurement import Measurement
from knee.engine.reliability.whole_run import month_of_job
from knee.engine.simulator import Results
from knee.engine.training_cost import TrainingQuestion
from knee.search.follow_ups import CLOSE, Bar, FollowUpSearches, Robust
from knee.search.plan_search import SearchResult, pareto, score
from knee.show.result import Result, flat
from knee.specs import Job, Plan
from knee.specs.argument_types import checked_arguments
from knee.specs.choices import Objective
from knee.specs.notes import Note
from knee.specs.plan import plan_words
from knee.specs.plan_table import PlanTable
from knee.trust.trust import Trust, trust_of

# One plan of a search, with its metrics.


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RankedPlan(Result):
    """One plan of a search, with its metrics and its results in the random draws of the fitted parameters."""

    rank: int | None = None
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
    good_frac: float | None = None
    """Share of draws in which it was within 2% of the best; None where it was not drawn."""
    fits_frac: float | None = None
    worst_frac: float | None = None


METRICS = tuple(one.name for one in fields(RankedPlan) if one.name in {column.name for column in fields(Results)})
"""Metrics of a ranked plan that the simulator has a column for."""


def ranked_plan(plan: Plan, results: Results | Measurement, hbm_bytes: float, row: int = 0, **known: Any) -> RankedPlan:
    """A plan with its metrics of a row of results, or of one step, and what else is known of it; a metric that is not
    finite is None."""
    values: dict[str, Any] = {}
    for name in METRICS:
        value = getattr(results, name)
        value = float(value[row]) if isinstance(value, np.ndarray) else value
        values[name] = value if value is not None and math.isfinite(value) else None
    return RankedPlan(
        plan=plan,
        **values,
        exposed_frac=values["exposed_comm_s"] / values["step_s"],
        bubble_frac=values["bubble_s"] / values["step_s"],
        headroom_bytes=hbm_bytes - values["memory_bytes"],
        **known,
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
            on_better(ranked_plan(table.plan(row), results, hbm_bytes, row))

    return watch


EXPORT_TRIES = 500
"""Plans of the ranking that are tried where a tool cannot run the recommended one."""
NOT_IN_NCCL = "no NCCL up to 2.30 has hierarchical collectives"


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanSearch(Result):
    """All plans that were considered, the best of them, and the reasons for the choice."""

    found: SearchResult
    drawn: Robust
    follow_ups: FollowUpSearches = field(compare=False)
    """Searches behind ``baseline``, ``why``, ``flat_collectives`` and ``sensitivity``."""
    top: int
    """Plans that are listed."""
    whole_run: TrainingQuestion | None = None
    """Tokens that are to be trained on, and where."""

    @cached_property
    def best(self) -> RankedPlan:
        """The recommended plan: the first, or the one that is near the best clearly more often."""
        return self.ranked(self.drawn.recommended)

    @cached_property
    def plans(self) -> tuple[RankedPlan, ...]:
        """The first of the ranking."""
        return tuple(self.ranked(row) for row in range(self.top))

    @cached_property
    def front(self) -> tuple[RankedPlan, ...]:
        """Simulated plans that no other beats in tokens/s, tokens/J and free memory at once."""
        rows = pareto(self.found.results, self.found.cluster.gpu.hbm_bytes).tolist()
        return tuple(self.ranked(row) for row in rows)

    @property
    def job(self) -> Job:
        """The recommended plan as a job."""
        return self.follow_ups.job

    @cached_property
    def baseline(self) -> RankedPlan | None:
        """The best plan of plain FSDP; None where it cannot be. It is searched for when first asked for."""
        plain = self.follow_ups.plain_fsdp
        if isinstance(plain, Note):
            return None
        if plain.row is not None:
            return self.ranked(plain.row)
        return ranked_plan(plain.job.plan, plain.result, self.found.cluster.gpu.hbm_bytes)

    @cached_property
    def why(self) -> str:
        """What the recommended plan saves beside plain FSDP, and what hierarchical collectives save."""
        said, flat = self.follow_ups.savings, self.flat_collectives
        if flat is None:
            return said
        slower = 1.0 - flat.tokens_per_s / self.best.tokens_per_s
        return f"{said}; {NOT_IN_NCCL}, and without them the best plan is {slower:.1%} slower: {plan_words(flat.plan)}"

    @cached_property
    def flat_collectives(self) -> RankedPlan | None:
        """The best plan that NCCL's own collectives can run; None where the recommended plan is one, or none fits. It
        is searched for when first asked for."""
        flat = self.follow_ups.flat_collectives
        if flat is None:
            return None
        return ranked_plan(flat.table.plan(0), flat.results, self.found.cluster.gpu.hbm_bytes)

    @property
    def sensitivity(self) -> tuple[Bar, ...]:
        """What a quarter more, and a quarter less, of each resource changes, with the plan chosen anew. It is searched
        for when first asked for."""
        return self.follow_ups.sensitivity

    @cached_property
    def trust(self) -> Trust:
        """Of the recommended plan."""
        return trust_of(self.job)

    @cached_property
    def training(self) -> dict[str, Any] | None:
        """What training on the tokens takes with the recommended plan; None where no tokens were given."""
        return self.training_with(self.best)

    def training_with(self, plan: RankedPlan) -> dict[str, Any] | None:
        """The cost of training on the tokens with this plan; the range is that of the recommended plan."""
        if self.whole_run is None:
            return None
        space = self.found.space
        return self.whole_run.answer(plan, space.model, self.found.cluster, space.gpus, self.trust.band)

    def ranked(self, row: int) -> RankedPlan:
        """The plan of a row of the search, counted from 0."""
        found, drawn = self.found, self.drawn
        shares = {"good_frac": drawn.good_frac, "fits_frac": drawn.fits_frac, "worst_frac": drawn.worst_frac}
        known = {name: float(share[row]) for name, share in shares.items() if row < len(share)}
        hbm_bytes = found.cluster.gpu.hbm_bytes
        return ranked_plan(found.table.plan(row), found.results, hbm_bytes, row, rank=row + 1, **known)

    def _data(self) -> dict[str, Any]:
        found, drawn, space = self.found, self.drawn, self.found.space
        return {
            "schema_version": 1,
            "model": space.model.name,
            "cluster": found.cluster.name,
            "profile": found.profile.name,
            "gpus": space.gpus,
            "global_batch": space.global_batch,
            "seq_len": space.seq_len,
            "objective": found.objective,
            "counts": {"plans": found.plans, "simulated": len(found), "ranked": found.ranked},
            "plans": self.plans,
            "recommended": self.best,
            **({} if self.training is None else {"training": self.training}),
            "alike": [row + 1 for row in drawn.indistinguishable_rows],
            "why": self.why,
            "baseline": self.baseline,
            "flat_collectives": self.flat_collectives,
            "front": self.front,
            "robustness": {
                "draws": drawn.draws,
                "within_frac": round(1.0 - CLOSE, 6),
                "parameters": [
                    {"path": p.path, "spread": p.spread, "share": p.is_share, "meaning": p.meaning}
                    for p in drawn.parameters
                ],
            },
            "sensitivity": self.sensitivity,
            "trust": self.trust.as_json(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The listed plans, one per row."""
        rows = [plan.to_dict() for plan in self.plans]
        whole = [self.training_with(plan) for plan in self.plans]
        return [flat(row | ({} if run is None else {"training": run})) for row, run in zip(rows, whole, strict=True)]

    @checked_arguments
    def write_page(self, path: str | Path, *, command: str = "") -> None:
        """Write one HTML page of the answer, which needs no network."""
        from knee.base.files import write_text
        from knee.commands.plan.page import plan_page

        every = (*self.plans, *self.front, self.best)
        words = {plan.rank: plan_words(plan.plan) for plan in every if plan.rank is not None}
        job, run = self.job, self.training
        month = []
        if run is not None:
            days = run["with_failures"]["days"]
            month = month_of_job(job.model, job.cluster, job.gpus, step_s=self.best.step_s, days=days)
        write_text(Path(path), plan_page(self.to_dict(), words, command=command, month=month))

    @checked_arguments
    def export(self, to: str) -> str:
        """The recommended plan in the format of a tool: a knee job file, or launch flags of torchtitan or Megatron."""
        from knee.training.export.formats import export

        return export(self.job, to)

    def export_first(self, to: str) -> tuple[str, int, InputError | None]:
        """The first plan that a tool can run, from the recommended one on: its text, its row, and why that one was
        refused where it was."""
        from knee.training.export.formats import export

        refused: InputError | None = None
        for row in dict.fromkeys((self.drawn.recommended, *range(min(EXPORT_TRIES, len(self.found))))):
            try:
                return export(self.found.job(row), to), row, refused
            except InputError as error:
                refused = refused or error
        assert refused is not None
        raise refused
