"""Runs one point on the device: products, attention, memory-bound kernels. Needs torch and nothing else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import grouped_mm, scaled_dot_product_attention

from knee.measure.machine.readings import AttentionPoint, GemmPoint, GroupedPoint, StreamPoint

# How a kernel is timed: alone on a settled device, data rotated, the median of repeats. On a GPU the calls are
# captured into a CUDA graph and replayed between two device events, so that what is timed is the device's work and
# not the host's launches, which training hides unless it is bound by them.

SETTLE_S = 0.15
"""A lone kernel runs this long first: clocks come down to what the power limit allows within two refreshes of it."""
MEASURE_S = 0.08
MIN_REPEATS = 7
MOST_REPEATS = 200
BATCH_S = 400e-6
"""Kernels shorter than this are timed several at a time: an event itself costs a few microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something to time: ``run(i)`` uses the i-th of ``copies`` sets of data."""

    run: Callable[[int], Any]
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one execution."""

    median_s: float
    spread_frac: float
    """Half of the middle half of the repeats, over the median."""
    repeats: int
    graph: bool = False
    """Replayed from a CUDA graph: launches are not in it."""


def timing_of(samples: Sequence[float], *, graph: bool = False) -> Timing:
    """Median and spread of repeats."""
    middle = statistics.median(samples)
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle] * 3
    spread = (quartiles[2] - quartiles[0]) / 2 / middle
    return Timing(median_s=middle, spread_frac=spread, repeats=len(samples), graph=graph)


def _repeated(sample: Callable[[], float], each: int, *, graph: bool) -> Timing:
    """Samples until enough time was measured; a sample covers ``each`` executions."""
    samples: list[float] = []
    spent = 0.0
    while len(samples) < MIN_REPEATS or (spent < MEASURE_S and len(samples) < MOST_REPEATS):
        samples.append(sample() / each)
        spent += samples[-1] * each
    return timing_of(samples, graph=graph)


def _time_cpu(work: Work) -> Timing:
    def sample() -> float:
        start = time.perf_counter()
        for i in range(each):
            work.run(i % work.copies)
        return time.perf_counter() - start

    each = 1
    sample()  # picks algorithms, compiles
    each = max(1, int(BATCH_S / max(sample(), 1e-7)))
    return _repeated(sample, each, graph=False)


def _time_cuda(make: Callable[[], Work]) -> Timing:
    def clocked(call: Callable[[], Any]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    # A backward pass runs on its forward's stream, so that everything has to happen on the one that is captured.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work = make()
        work.run(0)  # picks algorithms, compiles and allocates, which a capture may not
        first = min(clocked(lambda: work.run(0)), clocked(lambda: work.run(work.copies - 1)))
        each = max(work.copies, int(BATCH_S / max(first, 1e-7)))

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(each):
                work.run(i % work.copies)
        spent = 0.0
        while spent < SETTLE_S:
            spent += max(clocked(graph.replay), 1e-5)
        return _repeated(lambda: clocked(graph.replay), each, graph=True)


CACHE_BYTES = 200e6
"""Data is rotated over more than this, so that no kernel finds it in the last-level cache."""
MOST_COPIES = 16
TYPES = {"cuda": ("bf16", "fp16", "fp8"), "cpu": ("fp32",)}
OLDEST = {"bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which a chip has the type."""


def types_of(device: str) -> tuple[str, ...]:
    """The types that a device has; the first is the one that the grid is measured in."""
    if device == "cpu":
        return TYPES["cpu"]
    chip = torch.cuda.get_device_capability(0)
    return tuple(name for name in TYPES["cuda"] if chip >= OLDEST.get(name, (0, 0)))


def measure(point: GemmPoint | GroupedPoint | AttentionPoint | StreamPoint, device: str) -> Timing:
    """Time one point; torch's own errors (out of memory, unsupported) go to the caller."""
    makers: dict[type, Callable[[Any, str], Work]] = {
        GemmPoint: _gemm,
        GroupedPoint: _grouped,
        AttentionPoint: _attention,
        StreamPoint: _stream,
    }
    make = partial(makers[type(point)], point, device)
    return _time_cuda(make) if device == "cuda" else _time_cpu(make())


def dtype_of(name: str) -> Any:
    """torch's name of a type."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}[name]


def backend_of(kernel: str) -> Any:
    """torch's name of an attention kernel."""
    return {
        "flash2": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "cutlass": SDPBackend.EFFICIENT_ATTENTION,
        "unfused": SDPBackend.MATH,
    }[kernel]


def _copies(bytes_each: float) -> int:
    return max(2, min(MOST_COPIES, int(CACHE_BYTES / bytes_each) + 1))


def _gemm(p: GemmPoint, device: str) -> Work:
    made = torch.bfloat16 if p.dtype == "fp8" else dtype_of(p.dtype)
    n = _copies(2.0 * (p.m * p.k + p.k * p.n))

    def normal(rows: int, cols: int) -> Any:
        return torch.randn(rows, cols, device=device, dtype=torch.float32).to(made)

    # operands lie as a linear map's autograd leaves them
    if p.layout == "forward":
        pairs = [(normal(p.m, p.k), normal(p.n, p.k).t()) for _ in range(n)]
    elif p.layout == "dgrad":
        pairs = [(normal(p.m, p.k), normal(p.k, p.n)) for _ in range(n)]
    else:
        pairs = [(normal(p.k, p.m).t(), normal(p.k, p.n)) for _ in range(n)]
    if p.dtype == "fp8":
        one = torch.tensor(1.0, device=device)
        eighths = [(a.to(torch.float8_e4m3fn), b.t().to(torch.float8_e4m3fn).t()) for a, b in pairs]
        return Work(
            run=lambda i: torch._scaled_mm(*eighths[i], scale_a=one, scale_b=one, out_dtype=torch.bfloat16), copies=n
        )
    return Work(run=lambda i: torch.mm(*pairs[i]), copies=n)


def _grouped(p: GroupedPoint, device: str) -> Work:
    """Operands lie as the trainer's experts have them (``knee.training.parallelism.experts``)."""
    n = _copies(2.0 * (p.rows * (p.k + p.n) + p.experts * p.k * p.n))
    offsets = torch.tensor(p.counts, device=device).cumsum(0).to(torch.int32)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.float32).to(dtype_of(p.dtype))

    if p.layout == "forward":
        pairs = [(normal(p.rows, p.k), normal(p.experts, p.n, p.k).transpose(1, 2)) for _ in range(n)]
    elif p.layout == "dgrad":
        pairs = [(normal(p.rows, p.n), normal(p.experts, p.n, p.k)) for _ in range(n)]
    else:
        pairs = [(normal(p.rows, p.n).t(), normal(p.rows, p.k)) for _ in range(n)]
    return Work(run=lambda i: grouped_mm(*pairs[i], offs=offsets), copies=n)


def _attention(p: AttentionPoint, device: str) -> Work:
    backend = backend_of(p.kernel)
    shape = (p.batch, p.heads, p.seq_len, p.head_dim)
    n = _copies(2.0 * 3 * p.batch * p.heads * p.seq_len * p.head_dim)
    inputs = [
        tuple(torch.randn(shape, device=device, dtype=dtype_of(p.dtype), requires_grad=not p.forward) for _ in range(3))
        for _ in range(n)
    ]

    def forward(i: int) -> Any:
        with sdpa_kernel(backend):
            q, k, v = inputs[i]
            return scaled_dot_product_attention(q, k, v, is_causal=p.causal)

    if p.forward:
        return Work(run=forward, copies=n)
    outputs = [forward(i) for i in range(n)]
    gradient = torch.randn_like(outputs[0])
    return Work(run=lambda i: torch.autograd.grad(outputs[i], inputs[i], gradient, retain_graph=True), copies=n)


def rmsnorm(x: Any, weight: Any) -> Any:
    """As Llama's reference writes it."""
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight


def rope(x: Any, turn: Any) -> Any:
    """As Llama's reference writes it: pairs of features are complex numbers. x is (batch, seq, heads, head_dim)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


def swiglu(gate: Any, up: Any) -> Any:
    """The gated activation."""
    return torch.nn.functional.silu(gate) * up


def loss(logits: Any, target: Any) -> Any:
    """Cross entropy in fp32, as trainers compute it."""
    return torch.nn.functional.cross_entropy(logits.float(), target)


def _operation(p: StreamPoint, device: str) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """The function, its differentiable inputs and its others."""

    def normal(*shape: int) -> Any:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)

    x = normal(p.tokens, p.width)
    if p.operation == "rmsnorm":
        return rmsnorm, [x, normal(p.width)], []
    if p.operation == "rope":
        heads = p.width // 128
        angles = torch.rand(p.tokens, 1, 64, device=device)
        return rope, [normal(1, p.tokens, heads, 128)], [torch.polar(torch.ones_like(angles), angles)]
    if p.operation == "swiglu":
        return swiglu, [x, normal(p.tokens, p.width)], []
    if p.operation == "residual":
        return torch.add, [x, normal(p.tokens, p.width)], []
    if p.operation == "loss":
        return loss, [x], [torch.randint(p.width, (p.tokens,), device=device)]
    raise ValueError(f"no memory-bound operation named {p.operation}")


def _stream(p: StreamPoint, device: str) -> Work:
    if p.operation == "copy":
        source = torch.empty(p.tokens * p.width * 16, device=device, dtype=torch.int16)
        target = torch.empty_like(source)
        # by a kernel, as training's memory-bound work is; a copy in a graph takes another path
        return Work(run=lambda _: torch.add(source, 1, out=target))
    if p.operation == "adamw":
        weights = [torch.randn(p.tokens * p.width, device=device, requires_grad=True) for _ in range(4)]
        for w in weights:
            w.grad = torch.randn_like(w)
        optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=True, capturable=device == "cuda")
        return Work(run=lambda _: optimizer.step())
    function, inputs, others = _operation(p, device)
    run = torch.compile(function, dynamic=False) if p.compiled else function
    if p.forward:
        # with gradients on, so that what backward needs is kept as in training
        return Work(run=lambda _: run(*inputs, *others))
    output = run(*inputs, *others)
    gradient = torch.ones_like(output)
    return Work(run=lambda _: torch.autograd.grad(output, inputs, gradient, retain_graph=True))
