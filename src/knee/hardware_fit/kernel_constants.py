"""Readings of kernels -> the GPU's compute parameters, by the cost model's own formulas.

Three steps, each on its own readings: the streaming rate from kernels whose traffic is known exactly, the four
parameters of matrix products, six of each attention kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from knee.hardware_fit.attention import (
    Setting,
    causal_points,
    fit_attention,
    kernels_of,
    predict_attention,
    rows_vary,
    setting_of,
)
from knee.hardware_fit.gemms import fit_fp8, fit_gemms, gemms_of, kind_of, main_type, with_peaks
from knee.hardware_fit.memory_bound import fit_streams, stream_seconds
from knee.hardware_fit.residuals import Residuals, held_back
from knee.record.readings import Readings
from knee.specs.hardware import AttentionKernel, Gpu
from knee.specs.profile import Profile

POOR_FRAC = 0.15
"""Median error above which a formula does not describe the device."""


class FitPart(NamedTuple):
    """Kernels that one formula describes: matrix products of a type, an attention kernel, memory-bound kernels."""

    kind: Literal["products", "attention", "memory-bound"]
    of: str
    """Type of the products, attention kernel, or set of memory-bound kernels."""
    direction: Literal["", "forward", "backward"] = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """A GPU as measured, and how well its formulas hold."""

    gpu: Gpu
    residuals: dict[FitPart, Residuals]
    """The products of the main type come first."""
    spread_frac: float
    """Median spread of the readings themselves."""
    rows_vary: dict[AttentionKernel, bool]
    """Whether an attention kernel's half-rate rows were fitted; else they are the base's."""
    launch_s: float | None
    """Host time a kernel, in eager mode; None where it was not measured."""

    @property
    def poor(self) -> list[str]:
        """Parts whose formula is off by more than a fit should be."""
        return [str(part) for part, r in self.residuals.items() if r.median_frac > POOR_FRAC]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutShapes:
    """Errors on settings that the fit did not see, beside a roofline with one efficiency."""

    gemm: Residuals
    gemm_roofline: Residuals
    attention: Residuals | None
    attention_roofline: Residuals | None


def fit_kernels(readings: Readings, base: Gpu, profile: Profile) -> KernelFit:
    """The base GPU with what was measured in place of what its catalogue entry says."""
    main = main_type(readings)
    gpu = fit_streams(readings, with_peaks(readings, base))
    gpu = fit_gemms(gemms_of(readings, main), gpu, kind_of(gpu, main))
    kernels = kernels_of(readings)
    gpu = replace(gpu, attention={**gpu.attention, **{k: fit_attention(readings, gpu, k) for k in kernels}})
    gpu = fit_fp8(readings, gpu)
    hosts = [r["median_s"] for p, r in readings.good("host") if not p.compiled]
    return KernelFit(
        gpu=gpu,
        residuals=_residuals(readings, gpu, profile),
        spread_frac=float(np.median([r["spread_frac"] for r in readings.records if "spread_frac" in r])),
        rows_vary={kernel: rows_vary(readings, kernel) for kernel in kernels},
        launch_s=hosts[0] if hosts else None,
    )


def held_out(readings: Readings, base: Gpu) -> HeldOutShapes | None:
    """Fit on seven tenths of the weight shapes and attention settings, predict the others; None where there are too few
    to leave one out."""
    main = main_type(readings)
    gpu = fit_streams(readings, with_peaks(readings, base))
    products = gemms_of(readings, main)
    away = held_back(products.settings)
    if not away.any() or away.all():
        return None
    kind = kind_of(gpu, main)
    fitted = fit_gemms(products, gpu, kind, ~away)
    one = 2.0 * products.m * products.n * products.k / gpu.gemm_rate(kind)[0]
    predicted, measured, flat = [], [], []
    for kernel in kernels_of(readings):
        hidden = held_settings(readings, kernel)
        rate = fit_attention(readings, gpu, kernel, hidden)
        for forward in (True, False):
            points, seconds = causal_points(readings, kernel, forward)
            unseen = np.array([setting_of(p) in hidden for p in points])
            flop = np.array([p.flop for p in points])
            predicted += list(predict_attention(gpu, kernel, rate, points)[unseen])
            measured += list(seconds[unseen])
            flat += list((flop * np.median((seconds / flop)[~unseen]))[unseen])
    return HeldOutShapes(
        gemm=Residuals.of(products.predict(fitted, kind)[away], products.measured_s[away]),
        gemm_roofline=Residuals.of(
            (one * np.median((products.measured_s / one)[~away]))[away], products.measured_s[away]
        ),
        attention=Residuals.of(np.array(predicted), np.array(measured)) if predicted else None,
        attention_roofline=Residuals.of(np.array(flat), np.array(measured)) if predicted else None,
    )


def held_settings(readings: Readings, kernel: str) -> frozenset[Setting]:
    """Settings of a kernel that are kept from the fit, whichever directions of them were measured."""
    settings = [setting_of(p) for forward in (True, False) for p in causal_points(readings, kernel, forward)[0]]
    return frozenset(s for s, away in zip(settings, held_back(settings), strict=True) if away)


def _residuals(readings: Readings, gpu: Gpu, profile: Profile) -> dict[FitPart, Residuals]:
    found: dict[FitPart, Residuals] = {}
    for dtype in dict.fromkeys([main_type(readings), *(p.dtype for p, _ in readings.good("gemm"))]):
        products = gemms_of(readings, dtype)
        predicted_s = products.predict(gpu, kind_of(gpu, dtype))
        found[FitPart("products", dtype)] = Residuals.of(predicted_s, products.measured_s)
    for kernel in kernels_of(readings):
        for forward in (True, False):
            points, seconds = causal_points(readings, kernel, forward)
            part = FitPart("attention", kernel, "forward" if forward else "backward")
            found[part] = Residuals.of(predict_attention(gpu, kernel, gpu.attention[kernel], points), seconds)
    for name, wanted in (("eager", False), ("compiled", True)):
        streams = [(p, r["median_s"]) for p, r in readings.good("stream") if p.compiled == wanted]
        if streams:
            predicted = [stream_seconds(gpu, profile, p, readings.machine.kind) for p, _ in streams]
            measured = np.array([s for _, s in streams])
            found[FitPart("memory-bound", name)] = Residuals.of(np.array(predicted), measured)
    return found
