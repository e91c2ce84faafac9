"""Operation -> seconds on one GPU: matrix products, attention, memory-bound kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

import numpy as np

from knee.base.arrays import Columns, Floats, Ints, distinct, equal_rows, expanded, names_of
from knee.engine.cost.expert_dispatch import RankLoads
from knee.engine.workload.operations import OPERAND_BYTES, Attention, Gemm, GroupedGemm, MemoryBound, Operation
from knee.engine.workload.projections import BYTES
from knee.specs.constants import constant
from knee.specs.hardware import AttentionKernel, GemmType, Gpu
from knee.specs.plan_table import columns_of, variant_rows
from knee.specs.profile import Profile

ALIGNED = 8
"""Elements that a tensor core loads at once."""
GEMM_TYPES: tuple[GemmType, ...] = get_args(GemmType)
_SPLITS = (1, 2, 4, 8)
_TILES = ((1.0, 1.0), (1.0, 0.5), (0.5, 0.5))  # of the GPU's largest output tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Columns):
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
    narrow_flop: Floats
    """Operations of products in fewer than 16 bits."""

    def mixed(self, share: Floats, other: Cost) -> Cost:
        """The mean of both, of which the other has that share."""

        def mean(one: Floats, two: Floats) -> Floats:
            return np.where(share > 0.0, (1.0 - share) * one + share * two, one)

        return Cost(**{name: mean(getattr(self, name), getattr(other, name)) for name in names_of(Cost)})


def gemm_s(
    gpu: Gpu, kind: GemmType, m: Floats, n: Floats, k: Floats, *, clock_frac: Floats | float | None = None
) -> Floats:
    """Seconds of an (m x k)(k x n) product of one type.

    Formula: kernel_s + max( waves * tile_flop * sms / rate , bytes / hbm ), the best of a few tiles and k-splits
    Where:   waves = ceil(tiles * split / sms); rate = peak * peak_frac * clock * k/(k + half_k) * intensity of the
             tile; bytes = operand bytes * (mk + kn) + 2 mn; clock = sustained_frac, as in a training step, unless given
    Source:  tile and wave quantisation as in NVIDIA's matrix-multiplication guide; rates per type and GPU in the
             catalogue, most from measured products (tools/fit_gemm.py)
    Valid:   products of training, from about 1 GFLOP and k of 512; the operands' casts are not in it
    """
    peak, of = gpu.gemm_rate(kind)
    hbm = gpu.hbm_bytes_per_s * gpu.hbm_frac
    clock = of.sustained_frac if clock_frac is None else clock_frac
    moved = gemm_bytes(kind, m, n, k)
    half = of.half_intensity
    full = of.tile_m * of.tile_n / (of.tile_m + of.tile_n)
    best = np.full(np.broadcast(m, n, k).shape, np.inf)
    for fm, fn in _TILES:
        tm, tn = of.tile_m * fm, of.tile_n * fn
        intensity = tm * tn / (tm + tn)
        # smaller tiles load more operands per FLOP; relative to the largest tile, which peak_frac describes
        quality = (intensity / (intensity + half)) / (full / (full + half))
        tiles = np.ceil(m / tm) * np.ceil(n / tn)
        rate = peak * of.peak_frac * clock * quality / gpu.sms
        for split in _SPLITS:
            waves = np.ceil(tiles * split / gpu.sms)
            math = waves * 2.0 * tm * tn * (k / split + of.half_k) / rate
            # partial sums go through memory in fp32, written and read once
            partial = 0.0 if split == 1 else 8.0 * split * m * n
            best = np.minimum(best, np.maximum(math, (moved + partial) / hbm))
    return best + gpu.kernel_s


def gemm_bytes(kind: GemmType, m: Floats, n: Floats, k: Floats) -> Floats:
    """Memory traffic of a product: both operands once with their scales, the 16-bit result once."""
    return OPERAND_BYTES[kind] * (m * k + k * n) + BYTES * m * n


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
    peak = gpu.half_flop_per_s
    narrow: Floats = np.minimum(1.0, rate.head64_frac ** np.log2(128.0 / op.head_dim))
    narrow = narrow * np.where(op.head_dim % ALIGNED == 0, 1.0, rate.unaligned_frac)
    return op.flop / (peak * frac * narrow) * (1.0 + half / op.seq_len) * (1.0 + rate.half_rows / op.rows)


def stack_attention_s(gpu: Gpu, profile: Profile, op: Attention) -> Floats:
    """Seconds of the stack's own attention kernel at the highest clock."""
    # over the highest, the clock at which the kernel's rates were measured
    own = gpu.attention[profile.attention].clock_frac
    scale = (gpu.gemm_clock_frac if own is None else own) / profile.attention_scale
    return attention_s(gpu, profile.attention, op) * scale


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
    share = {
        "hbm": 1.0 / profile.stream_scale,
        "experts": 1.0 / (profile.stream_scale * profile.expert_stream_scale),
        "copy_out": profile.copy_frac,
        "copy_in": profile.reduce_copy_frac,
        "copy_alone": constant("fsdp_on_one_gpu", "copy_frac"),
        "copy_in_alone": constant("fsdp_on_one_gpu", "reduce_copy_frac"),
    }
    rate = gpu.hbm_bytes_per_s * gpu.hbm_frac * share[op.rate]
    return op.moved_bytes / rate + op.kernels * gpu.kernel_s


def products_s(
    gpu: Gpu, profile: Profile, types: Ints, m: Floats, n: Floats, k: Floats, clock: float | Floats = 1.0
) -> tuple[Floats, Floats]:
    """Seconds at a share of the highest clock and bytes of products whose type, an index of ``GEMM_TYPES``, is a
    column: the last axis."""
    used = distinct(types)
    if len(used) == 1:
        return _products_of_one_type(gpu, profile, GEMM_TYPES[used[0]], m, n, k, clock)
    m, n, k, _ = np.broadcast_arrays(m, n, k, types)
    seconds, moved = np.empty(m.shape), np.empty(m.shape)
    for index in used:
        rows = np.flatnonzero(types == index)
        own, stack = variant_rows(gpu, rows), variant_rows(profile, rows)
        sides = (m[..., rows], n[..., rows], k[..., rows])
        own_clock = clock[..., rows] if isinstance(clock, np.ndarray) else clock
        seconds[..., rows], moved[..., rows] = _products_of_one_type(own, stack, GEMM_TYPES[index], *sides, own_clock)
    return seconds, moved


def _products_of_one_type(
    gpu: Gpu, profile: Profile, kind: GemmType, m: Floats, n: Floats, k: Floats, clock: float | Floats
) -> tuple[Floats, Floats]:
    rate = _clock_rate(gpu, profile, kind, clock)
    return gemm_s(gpu, kind, m, n, k, clock_frac=rate), gemm_bytes(kind, m, n, k)


def _clock_rate(gpu: Gpu, profile: Profile, kind: GemmType, clock: float | Floats) -> float | Floats:
    """The stack's rate; the sustained rate was measured at the clock that the board's limit left."""
    return gpu.gemm_rate(kind)[1].sustained_frac * profile.gemm_scale * clock / gpu.gemm_clock_frac


def grouped_products_s(
    gpu: Gpu, profile: Profile, types: Ints, op: GroupedGemm, clock: float = 1.0
) -> tuple[Floats, Floats]:
    """Seconds and bytes of one layer's experts, as ``products_s`` has those of single products."""
    seconds, moved = np.empty(len(types)), np.empty(len(types))
    price = grouped_weight_gemm_s if op.weights else grouped_gemm_s
    for index in distinct(types):
        kind, rows = GEMM_TYPES[index], np.flatnonzero(types == index)
        own, stack = variant_rows(gpu, rows), variant_rows(profile, rows)
        rate = _clock_rate(own, stack, kind, clock) * stack.expert_gemm_scale
        loads = RankLoads.balanced(op.tokens[rows], op.experts[rows])
        seconds[rows] = price(own, kind, loads, op.n[rows], op.k[rows], clock_frac=rate)
        # stacks that launch a kernel for each expert pay for each; one kernel for all has its time in the price
        # kernels of one product: the product, the cast of an operand, and the order of its scales
        kernels = 1.0 if kind == "bf16" else constant("experts", "narrow_kernels")
        seconds[rows] += op.experts[rows] * kernels * stack.expert_kernel_s
        moved[rows] = op.experts[rows] * gemm_bytes(kind, op.tokens[rows], op.n[rows], op.k[rows])
    return seconds, moved


def operation_s(gpu: Gpu, profile: Profile, types: Ints, op: Operation, clock: float = 1.0) -> Floats:
    """Seconds of any operation at a share of the highest clock."""
    if isinstance(op, Gemm):
        seconds: Floats = _Products.of(gpu, profile, types, [op], clock).seconds[0]
        return seconds
    if isinstance(op, GroupedGemm):
        return op.times * grouped_products_s(gpu, profile, types, op, clock)[0]
    if isinstance(op, Attention):
        return stack_attention_s(gpu, profile, op) / clock
    return stream_s(gpu, profile, op)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """Matrix products of one or more lists of operations, a row for each."""

    seconds: Floats
    flop: Floats
    moved_bytes: Floats
    narrow_flop: Floats
    times: Floats
    """How often the mean layer has each."""

    @classmethod
    def of(
        cls, gpu: Gpu, profile: Profile, types: Ints, gemms: Sequence[Gemm], clock: float | Floats = 1.0
    ) -> _Products:
        """All at once: pricing one costs a hundred NumPy calls, whatever the number of shapes."""
        m, n, k = (np.array([getattr(op, side) for op in gemms]) for side in ("m", "n", "k"))
        scaled = any(isinstance(op.scale, np.ndarray) for op in gemms)
        if scaled:
            clock = clock * np.array([np.broadcast_to(op.scale, types.shape) for op in gemms])
        if scaled or len(types) < MANY:
            seconds, moved = products_s(gpu, profile, types, m, n, k, clock)
        else:
            seconds, moved = _distinct_products_s(gpu, profile, types, m, n, k, clock)
        narrow = types != 0
        if any(op.wide is not None and (op.wide & narrow).any() for op in gemms):
            no = np.zeros_like(narrow)
            wide = np.array([no if op.wide is None else op.wide for op in gemms])
            in_half = products_s(gpu, profile, np.zeros_like(types), m, n, k, clock)
            seconds, moved = (np.where(wide, half, own) for half, own in zip(in_half, (seconds, moved), strict=True))
            narrow = narrow & ~wide
        times = np.array([op.times for op in gemms])
        often = times[:, None]
        flop = often * 2.0 * m * n * k
        return cls(
            seconds=often * seconds, flop=flop, moved_bytes=often * moved, narrow_flop=flop * narrow, times=times
        )


MANY = 4096
"""Rows among which many have the same products, as where plans differ in how they lay out their experts."""


def _distinct_products_s(
    gpu: Gpu, profile: Profile, types: Ints, m: Floats, n: Floats, k: Floats, clock: float | Floats
) -> tuple[Floats, Floats]:
    """``products_s`` with each row of products priced once."""
    first, kind = equal_rows(types, *m, *n, *k, *columns_of(gpu, profile))
    own, stack = variant_rows(gpu, first), variant_rows(profile, first)
    seconds, moved = products_s(own, stack, types[first], m[:, first], n[:, first], k[:, first], clock)
    return seconds[:, kind], moved[:, kind]


TOGETHER = 2**15
"""Shapes of products that are priced at once: more do not stay in the cache."""


def costs_of(gpu: Gpu, profile: Profile, types: Ints, lists: Sequence[Sequence[Operation]]) -> list[Cost]:
    """The cost of each list of operations; the products of all of them are priced together where they are few."""
    gemms = [[op for op in ops if isinstance(op, Gemm)] for ops in lists]
    every = [op for own in gemms for op in own]
    if not every or len(every) * len(types) > TOGETHER:
        return [cost_of(gpu, profile, types, ops) for ops in lists]
    together, starts = _Products.of(gpu, profile, types, every), accumulate(map(len, gemms), initial=0)
    return [
        _cost(gpu, profile, types, ops, expanded(together, slice(start, start + len(own))) if own else None)
        for ops, own, start in zip(lists, gemms, starts, strict=False)
    ]


def cost_of(gpu: Gpu, profile: Profile, types: Ints, ops: Sequence[Operation]) -> Cost:
    """Time at the highest clock, energy-relevant work and launches of operations that run one after another; ``types``
    is the column of their products' types."""
    gemms = [op for op in ops if isinstance(op, Gemm)]
    return _cost(gpu, profile, types, ops, _Products.of(gpu, profile, types, gemms) if gemms else None)


def _cost(gpu: Gpu, profile: Profile, types: Ints, ops: Sequence[Operation], products: _Products | None) -> Cost:
    time_s, flop, moved, clocked, narrow = (np.zeros(len(types)) for _ in range(5))
    if products is not None:
        count = products.times.sum()
        time_s = products.seconds.sum(axis=0)
        clocked = time_s - count * gpu.kernel_s
        flop, moved = products.flop.sum(axis=0), products.moved_bytes.sum(axis=0)
        narrow = products.narrow_flop.sum(axis=0)
    for op in ops:
        if isinstance(op, GroupedGemm):
            seconds, traffic = grouped_products_s(gpu, profile, types, op)
            time_s, moved = time_s + op.times * seconds, moved + op.times * traffic
            clocked = clocked + op.times * (seconds - gpu.kernel_s)
            flop, narrow = flop + op.flop, narrow + op.flop * (types != 0)
        elif isinstance(op, Attention):
            seconds = stack_attention_s(gpu, profile, op)
            time_s, clocked = time_s + seconds, clocked + seconds
            flop = flop + op.flop * attention_energy(gpu, profile.attention)
        elif isinstance(op, MemoryBound):
            time_s = time_s + stream_s(gpu, profile, op)
            moved = moved + op.moved_bytes
    kernels = np.zeros(len(types)) + launches(profile, ops)
    return Cost(time_s=time_s, flop=flop, moved_bytes=moved, kernels=kernels, clocked_s=clocked, narrow_flop=narrow)


def launches(profile: Profile, ops: Sequence[Operation]) -> Floats | float:
    """Kernels of operations that run one after another."""
    found: Floats | float = 0.0
    for op in ops:
        if isinstance(op, Attention):
            found = found + attention_launches(profile, forward=op.forward)
        else:
            found = found + (op.kernels if isinstance(op, MemoryBound) else op.times)
    return found


# Grouped matrix products of experts: forward, input gradients, weight gradients.

_GROUPED_TILES = ((1.0, 1.0), (1.0, 0.5), (0.5, 0.5), (0.25, 0.5))
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
    for tile in _GROUPED_TILES:
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
    for tile in _GROUPED_TILES[:3]:
        rows, columns, tile_s = _tile(gpu, kind, tile, loads.rows / experts, clock_frac)
        tiles = np.ceil(n / rows) * np.ceil(k / columns) * loads.active
        seconds.append(np.maximum(np.ceil(tiles / gpu.sms) * tile_s, moved / hbm))
    return np.asarray(np.min(seconds, axis=0)) + gpu.kernel_s


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
