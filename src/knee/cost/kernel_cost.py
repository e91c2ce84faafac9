"""Operation -> seconds on one GPU: matrix products, attention, memory-bound kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knee.arrays import Floats
from knee.specs.constants import constant
from knee.specs.hardware import AttentionKernel, Gpu
from knee.specs.profile import Profile
from knee.workload.operations import BYTES, Attention, Gemm, MemoryBound, Operation

ALIGNED = 8
"""Elements that a tensor core loads at once."""
_SPLITS = (1, 2, 4, 8)
_TILES = ((1.0, 1.0), (1.0, 0.5), (0.5, 0.5))  # of the GPU's largest output tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a list of operations takes."""

    time_s: Floats
    flop: Floats
    """Tensor-core operations, for the energy model; those of attention count by their energy."""
    moved_bytes: Floats
    """HBM traffic, for the energy model."""
    kernels: Floats
    """Launches, for the host."""
    clocked_s: Floats
    """Part of the time that follows the clock: products and attention, at the highest clock."""


def gemm_s(gpu: Gpu, peak_flop_per_s: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
    """Seconds of an (m x k)(k x n) product.

    Formula: kernel_s + max( waves * tile_flop * sms / rate , (mk + kn + mn) bytes / hbm ), the best of a few tiles
             and k-splits
    Where:   waves = ceil(tiles * split / sms); rate = peak * gemm_frac * k/(k + half_k) * intensity of the tile
    Source:  tile and wave quantisation as in NVIDIA's matrix-multiplication guide; the GPU's parameters as probed or
             published
    Valid:   dense 16-bit and fp8 products of training; not for tiny k
    """
    hbm = gpu.hbm_bytes_per_s * gpu.hbm_frac
    operand_bytes = BYTES * (m * k + k * n + m * n)
    half = gpu.gemm_half_intensity
    full = gpu.gemm_tile_m * gpu.gemm_tile_n / (gpu.gemm_tile_m + gpu.gemm_tile_n)
    best = np.full(np.broadcast(m, n, k).shape, np.inf)
    for fm, fn in _TILES:
        tm, tn = gpu.gemm_tile_m * fm, gpu.gemm_tile_n * fn
        intensity = tm * tn / (tm + tn)
        # smaller tiles load more operands per FLOP; relative to the largest tile, which gemm_frac describes
        quality = (intensity / (intensity + half)) / (full / (full + half))
        tiles = np.ceil(m / tm) * np.ceil(n / tn)
        for split in _SPLITS:
            depth = k / split
            waves = np.ceil(tiles * split / gpu.sms)
            rate = peak_flop_per_s * gpu.gemm_frac * quality / gpu.sms
            math = waves * 2.0 * tm * tn * (depth + gpu.gemm_half_k) / rate
            # partial sums go through memory in fp32, written and read once
            partial = 0.0 if split == 1 else 8.0 * split * m * n
            best = np.minimum(best, np.maximum(math, (operand_bytes + partial) / hbm))
    return best + gpu.kernel_s


def attention_s(gpu: Gpu, kernel: AttentionKernel, op: Attention) -> Floats:
    """Seconds of a causal attention kernel.

    Formula: flop / (peak16 * frac * narrow) * (1 + half_seq_len/seq) * (1 + half_rows/rows)
    Where:   narrow = head64_frac^log2(128/head_dim), at most 1, times unaligned_frac where 8 does not divide
             head_dim; rows are the queries of all heads and sequences
    Source:  rates per kernel and GPU in the catalogue; the form from an H200's readings (data/h200)
    Valid:   head sizes 64 and 128; others by the same power
    """
    rate = gpu.attention[kernel]
    frac, half = rate.forward_frac, rate.half_seq_len
    if not op.forward:
        frac = rate.backward_frac
        half = half if rate.backward_half_seq_len is None else rate.backward_half_seq_len
    peak = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    narrow = min(1.0, float(rate.head64_frac ** np.log2(128.0 / op.head_dim)))
    narrow *= 1.0 if op.head_dim % ALIGNED == 0 else rate.unaligned_frac
    return op.flop / (peak * frac * narrow) * (1.0 + half / op.seq_len) * (1.0 + rate.half_rows / op.rows)


def attention_clock(gpu: Gpu, kernel: AttentionKernel) -> float:
    """Clock at which the kernel's rates were measured, over the highest."""
    own = gpu.attention[kernel].clock_frac
    return gpu.gemm_clock_frac if own is None else own


def attention_energy(gpu: Gpu, kernel: AttentionKernel) -> float:
    """Energy of an operation of that kernel over that of a matrix product."""
    energy = gpu.attention[kernel].j_per_flop
    return 1.0 if energy is None else energy / gpu.gemm_j_per_flop


def attention_launches(profile: Profile, *, forward: bool) -> float:
    """Kernels of attention: one forward and three backward where it is fused."""
    kind = "unfused" if profile.attention == "unfused" else "fused"
    return constant("attention", f"{kind}_{'forward' if forward else 'backward'}_kernels")


def stream_s(gpu: Gpu, profile: Profile, op: MemoryBound) -> Floats:
    """Seconds of memory-bound kernels: bytes over the rate they stream at, and each kernel's own time."""
    share = {"hbm": 1.0 / profile.stream_scale, "copy_out": profile.copy_frac, "copy_in": profile.reduce_copy_frac}
    rate = gpu.hbm_bytes_per_s * gpu.hbm_frac * share[op.rate]
    return op.moved_bytes / rate + op.kernels * gpu.kernel_s


def operation_s(gpu: Gpu, profile: Profile, peak_flop_per_s: Floats, op: Operation, clock: float = 1.0) -> Floats:
    """Seconds of any operation at a share of the highest clock."""
    if isinstance(op, Gemm):
        rate = peak_flop_per_s * profile.gemm_scale * clock / gpu.gemm_clock_frac
        return gemm_s(gpu, rate, op.m, op.n, op.k)
    if isinstance(op, Attention):
        return attention_s(gpu, profile.attention, op) * (attention_clock(gpu, profile.attention) / clock)
    return stream_s(gpu, profile, op)


def cost_of(gpu: Gpu, profile: Profile, peak_flop_per_s: Floats, ops: Sequence[Operation]) -> Cost:
    """Time at the highest clock, energy-relevant work and launches of operations that run one after another."""
    time_s, flop, moved, clocked = (np.zeros_like(peak_flop_per_s) for _ in range(4))
    kernels: float | Floats = 0.0
    gemms = [op for op in ops if isinstance(op, Gemm)]
    if gemms:
        # all products at once: pricing one costs a hundred NumPy calls, whatever the number of shapes
        m, n, k = (np.stack([getattr(op, side) for op in gemms]) for side in ("m", "n", "k"))
        rate = peak_flop_per_s * profile.gemm_scale / gpu.gemm_clock_frac
        time_s = time_s + gemm_s(gpu, rate, m, n, k).sum(axis=0)
        clocked = time_s - len(gemms) * gpu.kernel_s
        flop = flop + (2.0 * m * n * k).sum(axis=0)
        moved = moved + (BYTES * (m * k + k * n + m * n)).sum(axis=0)
        kernels += len(gemms)
    for op in ops:
        if isinstance(op, Attention):
            seconds = attention_s(gpu, profile.attention, op) * attention_clock(gpu, profile.attention)
            time_s, clocked = time_s + seconds, clocked + seconds
            flop = flop + op.flop * attention_energy(gpu, profile.attention)
            kernels += attention_launches(profile, forward=op.forward)
        elif isinstance(op, MemoryBound):
            time_s = time_s + stream_s(gpu, profile, op)
            moved = moved + op.moved_bytes
            kernels += op.kernels
    kernel_column = np.zeros_like(peak_flop_per_s) + kernels
    return Cost(time_s=time_s, flop=flop, moved_bytes=moved, kernels=kernel_column, clocked_s=clocked)
