"""The kernels of one step: matrix products, attention and memory-bound kernels, as columns over shapes.

Every dimension may be a column, so one description serves one plan and a hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.columns import Floats
from knee.specs.model import Model
from knee.specs.profile import Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What the kernels of a layer depend on."""

    tokens: Floats
    """Tokens of a microbatch on one context-parallel rank."""
    sequences: Floats
    """Sequences of a microbatch."""
    seq_len: Floats
    """Whole sequence, before context parallelism."""
    tp: Floats
    cp: Floats
    kv_block: Floats
    """Keys that one attention kernel sees: the whole sequence, or a ring step's block of it."""
    norm_tokens: Floats
    """Tokens that norms and residuals work on: cut by tp under sequence parallelism."""
    eight_bit: Floats
    """1 where a layer's products are fp8, else 0; the output projection stays in 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A matrix product: (m x k) times (k x n)."""

    name: str
    m: Floats
    n: Floats
    k: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A causal attention kernel; ``flop`` is the work done, mask respected."""

    name: str
    flop: Floats
    seq_len: Floats
    head_dim: int
    forward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Memory-bound kernels: they cost the bytes they move."""

    name: str
    moved_bytes: Floats
    kernels: int
    rate: str = "hbm"
    """"hbm", or one of FSDP's copies: "copy_out", "copy_in"."""


Operation = Gemm | Attention | Stream

BYTES = 2.0  # activations are 16-bit; fp8 keeps them so outside its products


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Reads plus writes of a 16-bit tensor, and kernels, forward and backward."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int


# Counted tensor by tensor. Eager RMSNorm, for instance, casts (1 read, 2 writes in fp32 units of 16 bit), squares
# (2+2), averages (2), scales (2+2), casts back (2+1) and multiplies by its weight (1+1): 18. A compiler or a fused
# kernel reads once and writes once, and keeps the residual sum on the way.
_PASSES: dict[Kernels, dict[str, _Passes]] = {
    "eager": {
        "rmsnorm": _Passes(forward=18, backward=30, forward_kernels=7, backward_kernels=14),
        "layernorm": _Passes(forward=2, backward=5, forward_kernels=1, backward_kernels=2),
        "rope": _Passes(forward=10, backward=10, forward_kernels=3, backward_kernels=4),
        "alibi": _Passes(forward=0, backward=0, forward_kernels=0, backward_kernels=0),
        "learned": _Passes(forward=0, backward=0, forward_kernels=0, backward_kernels=0),
        "swiglu": _Passes(forward=5, backward=9, forward_kernels=2, backward_kernels=3),
        "gelu": _Passes(forward=2, backward=3, forward_kernels=1, backward_kernels=1),
        "relu2": _Passes(forward=4, backward=6, forward_kernels=2, backward_kernels=2),
        "residual": _Passes(forward=3, backward=3, forward_kernels=1, backward_kernels=1),
        "loss": _Passes(forward=7, backward=9, forward_kernels=4, backward_kernels=4),
    },
    "compiled": {
        "rmsnorm": _Passes(forward=2, backward=5, forward_kernels=1, backward_kernels=2),
        "layernorm": _Passes(forward=2, backward=5, forward_kernels=1, backward_kernels=2),
        "rope": _Passes(forward=2, backward=2, forward_kernels=1, backward_kernels=1),
        "alibi": _Passes(forward=0, backward=0, forward_kernels=0, backward_kernels=0),
        "learned": _Passes(forward=0, backward=0, forward_kernels=0, backward_kernels=0),
        "swiglu": _Passes(forward=3, backward=5, forward_kernels=1, backward_kernels=1),
        "gelu": _Passes(forward=2, backward=3, forward_kernels=1, backward_kernels=1),
        "relu2": _Passes(forward=2, backward=3, forward_kernels=1, backward_kernels=1),
        "residual": _Passes(forward=2, backward=1, forward_kernels=0, backward_kernels=0),
        "loss": _Passes(forward=3, backward=3, forward_kernels=2, backward_kernels=1),
    },
}
_PASSES["fused"] = _PASSES["compiled"] | {
    "residual": _Passes(forward=3, backward=1, forward_kernels=1, backward_kernels=0),
}


def _projections(model: Model, s: Shapes, kernels: Kernels) -> list[tuple[str, Floats, Floats]]:
    """(name, output columns, inner size) of a layer's linear maps on one tensor-parallel rank."""
    q = model.q_width / s.tp
    # a rank keeps at least one key-value head
    kv = np.maximum(model.kv_width / s.tp, float(model.head_dim))
    hidden = np.full_like(s.tp, float(model.hidden))
    ffn = model.ffn / s.tp
    qkv = (
        [("qkv", q + 2 * kv, hidden)]
        if kernels == "fused"
        else [("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden)]
    )
    up = [("gate", ffn, hidden), ("up", ffn, hidden)] if model.mlp == "swiglu" else [("up", ffn, hidden)]
    return [*qkv, ("attention_out", hidden, q), *up, ("down", hidden, ffn)]


def _streams(model: Model, s: Shapes, kernels: Kernels, backward: bool) -> list[Operation]:
    """The memory-bound kernels of a layer."""
    table = _PASSES[kernels]
    norm_bytes = s.norm_tokens * model.hidden * BYTES
    qk_bytes = s.tokens * (model.q_width + model.kv_width) / s.tp * BYTES
    ffn_bytes = s.tokens * model.ffn / s.tp * BYTES
    parts = [
        ("norm", model.norm, 2 * norm_bytes, 2),
        (model.positions, model.positions, qk_bytes, 2),
        (model.mlp, model.mlp, ffn_bytes, 1),
        ("residual", "residual", 2 * norm_bytes, 2),
    ]
    streams: list[Operation] = []
    for name, key, tensor_bytes, times in parts:
        passes = table[key]
        count = passes.backward if backward else passes.forward
        launched = passes.backward_kernels if backward else passes.forward_kernels
        if count:
            streams.append(Stream(name=name, moved_bytes=count * tensor_bytes, kernels=launched * times))
    return streams


def _attention(model: Model, s: Shapes, forward: bool) -> Attention:
    """The causal kernel of one rank.

    Formula: forward 2 * b * heads/tp * seq^2 * head_dim / cp; backward 2.5 times that
    Where:   two products of 2 * seq^2 * head_dim, halved by the mask; context parallelism deals head and tail
             blocks to each rank, so that every rank does the same share
    Source:  FlashAttention-2 (arXiv 2307.08691): the backward pass has five products for the forward's two
    """
    work = 2.0 * s.sequences * (model.heads / s.tp) * s.seq_len**2 * model.head_dim / s.cp
    return Attention(
        name="attention",
        flop=work if forward else 2.5 * work,
        seq_len=s.kv_block,
        head_dim=model.head_dim,
        forward=forward,
    )


def _casts(model: Model, s: Shapes, kernels: Kernels, times: int) -> list[Operation]:
    """fp8 products read 8-bit copies: each operand is read in 16 bit and written in 8."""
    operands = sum(s.tokens * inner + out * inner for _, out, inner in _projections(model, s, kernels))
    moved = 3.0 * times * operands * s.eight_bit
    return [Stream(name="fp8_cast", moved_bytes=moved, kernels=0)] if np.any(s.eight_bit) else []


def layer_forward(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """One decoder layer, forward."""
    gemms: list[Operation] = [
        Gemm(name=n, m=s.tokens, n=out, k=inner) for n, out, inner in _projections(model, s, kernels)
    ]
    casts = _casts(model, s, kernels, 1)
    return [*gemms, *casts, _attention(model, s, forward=True), *_streams(model, s, kernels, backward=False)]


def layer_backward_input(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """One decoder layer, backward with respect to its input: data gradients, attention, memory-bound kernels."""
    gemms: list[Operation] = [
        Gemm(name=f"{n}_dgrad", m=s.tokens, n=inner, k=out) for n, out, inner in _projections(model, s, kernels)
    ]
    casts = _casts(model, s, kernels, 1)
    return [*gemms, *casts, _attention(model, s, forward=False), *_streams(model, s, kernels, backward=True)]


def layer_backward_weight(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """One decoder layer, backward with respect to its weights."""
    return [Gemm(name=f"{n}_wgrad", m=out, n=inner, k=s.tokens) for n, out, inner in _projections(model, s, kernels)]


def embedding_forward(model: Model, s: Shapes) -> list[Operation]:
    """The lookup: read the rows, write the activations."""
    return [Stream(name="embedding", moved_bytes=2 * s.tokens * model.hidden * BYTES, kernels=1)]


def embedding_backward(model: Model, s: Shapes) -> list[Operation]:
    """The dense gradient of the table is cleared and added into."""
    table = model.vocab * model.hidden / s.tp
    return [Stream(name="embedding", moved_bytes=(2 * s.tokens * model.hidden + 2 * table) * BYTES, kernels=2)]


def head_forward(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """Final norm, output projection and loss; the vocabulary is cut by tp (loss parallel)."""
    vocab = model.vocab / s.tp
    norm, loss = _PASSES[kernels][model.norm], _PASSES[kernels]["loss"]
    hidden = np.full_like(s.tp, float(model.hidden))
    return [
        Stream(name="norm", moved_bytes=norm.forward * s.norm_tokens * hidden * BYTES, kernels=norm.forward_kernels),
        Gemm(name="logits", m=s.tokens, n=vocab, k=hidden),
        Stream(name="loss", moved_bytes=loss.forward * s.tokens * vocab * BYTES, kernels=loss.forward_kernels),
    ]


def head_backward(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """Backward of loss, output projection and final norm."""
    vocab = model.vocab / s.tp
    norm, loss = _PASSES[kernels][model.norm], _PASSES[kernels]["loss"]
    hidden = np.full_like(s.tp, float(model.hidden))
    return [
        Stream(name="loss", moved_bytes=loss.backward * s.tokens * vocab * BYTES, kernels=loss.backward_kernels),
        Gemm(name="logits_dgrad", m=s.tokens, n=hidden, k=vocab),
        Gemm(name="logits_wgrad", m=vocab, n=hidden, k=s.tokens),
        Stream(name="norm", moved_bytes=norm.backward * s.norm_tokens * hidden * BYTES, kernels=norm.backward_kernels),
    ]


# AdamW on fp32 states: reads parameter, gradient and two moments, writes parameter and two moments (28 bytes);
# the gradient norm reads the gradient once and clipping rewrites it (12 bytes).
OPTIMIZER_BYTES_PER_PARAMETER = 40.0


def optimizer(parameters: Floats) -> list[Operation]:
    """AdamW over the parameters a rank owns."""
    return [Stream(name="adamw", moved_bytes=OPTIMIZER_BYTES_PER_PARAMETER * parameters, kernels=8)]
