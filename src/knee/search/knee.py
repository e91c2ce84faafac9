"""The knee: the largest number of GPUs that still pays, for throughput, for energy and for cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

from knee.base.errors import SpecError
from knee.engine.reliability.goodput import NO_PROGRESS, Goodput, goodput_of
from knee.engine.reliability.whole_run import whole_run
from knee.engine.workload.parameters import parameter_count
from knee.search.scaling_curve import Curve, Return, ScalePoint
from knee.specs.defaults import KEEP_FRAC, THRESHOLD
from knee.trust.doubling_errors import DoublingBand

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
