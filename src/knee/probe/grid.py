"""What is measured: a designed, thinned grid of kernels that Llama-family training runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict

from knee.record.readings import AttentionPoint, GemmPoint, HostPoint, Layout, Point, StreamPoint

# hidden, ffn, key-value width, vocabulary of the family's members, 1B to 405B
SHAPES = (
    (2048, 5632, 2048, 32000),
    (4096, 11008, 4096, 32000),
    (4096, 14336, 1024, 128256),
    (5120, 13824, 5120, 32000),
    (8192, 28672, 1024, 128256),
    (16384, 53248, 1024, 128256),
)
TOKENS = (1024, 2048, 4096, 8192, 16384, 32768)
DEGREES = (1, 2, 4, 8, 16)
SEED = 20
ATTENTION_TOKENS = 16384
STREAMS = ("rmsnorm", "rope", "swiglu", "residual", "loss", "adamw", "copy")
WHOLE_STREAMS = ("adamw", "copy")
"""Neither has a backward, and neither is compiled."""


def kernel_points(dtypes: Sequence[str], attention: Sequence[str], *, quick: bool = False) -> list[Point]:
    """The whole grid, in a fixed random order: an interrupted probe has a fair sample, and clocks do not drift with
    size."""
    points: list[Point] = [
        *gemm_points(dtypes, quick=quick),
        *attention_points(attention, dtypes[0], quick=quick),
        *stream_points(quick=quick),
    ]
    random.Random(SEED).shuffle(points)
    return [HostPoint(compiled=False), HostPoint(compiled=True), *points]


def _weights() -> list[tuple[int, int]]:
    """(outputs, inputs) of every distinct linear map on one tensor-parallel rank."""
    found: set[tuple[int, int]] = set()
    for tp in DEGREES:
        for hidden, ffn, kv, vocab in SHAPES:
            found |= {(hidden // tp, hidden), (hidden, hidden // tp), (ffn // tp, hidden), (hidden, ffn // tp)}
            found |= {(max(kv // tp, 128), hidden), (vocab // tp, hidden)}
    return sorted(found)


def gemm_points(dtypes: Sequence[str], *, quick: bool = False) -> list[GemmPoint]:
    """Every weight shape, each at a few token counts drawn by a fixed seed, in all three layouts."""
    draw = random.Random(SEED)
    points = []
    weights = _weights()
    for out, inner in draw.sample(weights, 24) if quick else weights:
        for tokens in draw.sample(TOKENS, 2):
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


def attention_points(kernels: Sequence[str], dtype: str, *, quick: bool = False) -> list[AttentionPoint]:
    """Sequence lengths 512 to 32k at a constant number of tokens, heads as tp leaves them, both head sizes."""
    lengths = (1024, 4096, 16384) if quick else (512, 1024, 2048, 4096, 8192, 16384, 32768)
    heads = (16,) if quick else (4, 8, 16, 32)
    grid = itertools.product(kernels, (64, 128), heads, lengths, (True, False), (True, False))
    return [
        AttentionPoint(
            kernel=kernel,
            batch=max(ATTENTION_TOKENS // seq_len, 1),
            heads=heads,
            seq_len=seq_len,
            head_dim=head_dim,
            forward=forward,
            causal=causal,
            dtype=dtype,
        )
        for kernel, head_dim, heads, seq_len, forward, causal in grid
        # a whole square is a ring step's block: one number of heads is enough to tell its rate
        if causal or (heads == 16 and head_dim == 128)
        # the scores of unfused attention alone would fill the memory
        if kernel != "unfused" or (seq_len <= 4096 and heads == 16)
    ]


def stream_points(*, quick: bool = False) -> list[StreamPoint]:
    """The memory-bound kernels of a layer, of the loss and of the optimizer."""
    sizes = ((8192, 4096),) if quick else ((2048, 4096), (8192, 2048), (8192, 4096), (16384, 4096), (8192, 8192))
    points = []
    for operation, (tokens, hidden) in itertools.product(STREAMS, sizes):
        if operation == "loss" and hidden != 4096:
            continue
        width = {"swiglu": hidden * 43 // 16, "loss": 32000}.get(operation, hidden)
        whole = operation in WHOLE_STREAMS
        modes = [(True, False)] if whole else [(f, c) for c in (False, True) for f in (True, False)]
        points += [
            StreamPoint(operation=operation, tokens=tokens, width=width, forward=forward, compiled=compiled)
            for forward, compiled in modes
            if forward or operation != "residual"  # the gradient goes through as it is
        ]
    return points
