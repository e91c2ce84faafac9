"""Readings of matrix products -> the four parameters of ``cost.kernel_cost.gemm_s``, and fp8's share of its peak.

A probe reads a settled GPU, under its power limit: what it finds is peak_frac * sustained_frac, and the base's share of
the clock is taken for granted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.base.errors import InputError
from knee.engine.cost.kernel_cost import gemm_s
from knee.measure.hardware_fit.residuals import distance, minimum
from knee.measure.machine.readings import GemmPoint, Readings, Record
from knee.specs.hardware import GemmType, Gpu

FEWEST = 12
"""Products below which a fit would be of noise."""


@dataclass(frozen=True, slots=True)
class Gemms:
    """Products of one type, as columns."""

    m: Floats
    n: Floats
    k: Floats
    measured_s: Floats
    settings: list[tuple[int, int]]
    """Weight shapes: what a held-out set leaves out whole."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[GemmPoint, Record]]) -> Gemms:
        """Points with their readings."""
        m, n, k = (np.array([float(getattr(p, side)) for p, _ in pairs]) for side in ("m", "n", "k"))
        return cls(m, n, k, np.array([r["median_s"] for _, r in pairs]), [p.weight for p, _ in pairs])

    def predict(self, gpu: Gpu, kind: GemmType) -> Floats:
        """Seconds by the cost model."""
        return gemm_s(gpu, kind, self.m, self.n, self.k)


def main_type(readings: Readings) -> str:
    """The type that most products were measured in."""
    types: list[str] = [p.dtype for p, _ in readings.good("gemm")]
    if len(types) < FEWEST:
        raise InputError(
            f"{len(types)} matrix products were measured; a fit needs at least {FEWEST}",
            hint="run `knee probe kernels` again; it continues where it stopped",
        )
    return max(set(types), key=types.count)


def gemms_of(readings: Readings, dtype: str) -> Gemms:
    """All products of a type."""
    return Gemms.of([(p, r) for p, r in readings.good("gemm") if p.dtype == dtype])


def kind_of(gpu: Gpu, dtype: str) -> GemmType:
    """The type whose rates a reading is held against; fp32 on a processor has the 16-bit one's place."""
    return "fp8" if dtype == "fp8" and gpu.fp8_flop_per_s is not None else "bf16"


def with_peaks(readings: Readings, gpu: Gpu) -> Gpu:
    """A processor has no published peak: its best product is taken for it."""
    gpu = replace(gpu, sms=readings.machine.sms, hbm_bytes=readings.machine.memory_bytes)
    if readings.machine.kind == "cuda":
        return gpu
    best = max(p.flop / r["median_s"] for p, r in readings.good("gemm"))
    return replace(gpu, fp16_flop_per_s=best, bf16_flop_per_s=best)


def with_rate(gpu: Gpu, kind: GemmType, **values: float) -> Gpu:
    """A GPU whose products of one type have other values."""
    return replace(gpu, gemm={**gpu.gemm, kind: replace(gpu.gemm_rate(kind)[1], **values)})  # type: ignore[arg-type]


def fit_gemms(products: Gemms, gpu: Gpu, kind: GemmType, kept: Bools | None = None) -> Gpu:
    """peak_frac, half_k, half_intensity, kernel_s by least absolute relative error."""
    chosen = slice(None) if kept is None else kept
    peak, base = gpu.gemm_rate(kind)

    def made(x: Floats) -> Gpu:
        frac, half_k, half_intensity, kernel = (float(v) for v in x)
        rated = with_rate(gpu, kind, peak_frac=frac, half_k=half_k, half_intensity=half_intensity)
        return replace(rated, kernel_s=kernel)

    def loss(x: Floats) -> float:
        return distance(products.predict(made(x), kind)[chosen], products.measured_s[chosen])

    rates = 2.0 * products.m * products.n * products.k / products.measured_s / peak / base.sustained_frac
    start = [float(np.quantile(rates[chosen], 0.8)), 128.0, 2.0, float(np.min(products.measured_s)) / 2]
    return made(minimum(loss, start, low=(0.01, 1.0, 0.1, 1e-8), high=(1.0, 2048.0, 64.0, 1e-4)))


def fit_fp8(readings: Readings, gpu: Gpu) -> Gpu:
    """fp8 products reach another share of their peak: clocks fall further under the power limit."""
    products = gemms_of(readings, "fp8")
    if gpu.fp8_flop_per_s is None or len(products.m) < FEWEST:
        return gpu

    def made(x: Floats) -> Gpu:
        return with_rate(gpu, "fp8", peak_frac=float(x[0]))

    def loss(x: Floats) -> float:
        return distance(products.predict(made(x), "fp8"), products.measured_s)

    start = gpu.gemm_rate("fp8")[1].peak_frac
    return made(minimum(loss, [start], low=(0.01,), high=(1.0,)))
