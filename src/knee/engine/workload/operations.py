"""The kernels of one step: matrix products, attention and memory-bound kernels, as columns over shapes.

Every dimension may be a column, so one description serves one plan and a hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.workload.fp8_layers import Casts, layer_casts, product_scale, wide_products
from knee.engine.workload.parameters import causal_keys, kernel_keys
from knee.engine.workload.projections import BYTES, Projection, Shapes, expert_share, projections, routed_rows
from knee.specs.constants import constant, passes_of
from knee.specs.hardware import GemmType
from knee.specs.model import Experts, Model
from knee.specs.plan_table import PlanTable
from knee.specs.profile import MEGATRON_KERNELS, Kernels

# The memory-bound kernels of a layer with experts: the router, the order of tokens, activations.

ROUTER_BYTES = 4.0  # logits of the router are fp32 in all stacks


def expert_streams(model: Model, experts: Experts, s: Shapes) -> list[tuple[str, str, Floats, float]]:
    """(name, operation of ``kernels.toml``, bytes of the tensor that it reads or writes, how many), mean over layers.

    Where:   tokens are put into the order of their experts before the products and back after them; the bias of an
             expert's output is weighted with the router's probability of each token
    """
    share, rows = expert_share(model), routed_rows(experts, s)
    streams = [
        ("router", "router", share * s.norm_tokens * experts.count * ROUTER_BYTES, share),
        ("permute", "permute", share * s.permuted_rows * model.hidden * BYTES, share),
        (f"experts_{model.mlp}", model.mlp, share * rows * experts.ffn / s.etp * BYTES, share),
    ]
    if model.biases or model.mlp_bias:
        streams.append(("experts_bias", "expert_bias", share * rows * model.hidden * BYTES, share))
    if experts.shared_ffn:
        streams.append((f"shared_{model.mlp}", model.mlp, share * s.tokens * experts.shared_ffn / s.tp * BYTES, share))
    return streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A matrix product: (m x k) times (k x n)."""

    name: str
    m: Floats
    n: Floats
    k: Floats
    times: float = 1.0
    """How often the mean layer has it."""
    wide: Bools | None = None
    """Where it stays in 16 bit, whatever the plan's other products are; None: nowhere."""
    scale: Floats | float = 1.0
    """Its rate over that of other products of its type."""

    @property
    def flop(self) -> Floats:
        """Multiplications and additions."""
        return self.times * 2.0 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm:
    """The products of all experts of a rank in one kernel: (tokens x k) times (k x n) of each, or with ``weights`` the
    gradients of their (k x n) weights."""

    name: str
    experts: Floats
    tokens: Floats
    """Of one expert."""
    n: Floats
    k: Floats
    weights: bool = False
    times: float = 1.0

    @property
    def flop(self) -> Floats:
        """Multiplications and additions."""
        return self.times * 2.0 * self.experts * self.tokens * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A causal attention kernel; ``flop`` is the work done, mask respected."""

    name: str
    flop: Floats
    seq_len: Floats
    """Keys that a query sees at most; the rate of a kernel depends on it."""
    rows: Floats
    """Queries, over heads and sequences."""
    head_dim: int
    forward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """Memory-bound kernels: they cost the bytes they move."""

    name: str
    moved_bytes: Floats
    kernels: float | Floats
    rate: str = "hbm"
    """"hbm", one of FSDP's copies ("copy_out", "copy_in"; "copy_alone", "copy_in_alone" on one GPU), or "experts"."""


Operation = Gemm | GroupedGemm | Attention | MemoryBound

FP8_COPY_BYTES = 4.0  # read in 16 bit and written in 8 twice, as it is and transposed
NVFP4_BYTES = 0.5 + 1 / 16  # an element, with its share of a scale of one byte for 16
OPERAND_BYTES: dict[GemmType, float] = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128, "nvfp4": NVFP4_BYTES}
"""Bytes of an operand's element by the type of a matrix product, with its share of a scale: fp32 for 128 elements of
block fp8, one byte for 16 of NVFP4."""
_NVFP4_KERNELS = 3  # the largest element, the cast by rows, the transform and cast by columns
OUTER_STATE_BYTES = 4.0  # an outer optimizer's states are fp32, whatever those of the inner one


def _streams(model: Model, s: Shapes, kernels: Kernels, backward: bool) -> list[Operation]:
    norm_bytes = s.norm_tokens * model.hidden * BYTES
    qk_bytes = s.tokens * (model.q_width + model.kv_width) / s.tp * BYTES
    ffn_bytes = (1.0 - expert_share(model)) * s.tokens * model.ffn / s.tp * BYTES
    parts: list[tuple[str, str, Floats, float]] = [
        ("norm", model.norm, model.layer_norms * norm_bytes, model.layer_norms),
        (model.positions, model.positions, model.rope_frac * qk_bytes, 2),
        (model.mlp, model.mlp, ffn_bytes, 1.0 - expert_share(model)),
        ("residual", "residual", 2 * norm_bytes, 2),
    ]
    if model.qk_norm != "none":
        parts.append(("qk_norm", model.norm, qk_bytes, 2))
    if model.latent_attention is not None:
        narrow = model.latent_attention.kv_rank + model.latent_attention.q_rank
        parts.append(("latent_norm", model.norm, s.norm_tokens * narrow * BYTES, 2))
    if model.experts is not None:
        parts += expert_streams(model, model.experts, s)
    streams: list[Operation] = []
    for name, key, tensor_bytes, times in parts:
        count, launches = passes_of(kernels, key).each(backward=backward)
        launched: Floats | float = launches
        if key == "router" and not backward:
            launched = launched - s.preprocess_kernels
        if count:
            rate = "experts" if key in ("router", "permute") or name.startswith("experts_") else "hbm"
            streams.append(
                MemoryBound(name=name, moved_bytes=count * tensor_bytes, kernels=launched * times, rate=rate)
            )
    return streams


def attention_backward_ratio() -> float:
    """FLOP of attention's backward over those of its forward."""
    return constant("attention", "backward_flop_ratio")


def _attention(model: Model, s: Shapes, forward: bool) -> Attention:
    """The causal kernel of one rank; of layers with and without a window, the mean.

    Formula: forward 2 * b * heads/tp * seq^2 * head_dim / cp; backward 2.5 times that
    Where:   two products of 2 * seq^2 * head_dim (of its two sizes the mean, with latent attention), halved by the
             mask; context parallelism deals head and tail blocks to each rank, so that every rank does the same
             share. A window replaces the mean of seq / 2 keys
    Source:  FlashAttention-2 (arXiv 2307.08691): the backward pass has five products for the forward's two
    """
    width, keys = 1.0 * model.head_dim, s.kv_block
    if model.latent_attention is not None:
        width = (model.head_dim + model.latent_attention.value_size) / 2.0
    work = 2.0 * s.sequences * (model.heads / s.tp) * s.seq_len**2 * width / s.cp
    if model.window:
        work = work * causal_keys(model, s.seq_len) / (s.seq_len / 2.0)
        keys = kernel_keys(model, s.seq_len, s.kv_block)
    flop, rows = work if forward else attention_backward_ratio() * work, s.tokens * (model.heads / s.tp)
    return Attention(name="attention", flop=flop, seq_len=keys, rows=rows, head_dim=model.head_dim, forward=forward)


def _casts(model: Model, s: Shapes, kernels: Kernels, *, backward: bool) -> list[Operation]:
    """The copies that fp8 and NVFP4 products read. fp8 without shared casts: each operand is read in 16 bit and written
    in 8."""
    casts: list[Operation] = []
    if s.fp8 is not None:
        maps = projections(model, s, kernels)
        if s.fp8.shared_casts:
            casts += fp8_casts(layer_casts(maps, s, s.fp8, kernels, backward=backward))
        else:
            operands = sum(p.times * (p.rows + p.out * s.casts_narrow) * p.inner for p in maps if not p.grouped)
            casts.append(MemoryBound(name="fp8_cast", moved_bytes=3.0 * operands * s.eight_bit, kernels=0))
        if model.experts is not None:
            casts.append(_expert_casts([p for p in maps if p.grouped], s, backward=backward))
    if np.any(s.four_bit):
        casts.append(_nvfp4_casts(model, s, kernels, backward=backward))
    return casts


def fp8_casts(of: Casts) -> list[Operation]:
    """Casts of fp8 layers, and the search for the largest elements."""
    return [
        MemoryBound(name="fp8_cast", moved_bytes=of.cast_bytes, kernels=of.cast_kernels),
        MemoryBound(name="fp8_largest", moved_bytes=of.largest_bytes, kernels=of.largest_kernels),
    ]


def _expert_casts(maps: list[Projection], s: Shapes, *, backward: bool) -> MemoryBound:
    """fp8 copies of the experts' inputs (forward) or output gradients (backward), which two products read: by rows and
    by columns. Weights are cast in every pass where each pass gathers them."""
    elements = sum(p.times * p.count * p.rows * (p.out if backward else p.inner) for p in maps)
    weights = sum(p.weights for p in maps) * s.casts_narrow
    moved = (FP8_COPY_BYTES * elements + 3.0 * weights) * s.eight_bit
    return MemoryBound(name="experts_fp8_cast", moved_bytes=moved, kernels=0, rate="experts")


def _nvfp4_casts(model: Model, s: Shapes, kernels: Kernels, *, backward: bool) -> MemoryBound:
    """NVFP4 copies of a layer's inputs (forward) or output gradients (backward).

    Formula: (3 * 2 + 2 * 0.5625) bytes * elements, and (2 * 2 + 0.5625) * weights where they are cast in every pass
    Where:   an input is read for its largest element and for that of its transform, read and written by rows, and
             read, transformed (random Hadamard, 16 x 16) and written by columns for the product of the weight gradient;
             blocks of 1 x 16 have a scale. Weights have blocks of 16 x 16, and no transform
    Source:  arXiv 2509.25149, section 4; Transformer Engine 2.8 (common/hadamard_transform, recipe NVFP4BlockScaling)
    Valid:   later releases cast rows and columns in one reading
    """
    maps = projections(model, s, kernels)
    # fused stacks keep gate and up in one product: their input is cast once, their gradients are two
    cast = [p for p in maps if backward or kernels not in MEGATRON_KERNELS or p.name != "gate"]
    elements = sum(p.times * p.count * p.rows * (p.out if backward else p.inner) for p in cast)
    weights = sum(p.weights for p in maps) * s.casts_narrow
    moved = (3 * BYTES + 2 * NVFP4_BYTES) * elements + (2 * BYTES + NVFP4_BYTES) * weights
    launched = (_NVFP4_KERNELS * len(cast) + 2 * len(maps) * s.casts_narrow) * s.four_bit
    return MemoryBound(name="nvfp4_cast", moved_bytes=moved * s.four_bit, kernels=launched)


def _weight_casts(model: Model, s: Shapes, kernels: Kernels, *, backward: bool) -> list[Operation]:
    """16-bit copies of a layer's fp32 weights, and the casts of their gradients."""
    if not np.any(s.casts):
        return []
    passes, weights = passes_of(kernels, "cast"), projections(model, s, kernels)
    elements = np.asarray(sum(p.weights for p in weights))
    # products, and norms, which no product has
    launched = np.asarray(float(len(weights) + model.layer_norms + (2 if model.qk_norm in ("head", "full") else 0)))
    if s.fp8 is not None and s.fp8.shared_casts and not backward:
        # fp8 copies are made from the states
        wide = wide_products(weights, s.fp8)
        eight = [(p, s.fp8.eight_bit * ~wide[p.name]) for p in weights if not p.grouped]
        elements, launched = elements - sum(p.weights * e for p, e in eight), launched - sum(e for _, e in eight)
    moved = passes.each(backward=backward)[0] * BYTES * elements * s.casts
    return [MemoryBound(name="cast", moved_bytes=moved, kernels=launched * s.casts)]


def _product(p: Projection) -> Operation:
    return _grouped(p) if p.grouped else Gemm(name=p.name, m=p.rows, n=p.out, k=p.inner, times=p.times)


def _grouped(p: Projection) -> GroupedGemm:
    return GroupedGemm(name=p.name, experts=p.count + 0.0 * p.rows, tokens=p.rows, n=p.out, k=p.inner, times=p.times)


def _typed(maps: list[Projection], products: list[Operation], s: Shapes, *, forward: bool) -> list[Operation]:
    """The products with their type and rate in fp8 layers."""
    if s.fp8 is None:
        return products
    wide = wide_products(maps, s.fp8)
    return [
        replace(one, wide=wide.get(p.name), scale=product_scale(s.fp8, wide.get(p.name), forward=forward))
        if isinstance(one, Gemm)
        else one
        for p, one in zip(maps, products, strict=True)
    ]


def layer_forward(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """One decoder layer, forward."""
    maps = projections(model, s, kernels)
    gemms = _typed(maps, [_product(p) for p in maps], s, forward=True)
    casts = [*_casts(model, s, kernels, backward=False), *_weight_casts(model, s, kernels, backward=False)]
    return [*gemms, *casts, _attention(model, s, forward=True), *_streams(model, s, kernels, backward=False)]


def recomputed_ops(model: Model, s: Shapes, kernels: Kernels, *, attention: bool) -> list[Operation]:
    """What the policy "ops" runs again of a layer's forward.

    Where:   outputs of attention and of every second product (the first, the third, ...) are kept; torch stops before
             the down projection, whose output backward does not need. ``attention`` where the kernel is not fused, and
             so not among the operators that are kept
    Source:  pytorch/torchtitan torchtitan/distributed/activation_checkpoint.py: its list of saved operators, "except
             every second mm"
    """
    dropped = {p.name for p in projections(model, s, kernels)[1::2]} - {"down"}
    return [
        one
        for one in layer_forward(model, s, kernels)
        if (one.name in dropped if isinstance(one, Gemm | GroupedGemm) else attention or not isinstance(one, Attention))
    ]


def kept_product_columns(model: Model, s: Shapes, kernels: Kernels) -> Floats:
    """Elements per token of the products' outputs that the policy "ops" keeps, on one tensor-parallel rank."""
    kept = [p.times * p.count * p.rows * p.out / s.tokens for p in projections(model, s, kernels)[::2]]
    return np.asarray(np.sum(kept, axis=0), dtype=np.float64)


def layer_backward_input(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """One decoder layer, backward with respect to its input: data gradients, attention, memory-bound kernels."""
    maps = projections(model, s, kernels)
    gemms = [_product(replace(p, name=f"{p.name}_dgrad", out=p.inner, inner=p.out)) for p in maps]
    gemms = _typed(maps, gemms, s, forward=False)
    casts = _casts(model, s, kernels, backward=True)
    return [*gemms, *casts, _attention(model, s, forward=False), *_streams(model, s, kernels, backward=True)]


def layer_backward_weight(model: Model, s: Shapes, kernels: Kernels) -> list[Operation]:
    """One decoder layer, backward with respect to its weights."""
    maps = projections(model, s, kernels)
    gemms: list[Operation] = [
        replace(_grouped(p), name=f"{p.name}_wgrad", weights=True)
        if p.grouped
        else Gemm(name=f"{p.name}_wgrad", m=p.out, n=p.inner, k=p.rows, times=p.times)
        for p in maps
    ]
    gemms = _typed(maps, gemms, s, forward=False)
    return [*gemms, *_weight_casts(model, s, kernels, backward=True)]


def embedding_forward(model: Model, s: Shapes) -> list[Operation]:
    """The lookup: read the rows, write the activations."""
    return [MemoryBound(name="embedding", moved_bytes=2 * s.tokens * model.hidden * BYTES, kernels=1)]


def embedding_backward(model: Model, s: Shapes) -> list[Operation]:
    """The dense gradient of the table is cleared and added into."""
    table = model.vocab * model.hidden / s.tp
    return [MemoryBound(name="embedding", moved_bytes=(2 * s.tokens * model.hidden + 2 * table) * BYTES, kernels=2)]


def head_forward(model: Model, s: Shapes, kernels: Kernels, *, loss_parallel: bool = True) -> list[Operation]:
    """Final norm, output projection and loss. The projection's vocabulary is cut by tp, and so is that of a parallel
    loss; else every rank has the loss of all of it."""
    vocab = model.vocab / s.tp
    logits = s.tokens * (vocab if loss_parallel else model.vocab)
    norm, loss = passes_of(kernels, model.norm), passes_of(kernels, "loss")
    hidden = np.full_like(s.tp, model.hidden)
    head: list[Operation] = [
        MemoryBound(
            name="norm", moved_bytes=norm.forward * s.norm_tokens * hidden * BYTES, kernels=norm.forward_kernels
        ),
        Gemm(name="logits", m=s.tokens, n=vocab, k=hidden),
        *_final_soft_cap(model, logits, kernels, backward=False),
        MemoryBound(name="loss", moved_bytes=loss.forward * logits * BYTES, kernels=loss.forward_kernels),
    ]
    # each layer of multi-token prediction has a loss of its own, and merges two vectors into its input
    merge = Gemm(name="mtp", m=s.norm_tokens, n=hidden, k=2.0 * hidden)
    return [*head, *(model.mtp_layers * [*head, merge])]


def _final_soft_cap(model: Model, logits: Floats, kernels: Kernels, *, backward: bool) -> list[Operation]:
    """cap * tanh(logits / cap), where the model has it."""
    if not model.final_soft_cap:
        return []
    passes, launched = passes_of(kernels, "soft_cap").each(backward=backward)
    return [MemoryBound(name="soft_cap", moved_bytes=passes * logits * BYTES, kernels=launched)]


def head_backward(model: Model, s: Shapes, kernels: Kernels, *, loss_parallel: bool = True) -> list[Operation]:
    """Backward of loss, output projection and final norm."""
    vocab = model.vocab / s.tp
    logits = s.tokens * (vocab if loss_parallel else model.vocab)
    norm, loss = passes_of(kernels, model.norm), passes_of(kernels, "loss")
    hidden = np.full_like(s.tp, model.hidden)
    head: list[Operation] = [
        MemoryBound(name="loss", moved_bytes=loss.backward * logits * BYTES, kernels=loss.backward_kernels),
        *_final_soft_cap(model, logits, kernels, backward=True),
        Gemm(name="logits_dgrad", m=s.tokens, n=hidden, k=vocab),
        Gemm(name="logits_wgrad", m=vocab, n=hidden, k=s.tokens),
        MemoryBound(
            name="norm", moved_bytes=norm.backward * s.norm_tokens * hidden * BYTES, kernels=norm.backward_kernels
        ),
    ]
    merges = [
        Gemm(name="mtp_dgrad", m=s.norm_tokens, n=2.0 * hidden, k=hidden),
        Gemm(name="mtp_wgrad", m=hidden, n=2.0 * hidden, k=s.norm_tokens),
    ]
    return [*head, *(model.mtp_layers * [*head, *merges])]


NVFP4_COPY_BYTES = 2 * BYTES + 2 * NVFP4_BYTES  # read for its largest element and again, written twice
MOMENT_PASSES = 4.0  # of both moments: read and written


def optimizer(
    parameters: Floats, table: PlanTable, cast: Floats, summed_bytes: Floats, copies_bytes: Floats, kernels: Kernels
) -> list[Operation]:
    """The gradient norm, clipping and AdamW over the parameters a rank owns. ``cast`` of them have a 16-bit copy that
    is written after the step; ``summed_bytes`` are gradients added to those of earlier microbatches; ``copies_bytes``
    are moved to make fp8 or NVFP4 copies that are kept for all microbatches of the step."""
    clip, adamw, casts, sums = (passes_of(kernels, name) for name in ("clip", "adamw", "cast", "accumulate"))
    states = parameters * table.state_bytes
    moved = (clip.forward + adamw.forward) * states + adamw.backward * BYTES * parameters
    # passes are counted in the type of the parameters; moments may have another one
    moved = moved + MOMENT_PASSES * (table.moment_bytes - table.state_bytes) * parameters
    moved = moved + casts.forward * BYTES * cast + sums.forward * summed_bytes + copies_bytes
    return [MemoryBound(name="adamw", moved_bytes=moved, kernels=clip.forward_kernels + adamw.forward_kernels)]


def outer_optimizer(parameters: Floats, kernels: Kernels) -> list[Operation]:
    """Nesterov's momentum over the parameters a rank owns, in fp32: their difference from those of the last exchange,
    the update of those, and a copy of them."""
    outer = passes_of(kernels, "outer")
    moved = outer.forward * OUTER_STATE_BYTES * parameters
    return [MemoryBound(name="outer", moved_bytes=moved, kernels=outer.forward_kernels)]
