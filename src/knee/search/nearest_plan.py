"""When no plan is left: what is closest to what was asked, and what would make it work."""

from __future__ import annotations

from dataclasses import replace

from knee.base.units import show
from knee.search.memory_fit import memory_table
from knee.search.plan_search import SearchResult
from knee.search.space import Space, degrees
from knee.search.space_tables import whole_table
from knee.specs.hardware import Cluster
from knee.specs.profile import Profile
from knee.specs.schedules import ONE_F_ONE_B

FURTHEST = 64
"""GPUs up or down in which a count with plans is looked for."""
LARGER = (2, 4, 8, 16, 32, 64)


def no_plan(space: Space) -> tuple[str, str]:
    """Why no plan fills these GPUs, and the nearest counts and batches that some do."""
    counts = [
        n
        for step in range(1, FURTHEST)
        for n in (space.gpus - step, space.gpus + step)
        if n >= 1 and any(True for _ in degrees(replace(space, gpus=n)))
    ]
    batch = -(-space.global_batch // space.gpus) * space.gpus
    words = f"no plan of {space.model.name} fills {space.gpus:,} GPUs with {space.global_batch:,} sequences per step"
    hints = []
    if counts:
        near = sorted({next((n for n in counts if n < space.gpus), 0), next((n for n in counts if n > space.gpus), 0)})
        hints.append(f"{' or '.join(f'{n:,}' for n in near if n)} GPUs would work")
    if batch != space.global_batch:
        hints.append(f"a batch of {batch:,}, one or more per GPU, would work")
    return words, "; ".join(hints) or "change the number of GPUs or the batch"


def nothing_fits(found: SearchResult) -> tuple[str, str]:
    """What the smallest plan needs, and where it would fit."""
    space, gpu = found.space, found.cluster.gpu
    plan, needs = found.least_memory()
    words = (
        f"none of {found.plans:,} plans of {space.model.name} fits in {show(gpu.hbm_bytes, 'bytes')} per GPU: the "
        f"smallest needs {show(needs, 'bytes')} ({plan.sharding}, tp {plan.tp}, pp {plan.pp}, "
        f"cp {plan.cp}, micro-batch {plan.micro_batch}, recompute {plan.recompute})"
    )
    enough = gpus_that_fit(space, found.cluster, found.profile)
    hint = f"{enough:,} GPUs would hold it" if enough else "no number of these GPUs that was tried would hold it"
    return words, f"{hint}; so would GPUs of {show(needs, 'bytes')}"


def gpus_that_fit(space: Space, cluster: Cluster, profile: Profile) -> int | None:
    """The first doubling at which the leanest kind of plan within the limits fits, with the same batch."""
    for times in LARGER:
        gpus = space.gpus * times
        if gpus > cluster.max_gpus:
            return None
        lean = replace(
            space,
            gpus=gpus,
            shardings=space.shardings or ("fsdp",),
            micro_batches=space.micro_batches or (1,),
            recomputes=space.recomputes or ("full",),
            schedules=space.schedules or (ONE_F_ONE_B.name,),
        )
        table = whole_table(lean)
        if len(table) and memory_table(lean.model, profile, table).total_bytes.min() <= cluster.gpu.hbm_bytes:
            return gpus
    return None
