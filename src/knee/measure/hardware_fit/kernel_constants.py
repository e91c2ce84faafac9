"""Readings of kernels -> the GPU's compute parameters, by the cost model's own formulas.

Three steps, each on its own readings: the streaming rate from kernels whose traffic is known exactly, the four
parameters of matrix products, six of each attention kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.base.errors import InputError
from knee.engine.cost.kernel_cost import attention_s, gemm_s, stream_s
from knee.engine.workload.operations import Attention, MemoryBound
from knee.measure.hardware_fit.residuals import Residuals, distance, held_back, minimum
from knee.measure.machine.readings import AttentionPoint, GemmPoint, Readings, Record, StreamPoint
from knee.specs.constants import passes_of
from knee.specs.hardware import AttentionKernel, AttentionRate, GemmType, Gpu
from knee.specs.profile import Kernels, Profile

# Readings of matrix products -> the four parameters of ``cost.kernel_cost.gemm_s``, and fp8's share of its peak.
# A probe reads a settled GPU, under its power limit: what it finds is peak_frac * sustained_frac, and the base's share
# of the clock is taken for granted.

FEWEST_GEMMS = 12
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
    if len(types) < FEWEST_GEMMS:
        raise InputError(
            f"{len(types)} matrix products were measured; a fit needs at least {FEWEST_GEMMS}",
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
    if gpu.fp8_flop_per_s is None or len(products.m) < FEWEST_GEMMS:
        return gpu

    def made(x: Floats) -> Gpu:
        return with_rate(gpu, "fp8", peak_frac=float(x[0]))

    def loss(x: Floats) -> float:
        return distance(products.predict(made(x), "fp8"), products.measured_s)

    start = gpu.gemm_rate("fp8")[1].peak_frac
    return made(minimum(loss, [start], low=(0.01,), high=(1.0,)))


# Readings of attention kernels -> their rates, by ``cost.kernel_cost.attention_s``.

Setting = tuple[str, int, int, int]

UNFITTED_KERNEL = "unfused"
"""Not fitted: torch runs its unfused attention in fp32, which no trainer that is not fused does."""
FEWEST = 3
"""Points of a direction below which its rate and length cannot be told."""


def kernels_of(readings: Readings) -> list[AttentionKernel]:
    """Kernels that were measured in both directions."""
    found = dict.fromkeys(p.kernel for p, _ in readings.good("attention") if p.causal and p.kernel != UNFITTED_KERNEL)
    return [k for k in found if all(len(causal_points(readings, k, d)[0]) >= FEWEST for d in (True, False))]


def causal_points(readings: Readings, kernel: str, forward: bool) -> tuple[list[AttentionPoint], Floats]:
    """Causal points: the mask that training uses."""
    pairs = [
        (p, r["median_s"])
        for p, r in readings.good("attention")
        if p.kernel == kernel and p.forward == forward and p.causal
    ]
    return [p for p, _ in pairs], np.array([s for _, s in pairs])


def setting_of(p: AttentionPoint) -> Setting:
    """What a held-out set leaves out whole, both directions of it."""
    return (p.kernel, p.heads, p.seq_len, p.head_dim)


def rows_vary(readings: Readings, kernel: str) -> bool:
    """Rows that hardly vary, as in a quick look, cannot be told from the rate."""
    return len({p.heads for p, _ in readings.good("attention") if p.kernel == kernel}) > 1


def predict_attention(gpu: Gpu, kernel: AttentionKernel, rate: AttentionRate, points: list[AttentionPoint]) -> Floats:
    """Seconds by the cost model."""
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


def fit_attention(
    readings: Readings, gpu: Gpu, kernel: AttentionKernel, away: frozenset[Setting] = frozenset()
) -> AttentionRate:
    """Long-sequence rate and half-rate length of each direction; half-rate rows and narrow heads of both."""
    sides = [causal_points(readings, kernel, forward) for forward in (True, False)]
    points = [p for side, _ in sides for p in side]
    measured = np.concatenate([seconds for _, seconds in sides])
    chosen = np.array([setting_of(p) not in away for p in points])
    peak = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    fixed_rows = gpu.attention[kernel].half_rows if kernel in gpu.attention else 0.0
    energy = gpu.attention[kernel].j_per_flop if kernel in gpu.attention else None

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
        return distance(predict_attention(gpu, kernel, made(x), points)[chosen], measured[chosen])

    rates = np.array([p.flop for p in points]) / measured / peak
    forwards = np.array([p.forward for p in points])
    best = [float(max(rates[chosen & (forwards == f)], default=0.5)) for f in (True, False)]
    start = [*best, 400.0, 600.0, 0.8, 1e4]
    low, high = (1e-4, 1e-4, 1.0, 1.0, 0.3, 1.0), (1.0, 1.0, 8192.0, 8192.0, 1.0, 1e6)
    count = 6 if rows_vary(readings, kernel) else 5
    return made(minimum(loss, start[:count], low=low[:count], high=high[:count]))


# Readings of memory-bound kernels -> the rate they stream at; what each takes is the catalogue's ``kernels.toml``.

EXACT = {"copy": 2.0, "residual": 3.0}
"""Memory-bound kernels that read and write every byte once: passes of their tensor."""
CACHED_BYTES = 200e6
"""Less than this may stay in a GPU's last-level cache."""
COPIED_TENSORS = 16.0
"""A copy point copies this many tensors of its shape, so that nothing of it stays in a cache."""


def _moved_bytes(p: StreamPoint, device: str) -> tuple[float, int]:
    """Bytes at the streaming rate, and kernels, as the catalogue has them; a processor's tensors are fp32."""
    wide = 2.0 if device == "cpu" else 1.0
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
    return count * p.tensor_bytes * (8.0 if p.operation == "adamw" else wide), launched


def fit_streams(readings: Readings, gpu: Gpu) -> Gpu:
    """The streaming rate: the median of kernels whose traffic is exactly known."""
    exact = [
        (moved, moved / max(r["median_s"] - kernels * gpu.kernel_s, 0.1 * r["median_s"]))
        for p, r in readings.good("stream")
        if p.operation in EXACT and not p.compiled
        for moved, kernels in [_moved_bytes(p, readings.machine.kind)]
    ]
    if not exact:
        return gpu
    large = [rate for moved, rate in exact if moved > CACHED_BYTES]
    rate = float(np.median(large or [rate for _, rate in exact]))
    if rate > gpu.hbm_bytes_per_s or readings.machine.kind == "cpu":
        # a processor's memory has no published rate here
        return replace(gpu, hbm_bytes_per_s=rate, hbm_frac=1.0)
    return replace(gpu, hbm_frac=rate / gpu.hbm_bytes_per_s)


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
        # whichever directions of a setting were measured, it is kept from the fit
        settings = [setting_of(p) for forward in (True, False) for p in causal_points(readings, kernel, forward)[0]]
        hidden = frozenset(s for s, is_away in zip(settings, held_back(settings), strict=True) if is_away)
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
            traffic = [(p.operation, *_moved_bytes(p, readings.machine.kind)) for p, _ in streams]
            ops = [MemoryBound(name=op, moved_bytes=np.array([moved]), kernels=n) for op, moved, n in traffic]
            predicted = np.array([float(stream_s(gpu, profile, op)[0]) for op in ops])
            found[FitPart("memory-bound", name)] = Residuals.of(predicted, np.array([s for _, s in streams]))
    return found
