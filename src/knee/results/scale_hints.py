"""What would make a count of GPUs usable where none is: another plan, another batch, or more GPUs."""

from __future__ import annotations

from knee.errors import DoesNotFit, SpecError, argument
from knee.results.scale_question import space_within
from knee.results.scale_result import Scaling
from knee.specs.choices import OBJECTIVES
from knee.specs.make import NOT_WHOLE
from knee.specs.plan import Plan

FREED = ("tp", "pp", "cp", "ep", "etp", "dp_shard", "dp_replicate", "virtual_stages", "micro_batch", "recompute_frac")
"""Options that a hint at a plan that fits may change: the sizes, not the kinds."""


def nothing_fits(answer: Scaling) -> DoesNotFit:
    """With what would: another plan, or more GPUs."""
    asked, local_batch = answer.question, answer.local_batch
    kept = {name: value for name, value in asked.plan.items() if name not in FREED}
    points = [point for one in answer.curves for point in one.curve.points]
    hints = [point.hint for point in points if point.hint]
    if asked.best:
        if local_batch is not None and all(point.code == NOT_WHOLE for point in points):
            hints.append(_whole_batch(local_batch))
        hint = hints[-1] if hints else "use more GPUs, or shorter sequences"
        return DoesNotFit("no plan fits at any of these GPU counts", hint=hint, code="no-plan-fits")
    for one in answer.curves:
        for point in reversed(one.curve.points):
            if one.job is None:
                continue
            try:
                batch = asked.global_batch(point.gpus)
            except SpecError:
                hints.append(_whole_batch(local_batch or 0.0))
                continue
            space, only = space_within(one.job, point.gpus, batch, kept)
            found = asked.best_of(one.job, space, only, OBJECTIVES[0])
            if found.usable and found.job is not None:
                return DoesNotFit(
                    "the plan does not work at any of these GPU counts",
                    hint=f"on {point.gpus:,} GPUs, a plan that works is {_plan_arguments(found.job.plan)}; "
                    f"{argument('best')} finds the best plan at every count",
                    code="no-count-usable",
                )
            hints += [found.hint] if found.hint else []
            break
    return DoesNotFit(
        "the plan does not work at any of these GPU counts",
        hint=hints[-1] if hints else "use more GPUs, or shorter sequences",
        code="no-count-usable",
    )


def _whole_batch(local_batch: float) -> str:
    """A batch and counts of whole sequences."""
    fewest = next((n for n in range(1, 1025) if n * local_batch >= 1 and (n * local_batch).is_integer()), None)
    count = f", or a multiple of {fewest:,} GPUs" if fewest else ""
    return f"use {argument('local_batch')} {max(1, round(local_batch))}{count}"


def _plan_arguments(plan: Plan) -> str:
    """The arguments that ask for a plan."""
    plain = Plan()
    names = (
        "tp",
        "pp",
        "cp",
        "dp_replicate",
        "sharding",
        "schedule",
        "virtual_stages",
        "recompute",
        "recompute_frac",
        "precision",
        "fp8_recipe",
        "sync_every",
    )
    changed = [name for name in names if getattr(plan, name) != getattr(plain, name)]
    words = [f"{argument(name)} {getattr(plan, name)}" for name in changed]
    return " ".join([*words, f"{argument('micro_batch')} {plan.micro_batch}"])
