"""Searches that explain a search: plain FSDP, plans with NCCL's own collectives, other hardware. Each is run when it is
first asked for, because it can take as long as the search itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log
from typing import Any

import numpy as np

from knee.base.arrays import ByValue, Floats, extreme_values
from knee.base.units import show
from knee.engine.measurement import CommLoad, Measurement
from knee.engine.one_job import simulate
from knee.engine.simulator import evaluate, simulate_variants
from knee.search.bound import least_step
from knee.search.plan_search import SearchResult, score, search
from knee.search.space import FLAT, Space, degrees, memory_table, whole_table
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.metrics import METRICS, VIEWS
from knee.specs.notes import Note
from knee.specs.plan import SHARDINGS
from knee.specs.plan_table import PlanTable, side_by_side
from knee.specs.profile import Profile
from knee.specs.profile_parameters import OF_MEMORY, PARAMETERS, Parameter, applied, value_of
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
    words = f"none of {found.plans:,} plans of {space.model.name} fits in {show(gpu.hbm_bytes, 'bytes')} per GPU: the "
    words += f"smallest needs {show(needs, 'bytes')} ({plan.sharding}, tp {plan.tp}, pp {plan.pp}, "
    words += f"cp {plan.cp}, micro-batch {plan.micro_batch}, recompute {plan.recompute})"
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


def _faster(part: str, *rates: str) -> Callable[[Cluster, float], Cluster]:
    """A change of a part of the cluster: these rates, where it has them, times a factor."""

    def change(cluster: Cluster, factor: float) -> Cluster:
        old = getattr(cluster, part)
        known = {name: getattr(old, name) for name in rates}
        scaled = {name: rate * factor for name, rate in known.items() if rate is not None}
        changed: dict[str, Any] = {part: replace(old, **scaled)}
        return replace(cluster, **changed)

    return change


def _nearer(cluster: Cluster, factor: float) -> Cluster:
    fabric, hop_s = cluster.fabric, cluster.node.hop_s / factor
    tiers = tuple(replace(tier, hop_s=tier.hop_s / factor) for tier in fabric.tiers)
    level_s = fabric.tree_level_s / factor
    fabric = replace(fabric, hop_s=fabric.hop_s / factor, tree_level_s=level_s, tiers=tiers)
    return replace(cluster, node=replace(cluster.node, hop_s=hop_s), fabric=fabric)


_PEAKS = ("fp16_flop_per_s", "bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s")
PARTS: dict[str, tuple[str, Callable[[Cluster, float], Cluster]]] = {
    "compute": ("tensor cores", _faster("gpu", *_PEAKS)),
    "hbm": ("memory bandwidth", _faster("gpu", "hbm_bytes_per_s")),
    "nvlink": ("links within a node", _faster("node", "link_bytes_per_s", "pair_bytes_per_s")),
    "nic": ("network rate", _faster("fabric", "nic_bytes_per_s")),
    "latency": ("1 / latency per hop", _nearer),
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


NEAR = 0.9
"""Plans that come within a tenth of the best are drawn."""
MOST = 32
DRAWS = 20
CLOSE = 0.98
"""Within 2% of a draw's best is as good as the best."""
CLEARLY = 0.05
"""The plan that is first by the fitted values gives way only to one that is good in so many more draws."""
UNSURE = 0.2
"""A plan that is ahead of the recommended one in at least so many draws cannot be told from it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Robust(ByValue):
    """Draws of the fitted parameters, and how the first plans of a search did in them."""

    draws: int
    parameters: tuple[Parameter, ...]
    good_frac: Floats
    """Of each plan: share of draws in which it was within 2% of that draw's best."""
    fits_frac: Floats
    """Of each plan: share of draws in which it fits in memory."""
    worst_frac: Floats
    """Of each plan: its score over the best one's in the draw in which it did worst."""
    ahead_frac: Floats
    """Of each plan: share of draws in which it was ahead of the recommended one."""
    recommended: int
    """Row of the first plan, or of the one that is good clearly more often, or as good with collectives of NCCL."""

    @property
    def indistinguishable_rows(self) -> list[int]:
        """Rows of plans that cannot be told from the recommended one."""
        near = self.ahead_frac >= UNSURE
        return [int(row) for row in np.flatnonzero(near) if row != self.recommended]


def robust(found: SearchResult, *, draws: int = DRAWS, seed: int = 0) -> Robust:
    """Draw what is fitted from its spread between stacks, and rank the plans near the front anew each time."""
    scores = found.scores
    best = float(scores[0])
    near = scores >= (best * NEAR if best > 0 else best / NEAR)
    count = int(min(MOST, near.sum()))
    table = found.table.rows(slice(0, count))
    parameters = drawn(found.cluster, found.profile)
    random = np.random.default_rng(seed)
    fitted = {p: value_of(found.cluster, found.profile, p.path) for p in parameters}
    drawn_values = [{p.path: _draw(p, value, random) for p, value in fitted.items()} for _ in range(draws)]
    variants = [applied(found.cluster, found.profile, values) for values in drawn_values]
    results = simulate_variants(found.space.model, variants, table)
    got, fit = score(results, found.objective).reshape(draws, count), results.fits.reshape(draws, count)
    # a plan that does not fit is worth nothing in that draw
    usable = np.where(fit, got, -np.inf)
    top = usable.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # where nothing fits, -inf / -inf is not taken
        share = np.where(fit & np.isfinite(top), np.where(top > 0, usable / top, top / usable), 0.0)
    good = (share >= CLOSE).mean(axis=0)
    recommended = int(np.argmax(good))
    if good[recommended] < good[0] + CLEARLY:
        recommended = 0
    recommended = _runnable(table, scores, good, recommended)
    return Robust(
        draws=draws,
        parameters=parameters,
        good_frac=good,
        fits_frac=fit.mean(axis=0),
        worst_frac=share.min(axis=0),
        ahead_frac=(usable > usable[:, [recommended]]).mean(axis=0),
        recommended=recommended,
    )


def _runnable(table: PlanTable, scores: Floats, good: Floats, row: int) -> int:
    """The row of a plan, or of the first with flat collectives that is as good: NCCL has no others."""
    if table.collectives[row] == FLAT:
        return row
    best = float(scores[row])
    close = scores[: len(table)] >= (best * CLOSE if best > 0 else best / CLOSE)
    flat = np.flatnonzero((table.collectives == FLAT) & close & (good >= good[row] - CLEARLY))
    return int(flat[0]) if len(flat) else row


def drawn(cluster: Cluster, profile: Profile) -> tuple[Parameter, ...]:
    """Parameters that this stack has: one that is 0 is no part of it."""
    return tuple(p for p in PARAMETERS if value_of(cluster, profile, p.path) > 0)


def _draw(parameter: Parameter, value: float, random: np.random.Generator) -> float:
    step = float(random.standard_normal()) * parameter.spread
    if parameter.path in OF_MEMORY:
        step *= 0.5  # a stack's own memory is known better than that of another
    return parameter.inside(value + step if parameter.is_share else exp(log(value) + step))


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
    job, table = alone.job(0), found.table
    alike = (table.tp * table.pp * table.cp == 1) & (table.dp_replicate == 1)
    alike &= (table.sharding == SHARDINGS.index(job.plan.sharding)) & (table.micro_batch == job.plan.micro_batch)
    row = next((row for row in np.flatnonzero(alike).tolist() if table.plan(row) == job.plan), None)
    return Baseline(job=job, result=simulate(job), row=row)


def why(job: Job, base: Baseline) -> str:
    """One sentence: what the winner's step saves against plain FSDP's, and through which group."""
    if job.plan == base.job.plan:
        return "plain FSDP is the best plan: no other split of the model saves more than it costs"
    result = simulate(job)
    saved = {name: getattr(base.result, name) - getattr(result, name) for name in VIEWS["parts of a step"]}
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
