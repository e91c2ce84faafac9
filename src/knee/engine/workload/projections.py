"""The linear maps of a decoder layer on one rank: attention's, those of a dense MLP, and those of experts.

A model with and without experts in its layers has the mean layer here: a map that only some layers have counts by their
share. ``layer_kinds`` gives a model for each of the two, and chunks of layers are put together from both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from knee.base.arrays import Floats
from knee.engine.workload.shapes import Shapes
from knee.specs.model import Experts, LatentAttention, Model
from knee.specs.profile import MEGATRON_KERNELS, Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix that rows are multiplied with, or several alike at once: the experts of a rank."""

    name: str
    rows: Floats
    """Of each product."""
    out: Floats
    inner: Floats
    count: Floats | float = 1.0
    """Products that one kernel does together."""
    times: float = 1.0
    """Share of the layers that have it."""

    grouped: bool = False
    """Whether it is the experts', of whatever number."""

    @property
    def weights(self) -> Floats:
        """Elements of its matrices, mean over layers."""
        return self.times * self.count * self.out * self.inner


def projections(model: Model, s: Shapes, kernels: Kernels) -> list[Projection]:
    """All of a layer's, in the order of the forward pass."""
    sparse = expert_share(model)
    maps = (
        _attention(model, s, kernels) if model.latent_attention is None else _latent(model, model.latent_attention, s)
    )
    if sparse < 1.0:
        maps += _mlp(model, s, s.tokens, model.ffn / s.tp, times=1.0 - sparse)
    if model.experts is not None:
        maps += _experts(model, model.experts, s, sparse)
    return maps


def expert_share(model: Model) -> float:
    """Share of the layers of a step that have experts; those of multi-token prediction do."""
    return 0.0 if model.experts is None else (model.expert_layers + model.mtp_layers) / model.walked_layers


def layer_kinds(model: Model) -> tuple[Model, Model] | None:
    """The model as if no layer had experts, and as if all had; None where its layers are alike."""
    return None if model.experts is None or model.expert_layers == model.layers else _kinds(model)


@lru_cache(maxsize=64)
def _kinds(model: Model) -> tuple[Model, Model]:
    assert model.experts is not None
    everywhere = replace(model.experts, dense_layers=0, every=1)
    return replace(model, experts=None), replace(model, experts=everywhere)


def _attention(model: Model, s: Shapes, kernels: Kernels) -> list[Projection]:
    q = model.q_width / s.tp
    # a rank keeps at least one key-value head
    kv = np.maximum(model.kv_width / s.tp, model.head_dim)
    hidden = np.full_like(s.tp, model.hidden)
    inputs = [("qkv", q + 2 * kv)] if kernels in MEGATRON_KERNELS else [("q", q), ("k", kv), ("v", kv)]
    maps = [Projection(name=name, rows=s.tokens, out=out, inner=hidden) for name, out in inputs]
    return [*maps, Projection(name="attention_out", rows=s.tokens, out=hidden, inner=q)]


def _latent(model: Model, latent: LatentAttention, s: Shapes) -> list[Projection]:
    """Down to the narrow vectors, which tensor parallelism does not split, and up to the heads, which it does.

    Source:  DeepSeek-V2 (arXiv 2405.04434), section 2.1; Megatron-LM, multi_latent_attention.py: down projections work
             on the tokens of sequence parallelism
    """
    hidden, heads = np.full_like(s.tp, model.hidden), model.heads / s.tp
    q = heads * (latent.nope_size + latent.rope_size)
    kv_rank = np.full_like(s.tp, float(latent.kv_rank))
    maps = []
    if latent.q_rank:
        q_rank = np.full_like(s.tp, float(latent.q_rank))
        maps.append(Projection(name="q_down", rows=s.norm_tokens, out=q_rank, inner=hidden))
        maps.append(Projection(name="q_up", rows=s.tokens, out=q, inner=q_rank))
    else:
        maps.append(Projection(name="q", rows=s.tokens, out=q, inner=hidden))
    return [
        *maps,
        Projection(name="kv_down", rows=s.norm_tokens, out=kv_rank + latent.rope_size, inner=hidden),
        Projection(name="kv_up", rows=s.tokens, out=heads * (latent.nope_size + latent.value_size), inner=kv_rank),
        Projection(name="attention_out", rows=s.tokens, out=hidden, inner=heads * latent.value_size),
    ]


def _mlp(model: Model, s: Shapes, rows: Floats, ffn: Floats, times: float, prefix: str = "") -> list[Projection]:
    hidden = np.full_like(s.tp, model.hidden)
    up = ("gate", "up") if model.gated else ("up",)
    maps = [Projection(name=f"{prefix}{name}", rows=rows, out=ffn, inner=hidden, times=times) for name in up]
    return [*maps, Projection(name=f"{prefix}down", rows=rows, out=hidden, inner=ffn, times=times)]


def _experts(model: Model, experts: Experts, s: Shapes, share: float) -> list[Projection]:
    """Router, shared experts and the routed experts of the busiest rank, whose gate and up are one product."""
    hidden, ffn = np.full_like(s.tp, model.hidden), experts.ffn / s.etp
    local = experts.count / s.ep
    rows = routed_rows(experts, s) / local
    count = np.full_like(s.tp, float(experts.count))
    maps = [Projection(name="router", rows=s.norm_tokens, out=count, inner=hidden, times=share)]
    if experts.shared_ffn:
        maps += _mlp(model, s, s.tokens, experts.shared_ffn / s.tp, share, prefix="shared_")
    up = 2.0 * ffn if model.gated else ffn
    return [
        *maps,
        Projection(name="experts_up", rows=rows, out=up, inner=hidden, count=local, times=share, grouped=True),
        Projection(name="experts_down", rows=rows, out=hidden, inner=ffn, count=local, times=share, grouped=True),
    ]


def routed_rows(experts: Experts, s: Shapes) -> Floats:
    """Rows that the experts of the busiest rank compute: each token counts once for each of its experts. Ranks that
    split an expert compute the tokens of all of them."""
    return s.norm_tokens * experts.top_k * s.etp * s.busiest
