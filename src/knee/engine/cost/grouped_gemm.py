"""Grouped matrix products of experts -> seconds on one GPU: forward, input gradients, weight gradients."""

from __future__ import annotations

import numpy as np

from knee.base.arrays import Floats
from knee.engine.cost.expert_loads import RankLoads
from knee.engine.workload.operations import OPERAND_BYTES
from knee.engine.workload.shapes import BYTES
from knee.specs.hardware import GemmType, Gpu

_TILES = ((1.0, 1.0), (1.0, 0.5), (0.5, 0.5), (0.25, 0.5))
"""Of the GPU's largest output tile, rows and columns: with few tokens per expert, libraries choose fewer rows."""


def grouped_gemm_s(
    gpu: Gpu, kind: GemmType, loads: RankLoads, n: Floats, k: Floats, *, clock_frac: Floats | float | None = None
) -> Floats:
    """Seconds of one product (tokens x k)(k x n) for every expert of a rank, in one kernel.

    Formula: kernel_s + max( waves * tile_flop * sms / rate , bytes / hbm )
    Where:   waves = ceil(sum over experts of ceil(tokens / tile_m) * ceil(n / tile_n) / sms); rate and tile as
             ``kernel_cost.gemm_s`` has them for dense products, the tile that is best for balanced routing;
             bytes = operand bytes * (rows k + experts n k) + 2 rows n: the weights of each expert are read once
    Source:  the dense products' rates without a change; they leave the errors of data/moe/errors.csv on measured
             expert layers
    Valid:   16 tokens per expert and more; grouped kernels that were tuned or choose their tile by the mean load
    """
    moved = OPERAND_BYTES[kind] * (loads.rows * k + loads.active * n * k) + BYTES * loads.rows * n
    even = loads.even()
    even_moved = OPERAND_BYTES[kind] * (even.rows * k + even.active * n * k) + BYTES * even.rows * n
    hbm = gpu.hbm_bytes_per_s * gpu.hbm_frac
    seconds, expected = [], []
    for tile in _TILES:
        rows, columns, tile_s = _tile(gpu, kind, tile, k, clock_frac)
        across = np.ceil(n / columns)
        waves = np.ceil(loads.tiles(rows) * across / gpu.sms)
        even_waves = np.ceil(even.tiles(rows) * across / gpu.sms)
        seconds.append(np.maximum(waves * tile_s, moved / hbm))
        expected.append(np.maximum(even_waves * tile_s, even_moved / hbm))
    return _chosen(seconds, expected) + gpu.kernel_s


def grouped_weight_gemm_s(
    gpu: Gpu,
    kind: GemmType,
    loads: RankLoads,
    n: Floats,
    k: Floats,
    *,
    gradient_bytes: float = BYTES,
    clock_frac: Floats | float | None = None,
) -> Floats:
    """Seconds of the weight gradients (n x tokens)(tokens x k) of every expert of a rank, in one kernel.

    Formula: kernel_s + max( waves * tile_flop * sms / rate , bytes / hbm )
    Where:   each expert has ceil(n / tile_m) * ceil(k / tile_n) tiles, whose inner dimension is its tokens;
             gradient_bytes per weight: 2 if it is written in 16 bit, 8 if it is added to an fp32 gradient
    Source:  as ``grouped_gemm_s``; no table of this product is public
    Valid:   held against one layer's backward pass only (data/moe/README.md)
    """
    hbm = gpu.hbm_bytes_per_s * gpu.hbm_frac
    moved = OPERAND_BYTES[kind] * loads.rows * (n + k) + gradient_bytes * loads.active * n * k
    experts = np.maximum(loads.active, 1.0)
    seconds = []
    for tile in _TILES[:3]:
        rows, columns, tile_s = _tile(gpu, kind, tile, loads.rows / experts, clock_frac)
        tiles = np.ceil(n / rows) * np.ceil(k / columns) * loads.active
        seconds.append(np.maximum(np.ceil(tiles / gpu.sms) * tile_s, moved / hbm))
    return np.asarray(np.min(seconds, axis=0)) + gpu.kernel_s


def experts_forward_s(
    gpu: Gpu,
    kind: GemmType,
    loads: RankLoads,
    hidden: Floats,
    ffn: Floats,
    *,
    up_projections: Floats | float = 2.0,
    clock_frac: Floats | float | None = None,
) -> Floats:
    """Both grouped products of an expert layer: up (and gate, with 2 up projections) and down.

    ``ffn`` is the expert's width on one rank: divided by etp.
    """
    up = grouped_gemm_s(gpu, kind, loads, up_projections * ffn, hidden, clock_frac=clock_frac)
    return up + grouped_gemm_s(gpu, kind, loads, hidden, ffn, clock_frac=clock_frac)


def experts_backward_s(
    gpu: Gpu,
    kind: GemmType,
    loads: RankLoads,
    hidden: Floats,
    ffn: Floats,
    *,
    up_projections: Floats | float = 2.0,
    gradient_bytes: float = BYTES,
    clock_frac: Floats | float | None = None,
) -> Floats:
    """Input and weight gradients of both grouped products of an expert layer."""
    wide = up_projections * ffn
    inputs = grouped_gemm_s(gpu, kind, loads, hidden, wide, clock_frac=clock_frac)
    inputs = inputs + grouped_gemm_s(gpu, kind, loads, ffn, hidden, clock_frac=clock_frac)
    weights = grouped_weight_gemm_s(
        gpu, kind, loads, wide, hidden, gradient_bytes=gradient_bytes, clock_frac=clock_frac
    )
    return (
        inputs
        + weights
        + grouped_weight_gemm_s(gpu, kind, loads, hidden, ffn, gradient_bytes=gradient_bytes, clock_frac=clock_frac)
    )


def _tile(
    gpu: Gpu, kind: GemmType, tile: tuple[float, float], inner: Floats, clock_frac: Floats | float | None
) -> tuple[float, float, Floats]:
    """Rows, columns and seconds of one tile on one SM, as a dense product has them."""
    peak, of = gpu.gemm_rate(kind)
    clock = of.sustained_frac if clock_frac is None else clock_frac
    rows, columns = of.tile_m * tile[0], of.tile_n * tile[1]
    full = of.tile_m * of.tile_n / (of.tile_m + of.tile_n)
    intensity = rows * columns / (rows + columns)
    quality = (intensity / (intensity + of.half_intensity)) / (full / (full + of.half_intensity))
    rate = peak * of.peak_frac * clock * quality / gpu.sms
    return rows, columns, 2.0 * rows * columns * (inner + of.half_k) / rate


def _chosen(seconds: list[Floats], expected: list[Floats]) -> Floats:
    """The seconds of the choice with the least expected seconds."""
    choice = np.argmin(np.stack(expected), axis=0)
    return np.asarray(np.take_along_axis(np.stack(seconds), choice[None], axis=0)[0])
