"""Plans that may be run: the best of the space by simulation, also those that may fit although they should not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from knee.base.errors import DoesNotFit, InputError, SpecError
from knee.base.progress import Progress, silent
from knee.search.follow_ups import no_plan, nothing_fits
from knee.search.plan_search import SearchResult, matching, search
from knee.search.space import Space
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.plan_table import table_of
from knee.specs.profile import Profile

MOST = 192
"""Plans that are candidates; the bound covers these."""
RANKED = 4 * MOST
"""Plans that are looked through for those that can be run."""
MAY_FIT = 1.1
"""Predicted memory over the GPU's up to which a plan may fit after all."""
TRAINED = ("ddp", "fsdp", "fsdp_no_reshard", "hsdp")
"""Shardings that can be trained; others can be asked for, and are refused."""
Refused = Callable[[Job], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPlans:
    """Jobs that differ in their plan, the fastest by simulation first."""

    jobs: tuple[Job, ...]
    space_plans: int
    """Valid plans of the space."""
    not_run: dict[str, int]
    """Why plans among the best cannot be run -> how many."""
    beyond_frac: float | None
    """Predicted throughput of the best plan that is not a candidate, over that of the best one; None if there is none.
    """


def searched_plans(
    space: Space,
    cluster: Cluster,
    profile: Profile,
    *,
    only: str | None,
    refused: Refused,
    progress: Progress | None = None,
) -> SearchedPlans:
    """Search the space, with a little more memory than there is; DoesNotFit where nothing is left."""
    if not space.shardings:
        space = replace(space, shardings=TRAINED)
    roomy = replace(cluster, gpu=replace(cluster.gpu, hbm_bytes=MAY_FIT * cluster.gpu.hbm_bytes))
    found = search(space, roomy, profile, only=only, keep=RANKED, progress=progress or silent)
    jobs: list[Job] = []
    not_run: dict[str, int] = {}
    beyond: float | None = None
    for row in range(found.ranked):
        job = replace(found.job(row), cluster=cluster)
        why = refused(job)
        if why is not None:
            not_run[why] = not_run.get(why, 0) + 1
        elif len(jobs) < MOST:
            jobs.append(job)
        else:
            beyond = float(found.results.tokens_per_s[row] / found.results.tokens_per_s[0])
            break
    if not jobs:
        raise _nothing(replace(found, cluster=cluster), space, not_run)
    return SearchedPlans(jobs=tuple(jobs), space_plans=found.plans, not_run=not_run, beyond_frac=beyond)


def _nothing(found: SearchResult, space: Space, not_run: dict[str, int]) -> InputError | DoesNotFit:
    if not_run:
        why = max(not_run, key=lambda reason: not_run[reason])
        return DoesNotFit(f"none of the plans can be run here: {why}", code="no-run-can-start")
    if found.plans:
        words, hint = nothing_fits(found)
        return DoesNotFit(words, hint=hint, code="no-plan-fits")
    if found.only is not None:
        text = f"no plan satisfies the condition {found.only!r}"
        return DoesNotFit(text, hint="`knee plan` shows the plans of the job", code="limits-leave-no-plan")
    words, hint = no_plan(space)
    return DoesNotFit(words, hint=hint, code="no-valid-plan")


def refusal_of(check: Callable[[Job], object], launcher: Refused) -> Refused:
    """What the trainer says of a job, and then its launcher."""

    def refused(job: Job) -> str | None:
        try:
            check(job)
        except SpecError as error:
            return error.message
        return launcher(job)

    return refused


def outside_of(space: Space, only: str | None) -> Refused:
    """Why a setting of a plan is not in the space that was asked for; None where it is."""

    def refused(job: Job) -> str | None:
        plan = job.plan
        if plan.recompute not in (space.recomputes or (plan.recompute,)):
            return f"recompute {plan.recompute} was not asked for"
        if plan.recompute == "attention" and not space.attention_again:
            return "the attention kernel keeps no scores, so its recomputation saves nothing"
        if plan.micro_batch not in (space.micro_batches or (plan.micro_batch,)):
            return f"micro-batch {plan.micro_batch} was not asked for"
        return None if only is None or matching(table_of([job]), only)[0] else f"it does not satisfy {only!r}"

    return refused
