"""Changes of a plan that make it fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from knee.errors import KneeError
from knee.inputs.request import Request
from knee.single import simulate as simulate_job
from knee.specs import Job
from knee.specs.plan import RECOMPUTES


def fitting_change(asked: Request) -> dict[str, Any] | None:
    """The fastest of the simplest changes of the plan that fit; None where none does."""
    for group in _memory_saving_changes(asked.job):
        fitting: list[tuple[float, dict[str, Any]]] = []
        for changes in group:
            with suppress(KneeError):
                found = simulate_job(asked.with_options(**changes))
                if found.fits:
                    fitting.append((found.tokens_per_s, changes))
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
    return None


def _memory_saving_changes(job: Job) -> Iterator[list[dict[str, Any]]]:
    """Changes of the plan that save memory: first within its degrees, then with more tp, then with more pp."""
    plan = job.plan
    micro: list[dict[str, Any]] = [{}, {"micro_batch": 1}] if plan.micro_batch > 1 else [{}]
    again: list[dict[str, Any]] = [{}, *({"recompute": r} for r in RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :])]
    shard: list[dict[str, Any]] = [{}, {"sharding": "fsdp"}] if plan.sharding != "fsdp" else [{}]
    within = [{**a, **b, **c} for a in shard for b in micro for c in again]
    yield within[1:]
    for tp in (2, 4, 8):
        if plan.tp < tp <= job.cluster.node.gpus:
            yield [{"tp": tp, **changes} for changes in within]
    for pp in (2, 4, 8, 16):
        if plan.pp < pp:
            yield [{"tp": max(plan.tp, 8), "pp": pp, **changes} for changes in within]
