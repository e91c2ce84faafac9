"""The knee with failures: the same curve with what failures leave of every GPU count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from knee.base.errors import SpecError
from knee.engine.measurement import Measurement
from knee.engine.reliability.goodput import NO_PROGRESS, Goodput, goodput_of
from knee.engine.reliability.whole_run import whole_run
from knee.engine.workload.parameters import parameter_count
from knee.search.knee import knees_of
from knee.search.scaling_curve import Curve, ScalePoint

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
    return replace(
        point,
        measured=replace(
            measured,
            tokens_per_s=measured.tokens_per_s * share,
            tokens_per_s_per_gpu=measured.tokens_per_s_per_gpu * share,
            tokens_per_j=_tokens_per_j(measured, goodput, point.job.cluster.gpu.idle_w),
            usd_per_mtoken=None if measured.usd_per_mtoken is None else measured.usd_per_mtoken * dearer,
        ),
    )


def _tokens_per_j(measured: Measurement, goodput: Goodput | None, idle_w: float) -> float | None:
    if measured.tokens_per_j is None or measured.power_w_per_gpu is None:
        return None
    if goodput is None:
        return measured.tokens_per_j * NOTHING_FRAC
    return measured.tokens_per_j / goodput.energy_factor(measured.power_w_per_gpu, idle_w)
