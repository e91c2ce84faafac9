"""What is measured: a designed, thinned grid of kernels that Llama-family training runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import get_args

from knee.measure.machine.readings import (
    AttentionPoint,
    GemmPoint,
    GroupedPoint,
    HostPoint,
    Layout,
    Point,
    StepPoint,
    StreamName,
    StreamPoint,
)

SEED = 20
STREAMS: tuple[StreamName, ...] = get_args(StreamName)
WHOLE_STREAMS = ("adamw", "copy")
"""Neither has a backward, and neither is compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the kernels of a grid are."""

    shapes: tuple[tuple[int, int, int, int], ...]
    """hidden, ffn, key-value width and vocabulary of a family's members."""
    degrees: tuple[int, ...]
    tokens: tuple[int, ...]
    quick_weights: int
    attention_tokens: int
    lengths: tuple[int, ...]
    heads: tuple[int, ...]
    middle_heads: int
    """The number of heads that a quick look, and whole squares, are measured at."""
    streams: tuple[tuple[int, int], ...]
    """Tokens and hidden size; the first is that of a quick look."""
    experts: tuple[tuple[int, int, int], ...]
    """hidden, inner width and number of the experts of a rank; the first is that of a quick look."""
    compiled: bool
    """Memory-bound kernels are measured compiled as well."""


GPU = Scale(
    shapes=(
        (2048, 5632, 2048, 32000),
        (4096, 11008, 4096, 32000),
        (4096, 14336, 1024, 128256),
        (5120, 13824, 5120, 32000),
        (8192, 28672, 1024, 128256),
        (16384, 53248, 1024, 128256),
    ),
    degrees=(1, 2, 4, 8, 16),
    tokens=(1024, 2048, 4096, 8192, 16384, 32768),
    quick_weights=24,
    attention_tokens=16384,
    lengths=(512, 1024, 2048, 4096, 8192, 16384, 32768),
    heads=(4, 8, 16, 32),
    middle_heads=16,
    streams=((8192, 4096), (2048, 4096), (8192, 2048), (16384, 4096), (8192, 8192)),
    # Qwen3-30B-A3B and 235B-A22B, DeepSeek-V3, Mixtral 8x7B; whole and with expert parallelism
    experts=(
        (2048, 768, 128),
        (2048, 768, 16),
        (4096, 1536, 16),
        (7168, 2048, 32),
        (7168, 2048, 4),
        (4096, 14336, 8),
        (4096, 14336, 1),
    ),
    compiled=True,
)
"""Llama-family members of 1B to 405B."""

CPU = Scale(
    shapes=((256, 704, 256, 2048), (512, 1408, 512, 4096), (1024, 2752, 512, 4096)),
    degrees=(1, 2, 4),
    tokens=(128, 256, 512, 1024),
    quick_weights=8,
    attention_tokens=1024,
    lengths=(128, 256, 512, 1024),
    heads=(2, 4, 8),
    middle_heads=4,
    streams=((1024, 1024), (512, 1024), (1024, 512), (2048, 1024), (1024, 2048)),
    experts=((256, 96, 16), (256, 96, 4), (512, 1408, 4)),
    compiled=False,
)
"""What a processor does in seconds; compiling for it needs a compiler that may not be there."""


ATTENTION = {"cuda": ("flash2", "cudnn", "cutlass"), "cpu": ("flash2",)}


def device_points(device: str, dtypes: Sequence[str], *, quick: bool = False) -> list[Point]:
    """The grid of a GPU or of a processor."""
    scale = GPU if device == "cuda" else CPU
    return [
        *kernel_points(scale, dtypes, ATTENTION[device], quick=quick),
        *grouped_points(scale, dtypes[0], quick=quick),
    ]


def kernel_points(scale: Scale, dtypes: Sequence[str], attention: Sequence[str], *, quick: bool = False) -> list[Point]:
    """The whole grid, in a fixed random order: an interrupted probe has a fair sample, and clocks do not drift with
    size."""
    points: list[Point] = [
        *gemm_points(scale, dtypes, quick=quick),
        *attention_points(scale, attention, dtypes[0], quick=quick),
        *stream_points(scale, quick=quick),
    ]
    random.Random(SEED).shuffle(points)
    hosts: list[Point] = [HostPoint(compiled=False), HostPoint(compiled=True)] if scale.compiled else []
    return hosts + points


def _weights(scale: Scale) -> list[tuple[int, int]]:
    """(outputs, inputs) of every distinct linear map on one tensor-parallel rank."""
    found: set[tuple[int, int]] = set()
    for tp in scale.degrees:
        for hidden, ffn, kv, vocab in scale.shapes:
            found |= {(hidden // tp, hidden), (hidden, hidden // tp), (ffn // tp, hidden), (hidden, ffn // tp)}
            found |= {(max(kv // tp, 128), hidden), (vocab // tp, hidden)}
    return sorted(found)


def gemm_points(scale: Scale, dtypes: Sequence[str], *, quick: bool = False) -> list[GemmPoint]:
    """Every weight shape, each at a few token counts drawn by a fixed seed, in all three layouts."""
    draw = random.Random(SEED)
    points = []
    weights = _weights(scale)
    for out, inner in draw.sample(weights, scale.quick_weights) if quick else weights:
        for tokens in draw.sample(scale.tokens, 2):
            shapes: tuple[tuple[Layout, int, int, int], ...] = (
                ("forward", tokens, out, inner),
                ("dgrad", tokens, inner, out),
                ("wgrad", out, inner, tokens),
            )
            points += [GemmPoint(m=m, n=n, k=k, layout=layout, dtype=dtypes[0]) for layout, m, n, k in shapes]
    main = list(points)
    for dtype in dtypes[1:]:
        wanted = [p for p in draw.sample(main, min(60, len(main))) if dtype != "fp8" or p.layout == "forward"]
        points += [GemmPoint(**(asdict(p) | {"dtype": dtype})) for p in wanted]
    return points


def grouped_points(scale: Scale, dtype: str, *, quick: bool = False) -> list[GroupedPoint]:
    """Both products of the experts on a rank, at a few numbers of rows, and one uneven division of them."""
    draw = random.Random(SEED)
    points = []
    for hidden, ffn, experts in scale.experts[:1] if quick else scale.experts:
        weights = [(2 * ffn, hidden), (hidden, ffn)]
        sizes = [(scale.tokens[-1], False), *((rows, True) for rows in scale.tokens[-1 if quick else -3 :])]
        points += [
            GroupedPoint(rows=rows, experts=experts, n=n, k=k, layout=layout, even=even, dtype=dtype)
            for n, k in weights
            for rows, even in sizes
            for layout in get_args(Layout)
        ]
    draw.shuffle(points)
    return points


def attention_points(scale: Scale, kernels: Sequence[str], dtype: str, *, quick: bool = False) -> list[AttentionPoint]:
    """Short to long sequences at a constant number of tokens, heads as tp leaves them, both head sizes."""
    lengths = scale.lengths[1::2] if quick else scale.lengths
    heads = (scale.middle_heads,) if quick else scale.heads
    grid = itertools.product(kernels, (64, 128), heads, lengths, (True, False), (True, False))
    return [
        AttentionPoint(
            kernel=kernel,
            batch=max(scale.attention_tokens // seq_len, 1),
            heads=heads,
            seq_len=seq_len,
            head_dim=head_dim,
            forward=forward,
            causal=causal,
            dtype=dtype,
        )
        for kernel, head_dim, heads, seq_len, forward, causal in grid
        # a whole square is a ring step's block: one number of heads is enough to tell its rate
        if causal or (heads == scale.middle_heads and head_dim == 128)
        # the scores of unfused attention alone would fill the memory
        if kernel != "unfused" or (seq_len <= 4096 and heads == scale.middle_heads)
    ]


def stream_points(scale: Scale, *, quick: bool = False) -> list[StreamPoint]:
    """The memory-bound kernels of a layer, of the loss and of the optimizer."""
    sizes = scale.streams[:1] if quick else scale.streams
    middle, vocab = scale.streams[0][1], scale.shapes[0][3]
    compiled = (False, True) if scale.compiled else (False,)
    points = []
    for operation, (tokens, hidden) in itertools.product(STREAMS, sizes):
        if operation == "loss" and hidden != middle:
            continue
        width = {"swiglu": hidden * 43 // 16, "loss": vocab}.get(operation, hidden)
        whole = operation in WHOLE_STREAMS
        modes = [(True, False)] if whole else [(f, c) for c in compiled for f in (True, False)]
        points += [
            StreamPoint(operation=operation, tokens=tokens, width=width, forward=forward, compiled=compile)
            for forward, compile in modes
            if forward or operation != "residual"  # the gradient goes through as it is
        ]
    return points


LLAMA_1B = StepPoint(
    model="llama-1b",
    layers=25,
    hidden=2048,
    ffn=5632,
    heads=16,
    kv_heads=16,
    vocab=32000,
    seq_len=4096,
    micro_batch=1,
    compiled=False,
)
LLAMA_7B = replace(LLAMA_1B, model="llama2-7b", layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, master="bf16")
"""In bf16 throughout: fp32 masters of 7B do not fit on one GPU."""
TINY = replace(LLAMA_1B, model="tiny", layers=4, hidden=256, ffn=704, heads=4, kv_heads=4, vocab=2048, seq_len=256)


def step_points(device: str, *, quick: bool = False) -> list[StepPoint]:
    """Whole steps, eager and compiled, at local batch 1, 2 and 4."""
    if device == "cpu":
        return [replace(TINY, micro_batch=batch) for batch in ((1,) if quick else (1, 2, 4))]
    models = (LLAMA_1B,) if quick else (LLAMA_1B, LLAMA_7B)
    grid = itertools.product(models, (1, 2, 4), (False, True))
    return [replace(model, micro_batch=batch, compiled=compiled) for model, batch, compiled in grid]
