"""A decoder, or a pipeline stage's part of one, from the same spec that is simulated.

Weights have the names and shapes of ``workload.parameters``. Query, key and value (and gate and up) are weights of
their own: a tensor-parallel rank then holds whole heads by cutting rows, and FSDP2 pads what the simulator pads.
Experts, latent attention and norms of queries and keys are parts of a block where the model has them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from knee.specs.model import Model
from knee.training.parallelism.context_parallel import causal_attention
from knee.training.parallelism.expert_parallel import Here
from knee.training.parallelism.experts import MixtureOfExperts, RoutingRules
from knee.training.parallelism.fp8.linear import Fp8Rules, fp8_products, quantized_weights
from knee.training.parallelism.layer_functions import linear, rms_norm, rope
from knee.training.parallelism.tensor_parallel import CUT_DIM, Whole
from knee.training.parallelism.torch_internals import NamedGroup, all_reduce

# Multi-head latent attention: queries, keys and values from narrow vectors of each token (DeepSeek-V2, V3). With
# tensor parallelism a rank has whole heads. The narrow vectors are made of a rank's own tokens and cross the group
# instead of the wide ones.


class LatentProjections(nn.Module):
    """The weights of one layer's attention but its output projection."""

    def __init__(self, model: Model, tp: Any, attend: Callable[..., Any], *, pads_values: bool, dtype: Any) -> None:
        """``pads_values``: values are narrower than keys, which torch's flash kernels do not take."""
        super().__init__()
        latent = model.latent_attention
        assert latent is not None
        self.spec, self.tp, self.attend, self.head_dim = latent, tp, attend, model.head_dim
        self.eps = model.norm_eps
        self.missing = max(0, self.head_dim - latent.value_size) if pads_values else 0
        heads = model.heads // tp.size

        def weight(*shape: int) -> Any:
            return nn.Parameter(torch.empty(shape, dtype=dtype))

        if latent.q_rank:
            self.wq_a, self.q_a_norm = weight(latent.q_rank, model.hidden), weight(latent.q_rank)
            self.wq_b = weight(heads * self.head_dim, latent.q_rank)
        else:
            self.wq = weight(heads * self.head_dim, model.hidden)
        self.wkv_a, self.kv_a_norm = weight(latent.kv_rank + latent.rope_size, model.hidden), weight(latent.kv_rank)
        self.wkv_b = weight(heads * (latent.nope_size + latent.value_size), latent.kv_rank)

    def forward(self, y: Any, cos: Any, sin: Any) -> Any:
        """Normed activations of this rank's tokens -> its heads' values for the whole sequence, heads joined."""
        spec = self.spec
        narrow, shared_key = linear(y, self.wkv_a).split((spec.kv_rank, spec.rope_size), dim=-1)
        parts = [rms_norm(narrow, self.kv_a_norm, self.eps), shared_key]
        if spec.q_rank:
            parts.append(rms_norm(linear(y, self.wq_a), self.q_a_norm, self.eps))
        narrow, shared_key, *queries = self._enter(parts)
        q = linear(queries[0], self.wq_b) if queries else linear(self.tp.enter(y), self.wq)
        batch, tokens, _ = narrow.shape
        q_plain, q_turned = q.view(batch, tokens, -1, self.head_dim).split((spec.nope_size, spec.rope_size), dim=-1)
        k_and_v = linear(narrow, self.wkv_b).view(batch, tokens, -1, spec.nope_size + spec.value_size)
        k_plain, v = k_and_v.split((spec.nope_size, spec.value_size), dim=-1)
        k_turned = rope(shared_key.unsqueeze(2), cos, sin).expand(-1, -1, k_plain.shape[2], -1)
        q = torch.cat((q_plain, rope(q_turned, cos, sin)), dim=-1)
        k = torch.cat((k_plain, k_turned), dim=-1)
        padded = functional.pad(v, (0, self.missing)) if self.missing else v
        return self.attend(q, k, padded)[..., : v.shape[-1]].reshape(batch, tokens, -1)

    def _enter(self, parts: list[Any]) -> Any:
        """All narrow vectors in one message."""
        if self.tp.size == 1:
            return parts
        return self.tp.enter(torch.cat(parts, dim=-1)).split([part.shape[-1] for part in parts], dim=-1)


# Cross entropy that never holds the logits in fp32, on one rank or with the vocabulary cut over several.

ROWS = 1024
"""Tokens whose logits are in fp32 at once; compiled code fuses the cast and takes all of them."""


def cross_entropy(logits: Any, target: Any, vocabulary: NamedGroup | None) -> Any:
    """Mean over tokens, in fp32. With a group, each rank has the logits of its part of the vocabulary."""
    return _CrossEntropy.apply(logits.flatten(0, 1), target.flatten(), vocabulary)


def _rows(tokens: int) -> int:
    return tokens if torch.compiler.is_compiling() else ROWS


def _own(target: Any, width: int, vocabulary: NamedGroup | None) -> tuple[Any, Any]:
    """Targets as columns of this rank's logits, and which of them it has."""
    local = target - (vocabulary.rank * width if vocabulary else 0)
    here = (local >= 0) & (local < width)
    return local.masked_fill(~here, 0), here


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, vocabulary: NamedGroup | None) -> Any:
        tokens, width = logits.shape
        column, here = _own(target, width, vocabulary)
        top = logits.amax(-1).float()
        if vocabulary:
            top = all_reduce(top, vocabulary, "max")
        rows = _rows(tokens)
        sums = [
            (part.float() - high.unsqueeze(-1)).exp().sum(-1)
            for part, high in zip(logits.split(rows), top.split(rows), strict=True)
        ]
        total = torch.cat(sums) if len(sums) > 1 else sums[0]
        picked = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1).float().masked_fill(~here, 0.0)
        if vocabulary:
            total, picked = all_reduce(torch.stack((total, picked)), vocabulary).unbind(0)
        normaliser = total.log() + top
        ctx.save_for_backward(logits, column, here, normaliser)
        return (normaliser - picked).mean()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        logits, column, here, normaliser = ctx.saved_tensors
        each = grad / logits.shape[0]
        rows = _rows(logits.shape[0])
        parts = [
            ((part.float() - high.unsqueeze(-1)).exp() * each).to(logits.dtype)
            for part, high in zip(logits.split(rows), normaliser.split(rows), strict=True)
        ]
        out = torch.cat(parts) if len(parts) > 1 else parts[0]
        # softmax less one at the target, where this rank has it
        one = (here * each).to(logits.dtype).unsqueeze(-1)
        return out.scatter_add(-1, column.unsqueeze(-1), -one), None, None


STD = 0.02
LAST = ("wo", "w2", "shared_w2", "expert_out")
"""Weights whose results are added to the residual stream."""
BIAS_OF = {"wq": "bq", "wk": "bk", "wv": "bv", "wo": "bo", "w1": "b1", "w3": "b3", "w2": "b2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a block's parts work with."""

    tp: Whole = field(default_factory=Whole)
    attend: Callable[..., Any] = causal_attention
    pads_values: bool = True
    """Values of latent attention are padded to the width of its keys."""
    exchange: Here = field(default_factory=Here)
    """How rows come to their experts."""
    routing: RoutingRules = field(default_factory=RoutingRules)
    state_dtype: Any = torch.float32
    fp8: Fp8Rules | None = None


class DecoderBlock(nn.Module):
    """One decoder layer on one tensor-parallel rank."""

    def __init__(self, model: Model, layer: int, parts: Parts) -> None:
        super().__init__()
        tp, dtype = parts.tp, parts.state_dtype
        self.head_dim, self.tp, self.attend, self.eps = model.head_dim, tp, parts.attend, model.norm_eps
        h, f = model.hidden, model.ffn // tp.size

        def weight(*shape: int) -> Any:
            return nn.Parameter(torch.empty(shape, dtype=dtype))

        self.attention_norm, self.mlp_norm = weight(h), weight(h)
        self.latent = self.moe = self.q_norm = self.k_norm = None
        self.bq = self.bk = self.bv = self.bo = self.b1 = self.b3 = self.b2 = None
        if model.latent_attention is not None:
            value = model.heads * model.latent_attention.value_size // tp.size
            self.latent = LatentProjections(model, tp, parts.attend, pads_values=parts.pads_values, dtype=dtype)
            self.wo = weight(h, value)
        else:
            q, kv = model.q_width // tp.size, model.kv_width // tp.size
            self.wq, self.wk, self.wv, self.wo = weight(q, h), weight(kv, h), weight(kv, h), weight(h, q)
            if model.qkv_bias:
                self.bq, self.bk, self.bv = weight(q), weight(kv), weight(kv)
        if model.attention_output_bias:
            self.bo = weight(h)
        if model.qk_norm == "head":
            self.q_norm, self.k_norm = weight(self.head_dim), weight(self.head_dim)
        if model.experts is not None and model.experts.has_experts(layer):
            self.moe = MixtureOfExperts(model, tp, parts.exchange, parts.routing, dtype)
        else:
            self.w1, self.w3, self.w2 = weight(f, h), weight(f, h), weight(h, f)
            if model.mlp_bias:
                self.b1, self.b3, self.b2 = weight(f), weight(f), weight(h)
        self.quantized = quantized_weights(self, parts.fp8) if parts.fp8 else None
        self.run: Callable[..., Any] = self.body
        """``body``, or what recomputation and compilation made of it."""

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """(batch, sequence, hidden) in and out."""
        return self.run(x, cos, sin)

    def body(self, x: Any, cos: Any, sin: Any) -> Any:
        """Attention and MLP, each with a norm before and a residual around it."""
        y = rms_norm(x, self.attention_norm, self.eps)
        a = self.latent(y, cos, sin) if self.latent is not None else self._attention(y, cos, sin)
        x = x + self._out(a, "wo")
        y = rms_norm(x, self.mlp_norm, self.eps)
        if self.moe is not None:
            return x + self.moe(y)
        gate, up = self._into(y, "w1", "w3")
        return x + self._out(functional.silu(gate) * up, "w2")

    def _into(self, y: Any, *names: str) -> tuple[Any, ...]:
        """Products of a block's input with weights whose rows the tensor-parallel group cuts."""
        group = self._gathers(names)
        out = self._products(y if group else self.tp.enter(y), names, enters=group)
        return tuple(self._with_bias(x, name) for x, name in zip(out, names, strict=True))

    def _out(self, y: Any, name: str) -> Any:
        """The product that ends a block's inner part, summed over the tensor-parallel group."""
        group = self._gathers((name,))
        (out,) = self._products(y, (name,), leaves=group)
        # a bias is added once, to what is whole
        return self._with_bias(out if group else self.tp.leave(out), name)

    def _with_bias(self, x: Any, weight: str) -> Any:
        bias = getattr(self, BIAS_OF[weight])
        return x if bias is None else x + bias.to(x.dtype)

    def _gathers(self, names: tuple[str, ...]) -> Any:
        """The group whose parts of the sequence are gathered in fp8."""
        in_fp8 = self.quantized is not None and self.quantized.rules.gathers and self._in_fp8(names)
        return self.tp.gathers_sequence if in_fp8 else None

    def _in_fp8(self, names: tuple[str, ...]) -> bool:
        return self.quantized is not None and self.quantized.names.issuperset(names)

    def _products(self, x: Any, names: tuple[str, ...], **groups: Any) -> tuple[Any, ...]:
        weights = [getattr(self, name) for name in names]
        if self.quantized is None or not self._in_fp8(names):
            return tuple(linear(x, weight) for weight in weights)
        quantized = [self.quantized.of(name, weight) for name, weight in zip(names, weights, strict=True)]
        return fp8_products(x, weights, quantized, self.quantized.rules.recipe, **groups)

    def _attention(self, y: Any, cos: Any, sin: Any) -> Any:
        q, k, v = (x.view(*x.shape[:2], -1, self.head_dim) for x in self._into(y, "wq", "wk", "wv"))
        if self.q_norm is not None:
            q, k = rms_norm(q, self.q_norm, self.eps), rms_norm(k, self.k_norm, self.eps)
        return self.attend(rope(q, cos, sin), rope(k, cos, sin), v).flatten(2)


class Decoder(nn.Module):
    """Some layers, with the embedding where they are the first and with head and loss where they are the last."""

    def __init__(
        self,
        model: Model,
        *,
        layers: range,
        parts: Parts,
        compute_dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        state_dtype = parts.state_dtype
        self.model, self.tp, self.compute_dtype = model, parts.tp, compute_dtype
        self.first, self.last = layers.start == 0, layers.stop == model.layers
        rows = model.vocab // self.tp.size
        if self.first:
            self.embedding = nn.Parameter(torch.empty(rows, model.hidden, dtype=state_dtype))
        self.blocks = nn.ModuleDict({str(i): DecoderBlock(model, i, parts) for i in layers})
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
        y = self.tp.enter(rms_norm(x, self.norm, self.model.norm_eps))
        head = self.embedding if self.model.tied_embeddings else self.output
        return self.loss(linear(y, head), labels, self.tp.vocabulary)


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
    if leaf in BIAS_OF.values() or leaf.endswith("bias"):
        return torch.zeros(shape, device=device)
    std = STD / (2 * layers) ** 0.5 if leaf in LAST else STD
    generator = torch.Generator(device).manual_seed((seed << 32) + zlib.crc32(name.encode()))
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)
