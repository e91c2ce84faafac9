"""Searches that explain a search: plain FSDP, plans with NCCL's own collectives, other hardware. Each is run when it is
first asked for, because it can take as long as the search itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from knee.search.plain_fsdp import Baseline, baseline, why
from knee.search.plan_search import SearchResult, search
from knee.search.sensitivity import Bar, sensitivity
from knee.specs.job import Job
from knee.specs.notes import Note


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
    @np.errstate(all="ignore")
    def plain_fsdp(self) -> Baseline | Note:
        """The best plan of plain FSDP, or why there is none."""
        return baseline(self.found)

    @cached_property
    @np.errstate(all="ignore")
    def savings(self) -> str:
        """One sentence: what the recommended plan saves beside plain FSDP."""
        plain = self.plain_fsdp
        return plain if isinstance(plain, Note) else why(self.job, plain)

    @cached_property
    @np.errstate(all="ignore")
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
    @np.errstate(all="ignore")
    def sensitivity(self) -> tuple[Bar, ...]:
        """What a quarter more, and a quarter less, of each resource changes, with the plan chosen anew."""
        return tuple(sensitivity(self.found))
