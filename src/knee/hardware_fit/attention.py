"""Readings of attention kernels -> their rates, by ``cost.kernel_cost.attention_s``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knee.arrays import Floats
from knee.cost.kernel_cost import attention_s
from knee.hardware_fit.least_squares import distance, minimum
from knee.record.probe_points import AttentionPoint
from knee.record.readings import Readings
from knee.specs.hardware import AttentionKernel, AttentionRate, Gpu
from knee.workload.operations import Attention

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
