"""What would help most: the best plan's speed when one part of the hardware is a quarter better or worse, replanned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Floats
from knee.engine.simulator import evaluate
from knee.search.bound import least_step
from knee.search.plan_search import SearchResult
from knee.specs.hardware import Cluster, Gpu
from knee.specs.plan_table import PlanTable
from knee.specs.variants import side_by_side

CHANGE = 0.25
AGAIN, SIMULATED = 192, 32
"""Plans from the front that may be the best on changed hardware, and those of them that are simulated together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One part of the hardware."""

    name: str
    title: str
    better_frac: float
    """Change in tokens/s where it is a quarter better, the best of the front's plans chosen anew."""
    worse_frac: float
    """Where it is a quarter worse."""


def _compute(gpu: Gpu, factor: float) -> Gpu:
    return replace(
        gpu,
        fp16_flop_per_s=gpu.fp16_flop_per_s * factor,
        bf16_flop_per_s=None if gpu.bf16_flop_per_s is None else gpu.bf16_flop_per_s * factor,
        fp8_flop_per_s=None if gpu.fp8_flop_per_s is None else gpu.fp8_flop_per_s * factor,
        fp4_flop_per_s=None if gpu.fp4_flop_per_s is None else gpu.fp4_flop_per_s * factor,
    )


PARTS: dict[str, tuple[str, Callable[[Cluster, float], Cluster]]] = {
    "compute": ("tensor cores", lambda c, f: replace(c, gpu=_compute(c.gpu, f))),
    "hbm": ("memory bandwidth", lambda c, f: replace(c, gpu=replace(c.gpu, hbm_bytes_per_s=c.gpu.hbm_bytes_per_s * f))),
    "nvlink": (
        "links within a node",
        lambda c, f: replace(
            c,
            node=replace(
                c.node, link_bytes_per_s=c.node.link_bytes_per_s * f, pair_bytes_per_s=c.node.pair_bytes_per_s * f
            ),
        ),
    ),
    "nic": (
        "network rate",
        lambda c, f: replace(c, fabric=replace(c.fabric, nic_bytes_per_s=c.fabric.nic_bytes_per_s * f)),
    ),
    "latency": (
        "1 / latency per hop",
        lambda c, f: replace(
            c,
            node=replace(c.node, hop_s=c.node.hop_s / f),
            fabric=replace(
                c.fabric,
                hop_s=c.fabric.hop_s / f,
                tree_level_s=c.fabric.tree_level_s / f,
                tiers=tuple(replace(tier, hop_s=tier.hop_s / f) for tier in c.fabric.tiers),
            ),
        ),
    ),
}
"""What is changed, its name for people, and how; more is always better, so that latency is divided."""


def sensitivity(found: SearchResult) -> list[Bar]:
    """The effect of more and less of each resource on the best plan, the largest gain first."""
    best = float(found.results.tokens_per_s.max())
    fastest = np.argsort(-found.results.tokens_per_s, kind="stable")[:AGAIN]
    table = found.table.rows(fastest)
    changed = [change(found.cluster, factor) for _, change in PARTS.values() for factor in (1 + CHANGE, 1 - CHANGE)]
    speeds = iter((_fastest(found, changed, table) / best - 1).tolist())
    bars = [
        Bar(name=name, title=title, better_frac=next(speeds), worse_frac=next(speeds))
        for name, (title, _) in PARTS.items()
    ]
    bars.append(_memory(found, best))
    return sorted(bars, key=lambda bar: -bar.better_frac)


def _fastest(found: SearchResult, clusters: Sequence[Cluster], table: PlanTable) -> Floats:
    """Tokens/s of the fastest of these plans on each cluster: the next plans by their bounds are simulated, until no
    other can be faster."""
    model, profile = found.space.model, found.profile
    which, plan = np.indices((len(clusters), len(table)))
    every = side_by_side(clusters, which.ravel())
    least = least_step(model, every, profile, table.rows(plan.ravel())).step_s.reshape(which.shape)
    order, fastest = np.argsort(least, axis=1, kind="stable"), np.full(len(clusters), np.inf)
    for first in range(0, len(table), SIMULATED):
        next_least = least[np.arange(len(clusters)), order[:, first]]
        unsure = np.flatnonzero(next_least < fastest)
        if not len(unsure):
            break
        near = order[unsure, first : first + SIMULATED]
        some = side_by_side([clusters[i] for i in unsure.tolist()], np.repeat(np.arange(len(unsure)), near.shape[1]))
        step_s = evaluate(model, some, profile, table.rows(near.ravel())).results.step_s
        fastest[unsure] = np.minimum(fastest[unsure], step_s.reshape(near.shape).min(axis=1))
    return np.asarray(found.space.global_batch * found.space.seq_len / fastest, dtype=np.float64)


def _memory(found: SearchResult, best: float) -> Bar:
    """More memory lets in plans that did not fit; less shuts some out."""
    hbm = found.cluster.gpu.hbm_bytes
    more, less = (found.fastest_with_memory(factor * hbm) for factor in (1 + CHANGE, 1 - CHANGE))
    return Bar(name="memory", title="memory per GPU", better_frac=more / best - 1, worse_frac=less / best - 1)
