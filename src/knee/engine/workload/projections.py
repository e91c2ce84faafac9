"""What the kernels of a decoder layer depend on, and its linear maps on one rank: of attention, a dense MLP or experts.

A model with and without experts in its layers has the mean layer here: a map that only some layers have counts by their
share. ``layer_kinds`` gives a model for each of the two, and chunks of layers are put together from both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.specs.model import Experts, LatentAttention, Model
from knee.specs.plan import RESHARDING, SHARDINGS
from knee.specs.plan_table import PlanTable
from knee.specs.profile import MEGATRON_KERNELS, Kernels, Profile

BYTES = 2.0  # activations are 16-bit; fp8 and NVFP4 keep them so outside their products


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Shapes:
    """How fp8 layers cast and gather, as columns over plans: 1 where they do, else 0."""

    eight_bit: Floats
    """A layer's products are fp8."""
    rowwise: Floats
    """Each row that a product sums over has a scale of its own."""
    shared_casts: bool
    smallest: int
    forward_scale: float
    state_bytes: Floats
    """Of a parameter as the optimizer keeps it."""
    shards: Floats
    """Ranks that share a weight under FSDP; else 1."""
    gathered: Floats
    """Weights are cast by their shards and gathered in fp8."""
    reshards: Floats
    """They are, in every pass."""
    casts_gathered: Floats
    """Weights are gathered in 16 bit, and cast in every forward."""
    gathers_tokens: Floats
    """Sequence parallelism gathers activations and gradients in fp8."""

    @property
    def columns(self) -> list[Floats]:
        """Columns of which rows with equal values cast alike."""
        return [value for f in fields(self) if isinstance(value := getattr(self, f.name), np.ndarray)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes that the plan gives to the kernels of a layer."""

    tokens: Floats
    """Tokens of a microbatch on one context-parallel rank."""
    sequences: Floats
    """Sequences of a microbatch."""
    seq_len: Floats
    """Whole sequence, before context parallelism."""
    tp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    kv_block: Floats
    """Keys that one attention kernel sees: the whole sequence, or a ring step's block of it."""
    norm_tokens: Floats
    """Tokens that norms and residuals work on: cut by tp under sequence parallelism."""
    busiest: Floats
    """Tokens that the busiest expert-parallel rank computes, over the mean."""
    permuted_rows: Floats
    """Tokens that are put into the order of their experts and back, on both sides of the network."""
    preprocess_kernels: Floats
    """Kernels of the router that the dispatcher has in a kernel of its own."""
    eight_bit: Floats
    """1 where a layer's products are fp8, else 0; the output projection stays in 16 bit."""
    four_bit: Floats
    """1 where they are NVFP4, else 0."""
    casts_narrow: Floats
    """1 where fp8 or NVFP4 weights are cast in every pass, because each pass gathers them in 16 bit; else their copy is
    kept."""
    casts: Floats
    """1 where every forward casts whole fp32 weights and every backward their gradients, else 0."""
    fp8: Fp8Shapes | None = None
    """None if no plan has fp8 layers."""


def on_one_gpu(profile: Profile | None, table: PlanTable) -> Bools:
    """Plans of one GPU that run under FSDP2, because it was asked for by name."""
    if profile is None or not np.any(profile.fsdp_on_one_gpu):
        return np.zeros(len(table), dtype=np.bool_)
    asked = np.isin(table.sharding, [SHARDINGS.index(mode) for mode in RESHARDING])
    return np.asarray(asked & (table.gpus == 1) & profile.fsdp_on_one_gpu, dtype=np.bool_)


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
