"""What is measured: a designed, thinned grid of kernels that Llama-family training runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Layout = Literal["forward", "dgrad", "wgrad"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPoint:
    """A product as the cost model describes it: (m x k)(k x n), and which of a linear map's three it is."""

    kind: str = "gemm"
    m: int
    n: int
    k: int
    layout: Layout
    dtype: str = "bf16"

    @property
    def weight(self) -> tuple[int, int]:
        """Shape of the weight matrix: what a held-out set leaves out whole."""
        return {"forward": (self.n, self.k), "dgrad": (self.k, self.n), "wgrad": (self.m, self.n)}[self.layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """A causal attention kernel on (batch, heads, seq_len, head_dim)."""

    kind: str = "attention"
    kernel: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    forward: bool
    dtype: str = "bf16"

    @property
    def flop(self) -> float:
        """Work done, mask respected; the backward pass has five products for the forward's two."""
        forward = 2.0 * self.batch * self.heads * float(self.seq_len) ** 2 * self.head_dim
        return forward if self.forward else 2.5 * forward


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPoint:
    """A memory-bound operation of a layer, eager or compiled, forward or backward."""

    kind: str = "stream"
    operation: str
    tokens: int
    width: int
    forward: bool
    compiled: bool


Point = GemmPoint | AttentionPoint | StreamPoint


def _weights() -> list[tuple[int, int]]:
    """Distinct weight matrices (out, in) of the family under every tensor-parallel degree."""
    found = set()
    for hidden, ffn, kv, vocab in SHAPES:
        for tp in DEGREES:
            found |= {(hidden // tp, hidden), (hidden, hidden // tp), (ffn // tp, hidden), (hidden, ffn // tp)}
            found |= {(max(kv // tp, 128), hidden), (vocab // tp, hidden)}
    return sorted(found)


def gemm_points(*, quick: bool = False, dtypes: tuple[str, ...] = ("bf16",)) -> list[GemmPoint]:
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
            points += [GemmPoint(m=m, n=n, k=k, layout=layout) for layout, m, n, k in shapes]
    for dtype in dtypes[1:]:
        wanted = [p for p in draw.sample(points, min(60, len(points))) if dtype != "fp8" or p.layout == "forward"]
        points += [GemmPoint(**(asdict(p) | {"dtype": dtype})) for p in wanted]
    return points


def attention_points(kernels: tuple[str, ...], *, quick: bool = False) -> list[AttentionPoint]:
    """Sequence lengths 512 to 32k at a constant number of tokens, heads as tp leaves them, both head sizes."""
    lengths = (1024, 4096, 16384) if quick else (512, 1024, 2048, 4096, 8192, 16384, 32768)
    grid = itertools.product(kernels, (64, 128), (16,) if quick else (4, 8, 16, 32), lengths, (True, False))
    return [
        AttentionPoint(
            kernel=kernel,
            batch=max(16384 // seq_len, 1),
            heads=heads,
            seq_len=seq_len,
            head_dim=head_dim,
            forward=forward,
        )
        for kernel, head_dim, heads, seq_len, forward in grid
        if kernel != "unfused" or seq_len <= 8192  # the scores alone would fill the memory
    ]


STREAMS = ("rmsnorm", "rope", "swiglu", "residual", "loss", "adamw", "copy")


def stream_points(*, quick: bool = False) -> list[StreamPoint]:
    """The memory-bound kernels of a layer, of the loss and of the optimizer."""
    sizes = ((8192, 4096),) if quick else ((2048, 4096), (8192, 2048), (8192, 4096), (16384, 4096), (8192, 8192))
    points = []
    for operation, (tokens, hidden) in itertools.product(STREAMS, sizes):
        if operation == "loss" and hidden != 4096:
            continue
        width = {"swiglu": hidden * 43 // 16, "loss": 32000}.get(operation, hidden)
        whole = operation in ("adamw", "copy")  # neither has a backward, and neither is compiled
        modes = [(True, False)] if whole else [(f, c) for c in (False, True) for f in (True, False)]
        points += [
            StreamPoint(operation=operation, tokens=tokens, width=width, forward=forward, compiled=compiled)
            for forward, compiled in modes
        ]
    return points


def shuffled(points: Sequence[Point]) -> list[Point]:
    """In a fixed random order, so that an interrupted probe has a fair sample and clocks do not drift with size."""
    mixed = list(points)
    random.Random(SEED).shuffle(mixed)
    return mixed


def point_of(record: dict[str, Any]) -> Point:
    """The point that a record was made from."""
    kinds: dict[str, type[Point]] = {"gemm": GemmPoint, "attention": AttentionPoint, "stream": StreamPoint}
    return kinds[record["kind"]](**record)


def key_of(point: Point) -> str:
    """A name that tells points apart in a file."""
    return "/".join(f"{value}" for value in asdict(point).values())
