"""Readings of kernels -> the GPU's compute parameters, by the cost model's own formulas.

Three steps, each on its own readings: the streaming rate from kernels whose traffic is known exactly, the four
parameters of matrix products, five of each attention kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knee.columns import Bools, Floats
from knee.cost.compute import attention_s, gemm_s, stream_s
from knee.errors import InputError, MissingExtra
from knee.fidelity.residuals import Residuals, held_back
from knee.record.readings import AttentionPoint, GemmPoint, Readings, Record, StreamPoint
from knee.specs.hardware import AttentionKernel, AttentionRate, Gpu
from knee.specs.passes import passes_of
from knee.specs.profile import Kernels, Profile
from knee.workload.operations import Attention, Stream

FEWEST = 12
"""Products below which a fit would be of noise."""
EXACT = {"copy": 2.0, "residual": 3.0}
"""Memory-bound kernels that read and write every byte once: passes of their tensor."""
CACHED_BYTES = 200e6
"""Less than this may stay in a GPU's last-level cache."""
COPIED_TENSORS = 16.0
"""A copy point copies this many tensors of its shape, so that nothing of it stays in a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """A GPU as measured, and how well its formulas hold."""

    gpu: Gpu
    residuals: dict[str, Residuals]
    """By part: products by type, attention by kernel and direction, memory-bound kernels by set."""
    spread_frac: float
    """Median spread of the readings themselves."""
    launch_s: float | None
    """Host time a kernel, in eager mode; None where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors on settings that the fit did not see, beside a roofline with one efficiency."""

    gemm: Residuals
    gemm_roofline: Residuals
    attention: Residuals | None
    attention_roofline: Residuals | None


@dataclass(frozen=True, slots=True)
class _Gemms:
    m: Floats
    n: Floats
    k: Floats
    measured_s: Floats
    settings: list[tuple[int, int]]

    @classmethod
    def of(cls, pairs: Sequence[tuple[GemmPoint, Record]]) -> _Gemms:
        m, n, k = (np.array([float(getattr(p, side)) for p, _ in pairs]) for side in ("m", "n", "k"))
        return cls(m, n, k, np.array([r["median_s"] for _, r in pairs]), [p.weight for p, _ in pairs])

    def predict(self, gpu: Gpu, peak: float) -> Floats:
        return gemm_s(gpu, np.full(len(self.m), peak), self.m, self.n, self.k)


def fit_kernels(readings: Readings, base: Gpu, profile: Profile) -> KernelFit:
    """The base GPU with what was measured in place of what its catalogue entry says."""
    gpu = _with_peaks(readings, base)
    gpu = _fit_streams(readings, gpu)
    gpu = _fit_gemms(_gemms(readings, _main_type(readings)), gpu, None)
    kernels = _attention_kernels(readings)
    gpu = replace(gpu, attention={**gpu.attention, **{k: _fit_attention(readings, gpu, k, None) for k in kernels}})
    gpu = _fit_eight_bit(readings, gpu)
    hosts = [r["median_s"] for p, r in readings.good("host") if not p.compiled]
    return KernelFit(
        gpu=gpu,
        residuals=_residuals(readings, gpu, profile),
        spread_frac=float(np.median([r["spread_frac"] for r in readings.records if "spread_frac" in r])),
        launch_s=hosts[0] if hosts else None,
    )


def held_out(readings: Readings, base: Gpu) -> HeldOut:
    """Fit on seven tenths of the weight shapes and attention settings, predict the others."""
    gpu = _fit_streams(readings, _with_peaks(readings, base))
    products = _gemms(readings, _main_type(readings))
    away = held_back(products.settings)
    peak = _peak(gpu, _main_type(readings))
    fitted = _fit_gemms(products, gpu, ~away)
    one = 2.0 * products.m * products.n * products.k / peak
    predicted, measured, flat = [], [], []
    for kernel in _attention_kernels(readings):
        for forward in (True, False):
            points, seconds = _attentions(readings, kernel, forward)
            kept = ~held_back([_setting(p) for p in points])
            rate = _fit_attention(readings, gpu, kernel, kept)
            flop = np.array([p.flop for p in points])
            predicted += list(_predict_attention(gpu, kernel, rate, points)[~kept])
            measured += list(seconds[~kept])
            flat += list((flop * np.median((seconds / flop)[kept]))[~kept])
    return HeldOut(
        gemm=Residuals.of(products.predict(fitted, peak)[away], products.measured_s[away]),
        gemm_roofline=Residuals.of(
            (one * np.median((products.measured_s / one)[~away]))[away], products.measured_s[away]
        ),
        attention=Residuals.of(np.array(predicted), np.array(measured)) if predicted else None,
        attention_roofline=Residuals.of(np.array(flat), np.array(measured)) if predicted else None,
    )


# Products.


def _main_type(readings: Readings) -> str:
    """The type that most products were measured in."""
    types: list[str] = [p.dtype for p, _ in readings.good("gemm")]
    if len(types) < FEWEST:
        raise InputError(
            f"{len(types)} products were measured; a fit needs at least {FEWEST}",
            hint="let `knee probe kernels` run on; it goes on where it stopped",
        )
    return max(set(types), key=types.count)


def _gemms(readings: Readings, dtype: str) -> _Gemms:
    return _Gemms.of([(p, r) for p, r in readings.good("gemm") if p.dtype == dtype])


def _peak(gpu: Gpu, dtype: str) -> float:
    rates = {"fp16": gpu.fp16_flop_per_s, "fp8": gpu.fp8_flop_per_s}
    return rates.get(dtype) or gpu.bf16_flop_per_s or gpu.fp16_flop_per_s


def _with_peaks(readings: Readings, gpu: Gpu) -> Gpu:
    """A processor has no published peak: its best product is taken for it."""
    gpu = replace(gpu, sms=readings.machine.sms, hbm_bytes=readings.machine.memory_bytes)
    if readings.machine.kind == "cuda":
        return gpu
    best = max(p.flop / r["median_s"] for p, r in readings.good("gemm"))
    return replace(gpu, fp16_flop_per_s=best, bf16_flop_per_s=best)


def _fit_gemms(products: _Gemms, gpu: Gpu, kept: Bools | None) -> Gpu:
    """gemm_frac, gemm_half_k, gemm_half_intensity, kernel_s by least absolute relative error."""
    peak = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    chosen = slice(None) if kept is None else kept

    def made(x: Floats) -> Gpu:
        frac, half_k, half_intensity, kernel = (float(v) for v in x)
        return replace(gpu, gemm_frac=frac, gemm_half_k=half_k, gemm_half_intensity=half_intensity, kernel_s=kernel)

    def loss(x: Floats) -> float:
        return _distance(products.predict(made(x), peak)[chosen], products.measured_s[chosen])

    rates = 2.0 * products.m * products.n * products.k / products.measured_s / peak
    start = [float(np.quantile(rates[chosen], 0.8)), 128.0, 2.0, float(np.min(products.measured_s)) / 2]
    return made(_minimum(loss, start, low=(0.01, 1.0, 0.1, 1e-8), high=(1.0, 2048.0, 64.0, 1e-4)))


def _fit_eight_bit(readings: Readings, gpu: Gpu) -> Gpu:
    """fp8 products reach another share of their peak: clocks fall further under the power limit."""
    products = _gemms(readings, "fp8")
    if gpu.fp8_flop_per_s is None or len(products.m) < FEWEST:
        return gpu

    def loss(x: Floats) -> float:
        return _distance(products.predict(replace(gpu, gemm_frac=float(x[0])), peak), products.measured_s)

    peak = gpu.fp8_flop_per_s
    return replace(gpu, fp8_gemm_frac=float(_minimum(loss, [gpu.gemm_frac], low=(0.01,), high=(1.0,))[0]))


# Attention.


def _attention_kernels(readings: Readings) -> list[AttentionKernel]:
    found = dict.fromkeys(p.kernel for p, _ in readings.good("attention") if p.causal)
    # a rate needs both directions
    return [k for k in found if all(len(_attentions(readings, k, d)[0]) >= 3 for d in (True, False))]


def _attentions(readings: Readings, kernel: str, forward: bool) -> tuple[list[AttentionPoint], Floats]:
    """Causal points: the mask that training uses."""
    pairs = [
        (p, r["median_s"])
        for p, r in readings.good("attention")
        if p.kernel == kernel and p.forward == forward and p.causal
    ]
    return [p for p, _ in pairs], np.array([s for _, s in pairs])


def _setting(p: AttentionPoint) -> tuple[str, int, int, int]:
    return (p.kernel, p.heads, p.seq_len, p.head_dim)


def _predict_attention(gpu: Gpu, kernel: AttentionKernel, rate: AttentionRate, points: list[AttentionPoint]) -> Floats:
    chip = replace(gpu, attention={kernel: rate})
    seconds = np.empty(len(points))
    for forward in (True, False):
        for head_dim in {p.head_dim for p in points}:
            rows = [i for i, p in enumerate(points) if p.forward == forward and p.head_dim == head_dim]
            some = [points[i] for i in rows]
            op = Attention(
                name="attention",
                flop=np.array([p.flop for p in some]),
                seq_len=np.array([float(p.seq_len) for p in some]),
                rows=np.array([float(p.batch * p.heads * p.seq_len) for p in some]),
                head_dim=head_dim,
                forward=forward,
            )
            seconds[rows] = attention_s(chip, kernel, op)
    return seconds


def _fit_attention(readings: Readings, gpu: Gpu, kernel: AttentionKernel, kept: Bools | None) -> AttentionRate:
    """Long-sequence rate and half-rate length of each direction; half-rate rows and narrow heads of both."""
    sides = [_attentions(readings, kernel, forward) for forward in (True, False)]
    points = [p for side, _ in sides for p in side]
    measured = np.concatenate([seconds for _, seconds in sides])
    allowed = None if kept is None else {_setting(p) for p, keep in zip(sides[0][0], kept, strict=True) if keep}
    chosen = np.array([allowed is None or _setting(p) in allowed for p in points])
    peak = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    # rows that hardly vary, as in a quick look, cannot be told from the rate
    fixed_rows = gpu.attention[kernel].half_rows if kernel in gpu.attention else 0.0
    energy = gpu.attention[kernel].j_per_flop if kernel in gpu.attention else None
    varies = len({p.heads for p in points}) > 1

    def made(x: Floats) -> AttentionRate:
        forward, backward, half, half_backward, head64, *rows = (float(v) for v in x)
        return AttentionRate(
            forward_frac=forward,
            backward_frac=backward,
            half_seq_len=half,
            backward_half_seq_len=half_backward,
            half_rows=rows[0] if rows else fixed_rows,
            head64_frac=head64,
            j_per_flop=energy,
        )

    def loss(x: Floats) -> float:
        return _distance(_predict_attention(gpu, kernel, made(x), points)[chosen], measured[chosen])

    rates = np.array([p.flop for p in points]) / measured / peak
    best = [float(max(rates[[p.forward == f for p in points]])) for f in (True, False)]
    start = [*best, 400.0, 600.0, 0.8, 1e4]
    low, high = (1e-4, 1e-4, 1.0, 1.0, 0.3, 1.0), (1.0, 1.0, 8192.0, 8192.0, 1.0, 1e6)
    count = 6 if varies else 5
    return made(_minimum(loss, start[:count], low=low[:count], high=high[:count]))


# Memory-bound kernels.


def _moved_bytes(p: StreamPoint) -> tuple[float, int]:
    """Bytes at the streaming rate, and kernels, as the catalogue has them."""
    kernels: Kernels = "compiled" if p.compiled else "eager"
    if p.operation == "copy":
        return EXACT["copy"] * COPIED_TENSORS * p.tensor_bytes, 1
    passes = passes_of(kernels, p.operation)
    count, launched = (
        (passes.forward, passes.forward_kernels) if p.forward else (passes.backward, passes.backward_kernels)
    )
    if p.operation == "residual":  # alone it is a kernel of its own, whatever it is fused with in a layer
        count, launched = EXACT["residual"], 1
    # the optimizer's tensors are fp32, four of them a point
    return count * p.tensor_bytes * (8.0 if p.operation == "adamw" else 1.0), launched


def _fit_streams(readings: Readings, gpu: Gpu) -> Gpu:
    """The streaming rate: the median of kernels whose traffic is exactly known."""
    exact = [
        (moved, moved / max(r["median_s"] - kernels * gpu.kernel_s, 0.1 * r["median_s"]))
        for p, r in readings.good("stream")
        if p.operation in EXACT and not p.compiled
        for moved, kernels in [_moved_bytes(p)]
    ]
    if not exact:
        return gpu
    large = [rate for moved, rate in exact if moved > CACHED_BYTES]
    rate = float(np.median(large or [rate for _, rate in exact]))
    if rate > gpu.hbm_bytes_per_s or readings.machine.kind == "cpu":
        # a processor's memory has no published rate here
        return replace(gpu, hbm_bytes_per_s=rate, hbm_frac=1.0)
    return replace(gpu, hbm_frac=rate / gpu.hbm_bytes_per_s)


# Residuals.


def _residuals(readings: Readings, gpu: Gpu, profile: Profile) -> dict[str, Residuals]:
    found: dict[str, Residuals] = {}
    for dtype in dict.fromkeys(p.dtype for p, _ in readings.good("gemm")):
        products = _gemms(readings, dtype)
        chip = replace(gpu, gemm_frac=gpu.fp8_gemm_frac) if dtype == "fp8" and gpu.fp8_gemm_frac else gpu
        found[f"products {dtype}"] = Residuals.of(products.predict(chip, _peak(gpu, dtype)), products.measured_s)
    for kernel in _attention_kernels(readings):
        for forward in (True, False):
            points, seconds = _attentions(readings, kernel, forward)
            name = f"attention {kernel} {'forward' if forward else 'backward'}"
            found[name] = Residuals.of(_predict_attention(gpu, kernel, gpu.attention[kernel], points), seconds)
    for name, wanted in (("eager", False), ("compiled", True)):
        streams = [(p, r["median_s"]) for p, r in readings.good("stream") if p.compiled == wanted]
        if streams:
            predicted = [_stream_seconds(gpu, profile, p) for p, _ in streams]
            measured = np.array([s for _, s in streams])
            found[f"memory-bound {name}"] = Residuals.of(np.array(predicted), measured)
    return found


def _stream_seconds(gpu: Gpu, profile: Profile, p: StreamPoint) -> float:
    moved, kernels = _moved_bytes(p)
    op = Stream(name=p.operation, moved_bytes=np.array([moved]), kernels=kernels)
    return float(stream_s(gpu, profile, op)[0])


# Fitting.


def _distance(predicted: Floats, measured: Floats) -> float:
    """Mean absolute log error: relative, and not moved by a few outliers."""
    return float(np.mean(np.abs(np.log(predicted / measured))))


def _minimum(
    loss: Callable[[Floats], float], start: Sequence[float], *, low: Sequence[float], high: Sequence[float]
) -> Floats:
    """The parameters of least loss, within bounds; searched in their logarithms, without derivatives, because waves and
    medians have steps."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtra("a fit needs scipy; the readings are kept", hint="pip install 'knee[train]'") from None
    bounds: list[Any] = [(float(np.log(a)), float(np.log(b))) for a, b in zip(low, high, strict=True)]
    x0 = np.clip(np.log(start), [b[0] for b in bounds], [b[1] for b in bounds])
    options = {"maxiter": 2000, "xatol": 1e-3, "fatol": 1e-5, "adaptive": True}
    found = minimize(lambda x: loss(np.exp(x)), x0, method="Nelder-Mead", bounds=bounds, options=options)
    return np.asarray(np.exp(found.x), dtype=np.float64)
