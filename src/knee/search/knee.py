"""What more GPUs buy: a plan at every count, the return of each step between counts, and the knee: the largest number
of GPUs that still pays, for throughput, for energy and for cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args

import numpy as np

from knee.base.arrays import Floats, extreme_values
from knee.base.errors import InputError, SpecError, argument
from knee.base.progress import Progress, silent
from knee.base.units import show
from knee.engine.doublings import per_doubling
from knee.engine.measurement import Measurement
from knee.engine.one_job import simulate_jobs
from knee.engine.reliability.goodput import NO_PROGRESS, Goodput, goodput_of
from knee.engine.reliability.whole_run import whole_run
from knee.engine.workload.parameters import parameter_count
from knee.search.plan_search import SearchResult, matching, search
from knee.search.space import Space, divisors, memory_table, whole_table
from knee.specs.choices import Objective
from knee.specs.defaults import DEFAULT_CONVENTION, KEEP_FRAC, THRESHOLD
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.profile import Profile
from knee.trust.trust import DoublingBand

MOST_COUNTS = 64
"""Of GPUs in one question."""
MOST_SEQUENCES = 10**9
"""In one step: far beyond any run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """One count of GPUs. Without a job no plan can be there, and ``reason`` says why."""

    gpus: int
    job: Job | None = None
    measured: Measurement | None = None
    """One simulated step; also of a plan that does not fit."""
    reason: str | None = None
    """Why this count is of no use: no valid plan, or not enough memory."""
    hint: str | None = None
    code: str | None = None
    """Of the error that the reason is from, where it is from one."""
    cut: bool = False
    """Its micro-batch was made smaller to fit."""

    @property
    def usable(self) -> bool:
        """Whether there is a plan, and it fits in memory."""
        return self.measured is not None and self.measured.fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """What the GPUs added since the usable count before buy."""

    from_gpus: int
    to_gpus: int
    speedup: float
    """Tokens/s over those before."""
    per_doubling: float
    """The speed-up of a doubling: of this one, or of each of those that the step is worth."""
    added_tokens_per_s_per_gpu: float
    """Tokens/s that each added GPU brings."""
    added_frac: float
    """The same over what each of the first GPUs brought: 1 is as good, below 0 they slow the run down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One model on one cluster, at every count."""

    points: tuple[ScalePoint, ...]

    @property
    def usable(self) -> list[tuple[int, Measurement]]:
        """Counts with a plan that fits."""
        return [(p.gpus, p.measured) for p in self.points if p.measured is not None and p.measured.fits]

    def returns(self) -> list[Return]:
        """Of each step between neighbouring usable counts.

        Formula: per doubling as ``metrics.scaling`` has it; added = (T2 - T1) / (N2 - N1) over T0 / N0
        Where:   T tokens/s of N GPUs; 1 and 2 neighbours, 0 the smallest usable count
        """
        usable = self.usable
        found = []
        for (before, a), (after, b) in pairwise(usable):
            speedup = b.tokens_per_s / a.tokens_per_s
            added = (b.tokens_per_s - a.tokens_per_s) / (after - before)
            found.append(
                Return(
                    from_gpus=before,
                    to_gpus=after,
                    speedup=speedup,
                    per_doubling=per_doubling(speedup, before, after),
                    added_tokens_per_s_per_gpu=added,
                    added_frac=added / usable[0][1].tokens_per_s_per_gpu,
                )
            )
        return found


def parse_counts(text: str) -> list[int]:
    """``8..2048`` by doublings, ``8,16,24`` as they stand, or both: ascending, each once."""
    name = argument("gpus")
    what, hint = f"{name} {text!r}", f"for example {name} 8..2048 (doublings), or {name} 8,16,24"
    counts: set[int] = set()
    for part in text.split(","):
        first, dots, last = (word.strip().replace("_", "") for word in part.partition(".."))
        words = [first, last] if dots else [first]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            raise InputError(
                f"{what}: {part.strip()!r} is not a number of GPUs", hint=hint, code="not-a-count", field="gpus"
            )
        low, high = int(first), int(words[-1])
        if low < 1 or high < low:
            text = f"{what}: {part.strip()!r} must start at 1 or more and increase"
            raise InputError(text, hint=hint, code="not-a-count", field="gpus")
        while low <= high:
            counts.add(low)
            low *= 2
    return _sort_counts(counts, what, hint)


def checked_counts(counts: Sequence[int]) -> list[int]:
    """Counts of GPUs as numbers: ascending, each once."""
    hint = "for example gpus=[8, 64, 512], or gpus='8..2048' (doublings)"
    wrong = [count for count in counts if not isinstance(count, int) or isinstance(count, bool) or count < 1]
    if wrong or not counts:
        text = f"{wrong[0]!r} is not a number of GPUs" if wrong else "no GPU count is given"
        raise InputError(f"{argument('gpus')}: {text}", hint=hint, code="not-a-count", field="gpus")
    return _sort_counts(set(counts), argument("gpus"), hint)


def _sort_counts(counts: set[int], what: str, hint: str) -> list[int]:
    if len(counts) > MOST_COUNTS:
        text = f"{what} has {len(counts)} counts; {MOST_COUNTS} are the maximum"
        raise InputError(text, hint=hint, code="too-many", field="gpus")
    return sorted(counts)


def check_batch(local_batch: float | None, global_batch: int | None, most_gpus: int) -> None:
    """A batch that is none at any count is a mistake of the question."""
    name, batch = ("local_batch", local_batch) if global_batch is None else ("global_batch", global_batch)
    total = math.nan if batch is None else batch * (most_gpus if global_batch is None else 1)
    # also false for nan
    if not 0 < total <= MOST_SEQUENCES:
        text = f"{argument(name)} is {batch:g}; it must be above 0, and a step at most {MOST_SEQUENCES:,} sequences"
        hint = f"for example {argument('local_batch')} 2, or {argument('global_batch')} 512"
        raise InputError(text, hint=hint, code="out-of-range", field=name)


def curve_of(
    counts: Sequence[int], job_at: Callable[[int], Job], *, cut: bool = False, convention: str = DEFAULT_CONVENTION
) -> Curve:
    """One plan at every count, as ``job_at`` makes it; counts where it cannot be keep their place and the reason.

    ``cut`` makes micro-batches that do not fit smaller, where nobody asked for them.
    """
    points: dict[int, ScalePoint] = {}
    jobs: list[Job] = []
    for gpus in counts:
        try:
            jobs.append(job_at(gpus))
        except SpecError as error:
            points[gpus] = refused_point(gpus, error)
    points |= {point.gpus: point for point in _points(jobs, convention)}
    if cut:
        _cut_micro_batches(points, {job.gpus: job for job in jobs}, convention)
    return Curve(points=tuple(points[gpus] for gpus in counts))


def _cut_micro_batches(points: dict[int, ScalePoint], jobs: dict[int, Job], convention: str) -> None:
    """Try the next smaller micro-batch of all counts that do not fit, as long as there is one."""
    sizes = {gpus: list(divisors(job.plan.micro_batch)[:-1]) for gpus, job in jobs.items()}
    while any(sizes[gpus] and not points[gpus].usable for gpus in jobs):
        smaller: list[Job] = []
        for gpus, job in jobs.items():
            if sizes[gpus] and not points[gpus].usable:
                plan = replace(job.plan, micro_batch=sizes[gpus].pop())
                with suppress(SpecError):
                    smaller.append(replace(job, plan=plan))
        points |= {point.gpus: replace(point, cut=True) for point in _points(smaller, convention)}


def refused_point(gpus: int, error: SpecError) -> ScalePoint:
    """A count at which there is no job."""
    return ScalePoint(gpus=gpus, reason=error.message, hint=error.hint, code=error.code)


def point_of(job: Job, convention: str = DEFAULT_CONVENTION) -> ScalePoint:
    """The point of a simulated job."""
    return _points([job], convention)[0]


def _points(jobs: Sequence[Job], convention: str) -> list[ScalePoint]:
    with extreme_values():
        found = simulate_jobs(jobs, convention=convention)
    return [_simulated_point(job, measured) for job, measured in zip(jobs, found, strict=True)]


def _simulated_point(job: Job, measured: Measurement) -> ScalePoint:
    if not (0 < measured.step_s < math.inf and math.isfinite(measured.memory_bytes)):
        text = "a size or rate is so unrealistic that the step time is not finite"
        raise InputError(text, hint="check the values in --set, in your files and in the options", code="not-finite")
    if measured.fits:
        return ScalePoint(gpus=job.gpus, job=job, measured=measured)
    has = show(job.cluster.gpu.hbm_bytes, "bytes")
    reason = f"does not fit: needs {show(measured.memory_bytes, 'bytes')} per GPU, has {has}"
    return ScalePoint(gpus=job.gpus, job=job, measured=measured, reason=reason)


def best_point(
    space: Space,
    cluster: Cluster,
    profile: Profile,
    *,
    objective: Objective = "tokens_per_s",
    only: str | None = None,
    convention: str = DEFAULT_CONVENTION,
    progress: Progress = silent,
    grows: bool = True,
) -> ScalePoint:
    """The best plan of a count's whole space; ``grows`` says whether more GPUs would have a larger batch."""
    try:
        found = search(space, cluster, profile, objective=objective, only=only, keep=1, progress=progress)
    except SpecError as error:
        return refused_point(space.gpus, error)
    if not len(found):
        return ScalePoint(gpus=space.gpus, reason=_none_fits(found), hint=_what_would(found, only, grows))
    return point_of(found.job(0), convention)


def _none_fits(found: SearchResult) -> str:
    space = found.space
    if not found.plans:
        return f"no plan spreads {space.global_batch:,} sequences over {space.gpus:,} GPUs within the given limits"
    has = show(found.cluster.gpu.hbm_bytes, "bytes")
    needs = show(found.least_memory()[1], "bytes")
    return f"none of {found.plans:,} plans fits: the least needs {needs} per GPU, has {has}"


def _what_would(found: SearchResult, only: str | None, grows: bool) -> str | None:
    """The fewest GPUs, by doublings, on which the leanest plans within what is asked fit."""
    space, gpus = found.space, found.space.gpus
    if not found.plans:
        return f"use a number of GPUs that shares factors with {space.global_batch:,}, or fewer GPUs"
    shardings, recomputes = space.shardings or ("fsdp", "hsdp"), space.recomputes or ("full",)
    lean = replace(space, shardings=shardings, recomputes=recomputes, micro_batches=space.micro_batches or (1,))
    while (gpus := gpus * 2) <= found.cluster.max_gpus:
        batch = space.global_batch * gpus // space.gpus if grows else space.global_batch
        table = whole_table(replace(lean, gpus=gpus, global_batch=batch))
        if only is not None:
            table = table.rows(np.flatnonzero(matching(table, only)))
        if not len(table):
            continue
        needs: Floats = memory_table(lean.model, found.profile, table).total_bytes
        fitting = np.flatnonzero(needs <= found.cluster.gpu.hbm_bytes)
        if len(fitting):
            # the plan that splits the model least
            plan = table.plan(int(fitting[np.argmin((table.tp * table.pp * table.cp)[fitting])]))
            how = f"{plan.sharding}, tp {plan.tp}, pp {plan.pp}, cp {plan.cp}, recompute {plan.recompute}"
            return f"the model would fit on {gpus:,} GPUs, for example with {how}"
    return None


Goal = Literal["throughput", "energy", "cost"]
GOALS: tuple[Goal, ...] = get_args(Goal)

WORDS: dict[Goal, str] = {
    "throughput": "the largest GPU count at which the last doubling gives at least {threshold:g} times the tokens/s",
    "energy": "the largest GPU count that keeps at least {keep:.0%} of the highest tokens per joule",
    "cost": "the largest GPU count that keeps at least {keep:.0%} of the highest tokens per dollar",
}
FORMULAS: dict[Goal, str] = {
    "throughput": "max N2: (T(N2) / T(N1))^(1 / log2(N2 / N1)) >= {threshold:g}, T tokens/s, N1 the count before N2",
    "energy": "max N: E(N) >= {keep:g} max_M E(M), E tokens/J",
    "cost": "max N: C(N) >= {keep:g} max_M C(M), C tokens/USD",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where it stops to pay."""

    goal: Goal
    gpus: int
    open: bool
    """The largest usable count still pays: the knee is there or beyond."""
    low_gpus: int
    """Where doublings turn out as bad as the band allows."""
    high_gpus: int
    """Where they turn out as good."""
    high_open: bool
    weak: tuple[Return, ...]
    """Steps below the knee that did not pay by themselves (throughput only)."""
    words: str
    formula: str


def knees_of(
    curve: Curve, *, threshold: float = THRESHOLD, keep_frac: float = KEEP_FRAC, band: DoublingBand | None = None
) -> dict[Goal, Knee]:
    """The knees of a curve; none for a curve without a usable count, and none for cost without a price.

    Formula: those of ``FORMULAS``
    Where:   the band multiplies each doubling's speed-up by one of its ``factors``; over k doublings errors are taken
             to be independent, so that what is kept of the best varies by factor^sqrt(k)
    Valid:   errors of neighbouring counts have most in common, so the knee is judged by how the error changes with the
             GPUs, not by the error itself; power's own error is left out
    """
    usable = curve.usable
    if not usable:
        return {}
    counts = [gpus for gpus, _ in usable]
    ends = {gpus: (1.0, *(band.factors(gpus) if band else (1.0, 1.0))) for gpus in counts}
    text = {"threshold": threshold, "keep": keep_frac}

    def knee(goal: Goal, found: tuple[int, int, int], weak: tuple[Return, ...] = ()) -> Knee:
        gpus, least, most = found
        return Knee(
            goal=goal,
            gpus=gpus,
            open=gpus == counts[-1],
            low_gpus=min(least, gpus),
            high_gpus=max(most, gpus),
            high_open=max(most, gpus) == counts[-1],
            weak=weak,
            words=WORDS[goal].format(**text),
            formula=FORMULAS[goal].format(**text),
        )

    returns = curve.returns()
    speed = [
        max((r.to_gpus for r in returns if r.per_doubling >= threshold / ends[r.to_gpus][i]), default=counts[0])
        for i in range(3)
    ]
    weak = tuple(r for r in returns if r.to_gpus <= speed[0] and r.per_doubling < threshold)
    found: dict[Goal, Knee] = {"throughput": knee("throughput", (speed[0], speed[1], speed[2]), weak)}
    columns: dict[Goal, list[float | None]] = {
        "energy": [m.tokens_per_j for _, m in usable],
        "cost": [None if m.usd_per_mtoken is None else 1e6 / m.usd_per_mtoken for _, m in usable],
    }
    for goal, column in columns.items():
        values = [value for value in column if value is not None]
        if len(values) == len(counts):
            kept = [_last_kept(counts, values, keep_frac, {n: ends[n][i] for n in counts}) for i in range(3)]
            found[goal] = knee(goal, (kept[0], kept[1], kept[2]))
    return found


def _last_kept(counts: list[int], values: list[float], keep_frac: float, factors: Mapping[int, float]) -> int:
    """The largest count that keeps its share of the best, if scaling away from that erred by a factor a doubling."""
    best = max(range(len(values)), key=lambda i: values[i])
    kept = counts[best]
    for count, value in zip(counts[best + 1 :], values[best + 1 :], strict=True):
        drift = factors[count] ** math.sqrt(math.log2(count / counts[best]))
        if value * drift >= keep_frac * values[best]:
            kept = count
    return kept


NOTHING_FRAC = 1e-9
"""Goodput of a run that makes no progress: a curve has a ratio between neighbours."""


class LongBill(Protocol):
    """What a run takes without failures."""

    @property
    def time_s(self) -> float: ...


def with_failures(curve: Curve, bills: Mapping[int, LongBill], **rule: Any) -> dict[str, Any]:
    """Goodput of every GPU count, the runs of these bills, and the knees by the same rule."""
    goodputs = goodputs_of(curve)
    return {
        "goodputs": goodputs,
        "runs": {gpus: whole_run(goodputs[gpus], bill.time_s) for gpus, bill in bills.items() if gpus in goodputs},
        "knees_with_failures": knees_of(curve_with_failures(curve, goodputs), **rule),
    }


def goodputs_of(curve: Curve) -> dict[int, Goodput]:
    """By GPU count; counts at which a run makes no progress have none."""
    found = {}
    for point in curve.points:
        if point.measured is None or point.job is None or not point.measured.fits:
            continue
        job = point.job
        try:
            found[point.gpus] = goodput_of(
                parameter_count(job.model), job.cluster, job.gpus, step_s=point.measured.step_s
            )
        except SpecError as error:
            if error.code != NO_PROGRESS:
                raise
    return found


def curve_with_failures(curve: Curve, goodputs: dict[int, Goodput]) -> Curve:
    """Tokens per second, per joule and per dollar of a long run."""
    return Curve(points=tuple(_left(point, goodputs.get(point.gpus)) for point in curve.points))


def _left(point: ScalePoint, goodput: Goodput | None) -> ScalePoint:
    measured = point.measured
    if measured is None or point.job is None:
        return point
    share = NOTHING_FRAC if goodput is None else goodput.goodput_frac
    dearer = 1.0 / NOTHING_FRAC if goodput is None else goodput.cost_factor
    per_j = None
    if measured.tokens_per_j is not None and measured.power_w_per_gpu is not None:
        per_j = measured.tokens_per_j * NOTHING_FRAC
        if goodput is not None:
            idle_w = point.job.cluster.gpu.idle_w
            per_j = measured.tokens_per_j / goodput.energy_factor(measured.power_w_per_gpu, idle_w)
    less = replace(
        measured,
        tokens_per_s=measured.tokens_per_s * share,
        tokens_per_s_per_gpu=measured.tokens_per_s_per_gpu * share,
        tokens_per_j=per_j,
        usd_per_mtoken=None if measured.usd_per_mtoken is None else measured.usd_per_mtoken * dearer,
    )
    return replace(point, measured=less)
