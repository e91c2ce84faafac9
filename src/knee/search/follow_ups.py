"""Searches that explain a search: plain FSDP, plans with NCCL's own collectives, other hardware. Each is run when it is
first asked for, because it can take as long as the search itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from knee.base.arrays import extreme_values
from knee.base.units import show
from knee.engine.measurement import CommLoad, Measurement
from knee.engine.one_job import simulate
from knee.search.plan_search import SearchResult, search
from knee.search.sensitivity import Bar, sensitivity
from knee.search.space import Space
from knee.specs.job import Job
from knee.specs.metrics import METRICS, VIEWS
from knee.specs.notes import Note
from knee.specs.plan import SHARDINGS, Plan
from knee.specs.plan_table import PlanTable

SHOWN_FRAC = 0.1
"""Share of all that a plan saves, from which a part is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The best plan of plain FSDP, which shards over all GPUs and splits the model no further."""

    job: Job
    result: Measurement
    row: int | None
    """Its place in the search; None where it is too slow to be simulated there, or not within the limits."""


def baseline(found: SearchResult) -> Baseline | Note:
    """Plain FSDP, or why it cannot be."""
    space = found.space
    if space.global_batch % space.gpus:
        text = f"plain FSDP cannot be: {space.global_batch:,} sequences do not split over {space.gpus:,} GPUs"
        return Note("batch-does-not-split", text, field="global_batch")
    plain = Space(
        model=space.model,
        gpus=space.gpus,
        global_batch=space.global_batch,
        seq_len=space.seq_len,
        fixed=space.fixed,
        attention_again=space.attention_again,
        shardings=("fsdp", "fsdp_no_reshard"),
        max_tp=1,
        max_pp=1,
        max_cp=1,
    )
    alone = search(plain, found.cluster, found.profile, objective=found.objective, only="dp_replicate == 1", keep=1)
    if not len(alone):
        return Note("does-not-fit", "plain FSDP does not fit in memory")
    job = alone.job(0)
    same = [row for row in _rows_like(found.table, job.plan) if found.table.plan(row) == job.plan]
    return Baseline(job=job, result=simulate(job), row=same[0] if same else None)


def _rows_like(table: PlanTable, plan: Plan) -> list[int]:
    alike = (table.tp * table.pp * table.cp == 1) & (table.dp_replicate == 1)
    alike &= (table.sharding == SHARDINGS.index(plan.sharding)) & (table.micro_batch == plan.micro_batch)
    return [int(row) for row in np.flatnonzero(alike)]


PARTS = VIEWS["parts of a step"]


def why(job: Job, base: Baseline) -> str:
    """One sentence: what the winner's step saves against plain FSDP's, and through which group."""
    if job.plan == base.job.plan:
        return "plain FSDP is the best plan: no other split of the model saves more than it costs"
    result = simulate(job)
    saved = {name: getattr(base.result, name) - getattr(result, name) for name in PARTS}
    total = base.result.step_s - result.step_s
    gains = [(name, s) for name, s in sorted(saved.items(), key=lambda one: -one[1]) if s > SHOWN_FRAC * abs(total)]
    losses = [(name, s) for name, s in sorted(saved.items(), key=lambda one: one[1]) if s < -SHOWN_FRAC * abs(total)]
    share = total / base.result.step_s
    said = f"{abs(share):.1%} {'less' if share >= 0 else 'more'} time per step than plain FSDP"
    if gains:
        said += ": " + ", ".join(f"{show(s, 's')} less {METRICS[name].label}" for name, s in gains)
        said += _group(result, base)
    if losses:
        said += "; " + ", ".join(f"{show(-s, 's')} more {METRICS[name].label}" for name, s in losses)
    return said


def _group(result: Measurement, base: Baseline) -> str:
    """Which collective of the sharded group shrank most, and the group."""

    def sharded(m: Measurement, collective: str) -> list[CommLoad]:
        return [c for c in m.comm_loads if (c.collective, c.group) == (collective, "dp_shard")]

    saved = {
        kind: sum(c.load_s for c in sharded(base.result, kind)) - sum(c.load_s for c in sharded(result, kind))
        for kind in ("all_gather", "reduce_scatter")
    }
    kind = max(saved, key=lambda name: saved[name])
    before, after = sharded(base.result, kind), sharded(result, kind)
    if saved[kind] <= 0 or not before:
        return ""
    name, less = kind.replace("_", "-"), show(saved[kind], "s")
    if not after:
        return f" ({name} is not needed, which saves {less})"
    return f" ({name} over {after[0].group_size:,} instead of {before[0].group_size:,} GPUs saves {less})"


@dataclass(frozen=True, kw_only=True)
class FollowUpSearches:
    """What is searched for after a search has recommended a plan. Every property is computed once, when first read."""

    found: SearchResult
    recommended: int
    """Row of the recommended plan."""

    @cached_property
    def job(self) -> Job:
        """The recommended plan as a job."""
        return self.found.job(self.recommended)

    @cached_property
    @extreme_values()
    def plain_fsdp(self) -> Baseline | Note:
        """The best plan of plain FSDP, or why there is none."""
        return baseline(self.found)

    @cached_property
    @extreme_values()
    def savings(self) -> str:
        """One sentence: what the recommended plan saves beside plain FSDP."""
        plain = self.plain_fsdp
        return plain if isinstance(plain, Note) else why(self.job, plain)

    @cached_property
    @extreme_values()
    def flat_collectives(self) -> SearchResult | None:
        """The same search among plans that NCCL's own collectives can run; None where the recommended plan is one of
        them, or none fits."""
        found = self.found
        if self.job.plan.collectives == "flat":
            return None
        space = replace(found.space, collectives=("flat",))
        flat = search(space, found.cluster, found.profile, objective=found.objective, only=found.only, keep=1)
        return flat if len(flat) else None

    @cached_property
    @extreme_values()
    def sensitivity(self) -> tuple[Bar, ...]:
        """What a quarter more, and a quarter less, of each resource changes, with the plan chosen anew."""
        return tuple(sensitivity(self.found))
