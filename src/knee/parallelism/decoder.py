"""A Llama decoder, or a pipeline stage's part of one, from the same spec that is simulated.

Weights have the names and shapes of ``workload.parameters``. Query, key and value (and gate and up) are weights of
their own: a tensor-parallel rank then holds whole heads by cutting rows, and FSDP2 pads what the simulator pads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from knee.parallelism.context_parallel import causal_attention
from knee.parallelism.loss import cross_entropy
from knee.parallelism.tensor_parallel import CUT_DIM, Whole
from knee.specs.model import Model

EPS = 1e-5
STD = 0.02


class DecoderBlock(nn.Module):
    """One decoder layer on one tensor-parallel rank."""

    def __init__(self, model: Model, tp: Whole, attend: Callable[..., Any], dtype: Any) -> None:
        super().__init__()
        self.head_dim, self.tp, self.attend = model.head_dim, tp, attend
        h, f = model.hidden, model.ffn // tp.size
        q, kv = model.q_width // tp.size, model.kv_width // tp.size

        def weight(*shape: int) -> Any:
            return nn.Parameter(torch.empty(shape, dtype=dtype))

        self.attention_norm, self.mlp_norm = weight(h), weight(h)
        self.wq, self.wk, self.wv, self.wo = weight(q, h), weight(kv, h), weight(kv, h), weight(h, q)
        self.w1, self.w3, self.w2 = weight(f, h), weight(f, h), weight(h, f)
        self.run: Callable[..., Any] = self.body
        """``body``, or what recomputation and compilation made of it."""

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """(batch, sequence, hidden) in and out."""
        return self.run(x, cos, sin)

    def body(self, x: Any, cos: Any, sin: Any) -> Any:
        """Attention and MLP, each with a norm before and a residual around it."""
        y = self.tp.enter(rms_norm(x, self.attention_norm))
        batch, tokens, _ = y.shape
        q, k, v = (linear(y, w).view(batch, tokens, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        a = self.attend(rope(q, cos, sin), rope(k, cos, sin), v)
        x = x + self.tp.leave(linear(a.reshape(batch, tokens, -1), self.wo))
        y = self.tp.enter(rms_norm(x, self.mlp_norm))
        return x + self.tp.leave(linear(functional.silu(linear(y, self.w1)) * linear(y, self.w3), self.w2))


class Decoder(nn.Module):
    """Some layers, with the embedding where they are the first and with head and loss where they are the last."""

    def __init__(
        self,
        model: Model,
        *,
        layers: range,
        tp: Whole | None = None,
        attend: Callable[..., Any] = causal_attention,
        state_dtype: Any = torch.float32,
        compute_dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        self.model, self.tp, self.compute_dtype = model, tp or Whole(), compute_dtype
        self.first, self.last = layers.start == 0, layers.stop == model.layers
        rows = model.vocab // self.tp.size
        if self.first:
            self.embedding = nn.Parameter(torch.empty(rows, model.hidden, dtype=state_dtype))
        self.blocks = nn.ModuleDict({str(i): DecoderBlock(model, self.tp, attend, state_dtype) for i in layers})
        if self.last:
            self.norm = nn.Parameter(torch.empty(model.hidden, dtype=state_dtype))
            if not model.tied_embeddings:
                self.output = nn.Parameter(torch.empty(rows, model.hidden, dtype=state_dtype))
        self.turn: tuple[Any, Any] = (None, None)
        """Cosines and sines of this rank's positions."""
        self.loss: Callable[..., Any] = cross_entropy

    def forward(self, x: Any, labels: Any = None) -> Any:
        """Tokens (first stage) or activations -> activations, or the mean loss (last stage)."""
        if self.first:
            x = self.tp.leave(self.tp.lookup(x, self.embedding).to(self.compute_dtype))
        for block in self.blocks.values():
            x = block(x, *self.turn)
        if not self.last:
            return x
        y = self.tp.enter(rms_norm(x, self.norm))
        head = self.embedding if self.model.tied_embeddings else self.output
        return self.loss(linear(y, head), labels, self.tp.vocabulary)


def linear(x: Any, weight: Any) -> Any:
    """A product in x's type: weights that are kept in another (and that FSDP has not cast) are cast here."""
    return functional.linear(x, weight.to(x.dtype))


def rms_norm(x: Any, weight: Any) -> Any:
    """torch's own kernel; inside it computes in fp32."""
    return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), EPS)


def rope_table(positions: Any, model: Model, device: Any, dtype: Any) -> tuple[Any, Any]:
    """Cosines and sines, (1, sequence, 1, head_dim / 2)."""
    head_dim = model.head_dim
    frequencies = model.rope_base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(positions.double(), frequencies)[None, :, None, :]
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """Turn pairs of features (i, i + head_dim / 2) by their position's angle."""
    return turned(x, cos, sin) if torch.compiler.is_compiling() else _Turn.apply(x, cos, sin)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """The formula, which compiled code fuses into one kernel."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class _Turn(torch.autograd.Function):
    """The formula in four kernels; backward turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, sin, -1.0), None, None


def _turn(x: Any, cos: Any, sin: Any, way: float) -> Any:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (a, b), (left, right) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=left)
    torch.mul(b, cos, out=right)
    left.addcmul_(b, sin, value=-way)
    right.addcmul_(a, sin, value=way)
    return out


def full_shape(name: str, shape: torch.Size, tp: int) -> list[int]:
    """A weight's shape before tensor parallelism cut it."""
    whole = list(shape)
    cut = CUT_DIM.get(name.rsplit(".", 1)[-1])
    if cut is not None:
        whole[cut] *= tp
    return whole


def initial(name: str, shape: list[int], *, layers: int, seed: int, device: Any) -> Any:
    """A whole weight's first values, in fp32: a function of its name and the seed, whatever the layout."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf.endswith("norm"):
        return torch.ones(shape, device=device)
    std = STD / (2 * layers) ** 0.5 if leaf in ("wo", "w2") else STD
    generator = torch.Generator(device).manual_seed((seed << 32) + zlib.crc32(name.encode()))
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)
