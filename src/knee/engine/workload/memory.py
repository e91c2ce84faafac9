"""Bytes per GPU, by part, at the worst moment of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Floats, Ints, blended, equal_rows, expanded, names_of
from knee.engine.workload.fp8_layers import wide_products
from knee.engine.workload.layers_per_stage import ModelLayers, cuts_of
from knee.engine.workload.operations import NVFP4_BYTES, OUTER_STATE_BYTES, kept_product_columns
from knee.engine.workload.projections import (
    BYTES,
    Fp8Shapes,
    Shapes,
    expert_share,
    layer_kinds,
    on_one_gpu,
    projections,
)
from knee.engine.workload.recomputed_modules import KeptBytes, expert_bytes, freed_bytes
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, PRECISIONS, RECOMPUTE_MODULES, RECOMPUTES, RecomputeModule
from knee.specs.plan_table import PlanTable, by_schedule, columns_of, runs_both_ways, stage_copies, variant_rows
from knee.specs.profile import MEGATRON_KERNELS, Profile
from knee.specs.schedules import PIPELINE_SCHEDULES

# Bytes that forward keeps for backward, per layer and token.

WRITTEN_OUT = ("eager", "fused_norm", "flash_attn")
"""Kernel sets whose MLP and loss are written out in PyTorch."""


def layer_saved_bytes(
    model: Model,
    s: Shapes,
    profile: Profile,
    recompute: Floats,
    modules: Mapping[RecomputeModule, Floats] = MappingProxyType({}),
) -> Floats:
    """What one layer keeps of one microbatch; ``modules`` has a column for each part that some plans recompute.

    Formula: norms and residual on norm_tokens + attention and MLP tensors on tokens / tp, and inputs of products that
             stay gathered on tokens
    Where:   attention runs its core again; ops keeps the layer's input, attention's output, every second product's and
             those of reduce-scatters; blocks and full keep the layer's input alone
    Source:  counted from the tensors autograd saves; Korthikanti et al. (arXiv 2205.05198) count 34 h for GPT
    """
    h, tokens_tp, eager = model.hidden, s.tokens / s.tp, profile.saved in WRITTEN_OUT
    width = KeptBytes.of(model, s, profile)
    # norms before attention and the MLP; what they put out is the input of the products behind them
    inputs = min(model.layer_norms, 2)
    norms = (inputs * (norm_bytes(model, profile) - 2.0) + width.norms(model)) * h * s.norm_tokens
    if model.layer_norms > inputs:
        # what the others put out is added to the residual stream, and not kept
        norms = norms + (model.layer_norms - inputs) * (norm_bytes(model, profile) - 2.0) * h * s.norm_tokens
    if profile.keeps_gathered:
        norms = norms + width.norms(model) * h * (s.tokens - s.norm_tokens)
    # queries, keys, values and the attention output, which is also the input of the output projection
    attention_core = 2.0 * (model.q_width + 2 * model.kv_width) + width.attention * model.q_width
    if model.latent_attention is not None:
        values = model.heads * model.latent_attention.value_size
        attention_core = 2.0 * (model.q_width + model.kv_width + values) + width.attention * values
        # the narrow vectors before and behind their norms, and the shared key
        narrow = model.latent_attention.kv_rank + model.latent_attention.q_rank
        each = norm_bytes(model, profile) - 2.0 + width.inputs
        norms = norms + (each * narrow + 2.0 * model.latent_attention.rope_size) * s.norm_tokens
    if model.qk_norm != "none":
        # queries and keys before their norm; those behind it are among the four above
        attention_core += (norm_bytes(model, profile) - 2.0) * (model.q_width + model.kv_width)
    elif profile.packed_qkv and model.positions == "rope":
        attention_core += 2.0 * (model.q_width + model.kv_width)
    # gate, up, activation and product in eager; fused kernels recompute the activation
    gated = 4 if eager else 3
    mlp_tensors = {"swiglu": gated, "geglu": gated, "gelu": 2, "relu2": gated - 1}[model.mlp]
    mlp = width.mlp(mlp_tensors) * model.ffn * (1.0 - expert_share(model))
    scores = np.zeros_like(s.tokens)
    if profile.attention == "unfused":
        # softmax in and out and the dropout mask: 5 bytes for each of heads * seq^2 (Korthikanti et al.)
        scores = 5.0 * s.sequences * (model.heads / s.tp) * s.seq_len**2 / s.cp
    if profile.keeps_gathered:
        # keys and values of the whole sequence, where an all-gather brought them
        norms = norms + np.where(s.kv_block == s.seq_len, s.cp - 1.0, 0.0) * 4.0 * model.kv_width * tokens_tp
    kept = norms + (attention_core + mlp) * tokens_tp
    if model.experts is not None:
        kept = kept + expert_bytes(model, s, mlp_tensors, width, outputs=profile.saved not in MEGATRON_KERNELS)
    if np.any(s.four_bit):
        kept = kept + s.four_bit * (1.0 - profile.bf16_layers_frac) * _nvfp4_saved_bytes(model, s, profile)
    if s.fp8 is not None and s.fp8.shared_casts:
        kept = kept + _fp8_saved_bytes(model, s, s.fp8, profile)
    layer_input = 2.0 * h * s.norm_tokens
    scattered = np.where(s.tp > 1, 2 * layer_input, 0.0)
    products = 2.0 * kept_product_columns(model, s, profile.kernels) * s.tokens
    ops = layer_input + scattered + products + 2.0 * model.q_width * tokens_tp
    whole = np.where(recompute == RECOMPUTES.index("attention"), 0.0, scores) + kept
    whole = np.where(recompute == RECOMPUTES.index("ops"), np.minimum(ops, kept + scores), whole)
    gathered = s.tokens if profile.keeps_gathered else s.norm_tokens
    for module, chosen in modules.items():
        outputs = profile.saved not in MEGATRON_KERNELS
        freed = freed_bytes(
            model, s, module, mlp_tensors=mlp_tensors, width=width, outputs=outputs, gathered=gathered, scores=scores
        )
        whole = whole - chosen * freed
    return np.where(recompute >= RECOMPUTES.index("blocks"), layer_input, whole)


def _nvfp4_saved_bytes(model: Model, s: Shapes, profile: Profile) -> Floats:
    """What a layer in NVFP4 keeps, less what it keeps in 16 bit: of the inputs of its products the copy for the weight
    gradient alone. Attention keeps its output in 16 bit beside that.

    Source:  Transformer Engine 2.8, pytorch/module: Linear saves the cast input by columns
    """
    gathered = s.tokens if profile.keeps_gathered else s.norm_tokens
    inputs = 2.0 * model.hidden * gathered + model.ffn * s.tokens / s.tp
    return (NVFP4_BYTES - BYTES) * inputs + NVFP4_BYTES * model.q_width * s.tokens / s.tp


def _fp8_saved_bytes(model: Model, s: Shapes, fp8: Fp8Shapes, profile: Profile) -> Floats:
    """What a layer with shared fp8 casts keeps, less what it keeps in 16 bit: of the inputs of fp8 products their
    columns alone. Attention keeps its output in 16 bit beside that.

    Source:  src/knee/training/parallelism/fp8/linear.py: only the transposed input is saved for backward
    """
    wide = wide_products(projections(model, s, profile.kernels), fp8)
    gathered, tokens_tp = s.tokens if profile.keeps_gathered else s.norm_tokens, s.tokens / s.tp
    # bytes that an element of each input needs more
    more = {"q": (-1.0, model.hidden * gathered), "attention_out": (1.0, model.q_width * tokens_tp)}
    dense = 1.0 - expert_share(model)
    more |= {"up": (-dense, model.hidden * gathered), "down": (-dense, model.ffn * tokens_tp)}
    found = np.zeros_like(s.tokens)
    for name, (each, elements) in more.items():
        if name in wide:
            found = found + each * ~wide[name] * elements
    return fp8.eight_bit * found


def norm_bytes(model: Model, profile: Profile) -> float:
    """What a norm keeps of each element: a fused one its input and output in 16 bit; RMSNorm written out in eager its
    fp32 input, the unscaled and the scaled output."""
    if model.norm == "layernorm":
        return 4.0
    return profile.rmsnorm_bytes or (8.0 if profile.saved == "eager" else 4.0)


def logits_bytes(model: Model, s: Shapes, profile: Profile) -> Floats:
    """What the loss holds when backward begins: fp32 log-probabilities and their gradient in fp32 and 16 bit; fused
    losses keep 16-bit logits and one fp32 copy. Without loss parallelism all of them stand on every rank."""
    soft_cap = 2.0 if model.final_soft_cap and profile.saved in WRITTEN_OUT else 0.0  # the 16-bit result of tanh
    per_logit = soft_cap + (profile.logit_bytes or (4.0 + 4.0 + 2.0 if profile.saved in WRITTEN_OUT else 2.0 + 4.0))
    losses = 1 + model.mtp_layers
    return losses * per_logit * s.tokens * model.vocab / (s.tp if profile.loss_parallel else 1.0)


MOMENTS = 2.0  # of AdamW, in the type of the states
OUTER_STATES = 2.0  # of an outer optimizer: its momentum and the parameters as of the last exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryColumns:
    """Parts of the memory, as ``record.Memory`` names them, on each plan's fullest GPU."""

    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    activations_bytes: Floats
    logits_bytes: Floats
    comm_buffers_bytes: Floats
    context_bytes: Floats

    @property
    def total_bytes(self) -> Floats:
        """All parts together."""
        return np.asarray(np.sum([getattr(self, name) for name in _PARTS], axis=0), dtype=np.float64)

    def or_more(self, other: MemoryColumns) -> MemoryColumns:
        """Of two GPUs of each plan the fuller one, this one if they are equal."""
        more = other.total_bytes > self.total_bytes
        return MemoryColumns(**{name: np.where(more, getattr(other, name), getattr(self, name)) for name in _PARTS})

    def with_rows(self, rows: Ints, some: MemoryColumns) -> MemoryColumns:
        """The same with other values of some plans."""
        columns = {name: getattr(self, name).copy() for name in _PARTS}
        for name, column in columns.items():
            column[rows] = getattr(some, name)
        return MemoryColumns(**columns)


_PARTS = tuple(f.name for f in fields(MemoryColumns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One pipeline rank of every plan."""

    layers: Floats
    expert_share: Floats
    """Of them; 0 where all layers of the model are alike."""
    chunk: Floats
    """Layers of its largest chunk."""
    chunk_share: Floats
    """Of them, those with experts."""
    in_flight: Floats
    """Microbatch-chunks whose activations it holds."""
    first: NDArray[np.bool_]
    last: NDArray[np.bool_]


def in_flight(table: PlanTable, rank: NDArray[np.int64]) -> Floats:
    """Most microbatch-chunks held at once by a rank.

    Formula: ``PipelineSchedule.in_flight``. One more where tokens travel beside another microbatch: a forward then runs
             beside the backward that would have freed its memory (orders of both directions have it already)
    Source:  counted from the orders in ``specs.schedules`` (a test compares them)
    """
    p, v, m = table.pp, table.virtual_stages, table.microbatches
    chosen = by_schedule(table, [schedule.in_flight(p, v, m, rank) for schedule in PIPELINE_SCHEDULES])
    # without a pipeline a microbatch is finished before the next one starts
    most = np.where(p > 1, chosen, 1)
    beside = table.ep_overlap & ~runs_both_ways(table)
    return np.where(beside, np.minimum(most + 1, m * v), most).astype(np.float64)


@cache
def _held(layers: ModelLayers, stages: int, virtual: int) -> Floats:
    """Of each rank: layers, the share of them that has experts, layers of its largest chunk, and their share."""
    chunks = np.array((layers.dealt(stages * virtual), layers.with_experts(stages * virtual)), dtype=np.float64)
    largest = [max(zip(*chunks[:, r::stages].tolist(), strict=True)) for r in range(stages)]
    whole, part = chunks.reshape(2, virtual, stages).sum(axis=1), np.array(largest).T
    return np.array((whole[0], whole[1] / np.maximum(whole[0], 1.0), part[0], part[1] / np.maximum(part[0], 1.0)))


def _stages(table: PlanTable, ranks: Sequence[Ints], held: Floats, way: Ints) -> list[_Stage]:
    """Some ranks of every plan, ``way`` being how each plan is cut."""
    two_way = runs_both_ways(table)

    def stage(rank: Ints) -> _Stage:
        first, last = rank == 0, rank == table.pp - 1
        layers, share, chunk, chunk_share = held[:, way, rank]
        if two_way.any():
            # a rank of DualPipe has the stage of each direction, and activations of both in equal numbers
            other, other_share, more, more_share = held[:, way, table.pp - 1 - rank]
            both, chunks = np.maximum(layers + other, 1.0), np.maximum(chunk + more, 1.0)
            share = np.where(two_way, (layers * share + other * other_share) / both, share)
            chunk_share = np.where(two_way, (chunk * chunk_share + more * more_share) / chunks, chunk_share)
            layers, chunk = np.where(two_way, layers + other, layers), np.where(two_way, (chunk + more) / 2.0, chunk)
            first, last = first | (two_way & last), last | (two_way & first)
        return _Stage(
            layers=layers,
            expert_share=share,
            chunk=chunk,
            chunk_share=chunk_share,
            in_flight=in_flight(table, rank),
            first=first,
            last=last,
        )

    return [stage(rank) for rank in ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What forward keeps for backward, the same on every rank."""

    saved: Floats
    """Per layer and microbatch."""
    working: Floats
    """What is run again stands beside what was kept, for one layer at a time."""
    logits: Floats

    def mixed(self, sparse: _Kept, share: Floats) -> _Kept:
        """Of chunks whose layers have experts in that share; one layer at a time is run again, the larger one."""
        working = np.maximum(np.where(share < 1.0, self.working, 0.0), np.where(share > 0.0, sparse.working, 0.0))
        return _Kept(saved=blended(self.saved, sparse.saved, share), working=working, logits=sparse.logits)


def _kept(model: Model, profile: Profile, table: PlanTable, s: Shapes) -> _Kept:
    """What forward keeps, computed once for each shape of kernels."""
    columns = [value for name in names_of(Shapes) if isinstance(value := getattr(s, name), np.ndarray)]
    columns += [] if s.fp8 is None else s.fp8.columns
    again = (table.recompute, table.recompute_frac, table.recompute_modules)
    first, kind = equal_rows(*columns, *again, *columns_of(model, profile), few=MANY)
    if len(first) == len(table):
        return _kept_of_each(model, profile, table, s)
    own = variant_rows(model, first), variant_rows(profile, first)
    return expanded(_kept_of_each(*own, table.rows(first), expanded(s, first)), kind)


MANY = 1024
"""Plans of which many have kernels of the same shapes."""


def _kept_of_each(model: Model, profile: Profile, table: PlanTable, s: Shapes) -> _Kept:
    recompute = table.recompute.astype(np.float64)
    full = table.recompute >= RECOMPUTES.index("blocks")
    kept = layer_saved_bytes(model, s, profile, 0.0 * recompute)
    named = {m: table.recomputes_module(m) for m in RECOMPUTE_MODULES} if table.recompute_modules.any() else {}
    saved = layer_saved_bytes(model, s, profile, recompute, named) if recompute.any() else kept
    saved = np.where(full, table.recompute_frac * saved + (1.0 - table.recompute_frac) * kept, saved)
    working = np.where(full, kept, (table.recomputes("ops") + table.recomputes("modules")) * (kept - saved))
    return _Kept(saved=saved, working=working, logits=logits_bytes(model, s, profile))


def _gradient_bytes(profile: Profile, table: PlanTable, modes: Modes, t: Traffic) -> tuple[Floats, Floats]:
    """Bytes of a gradient element: kept whole from backward to the optimizer, and copied for the optimizer's part.

    Where:   bf16 is summed in the type that is reduced, and a stack may keep the 16-bit gradient beside the sum; fp16,
             whose gradients are scaled, stays fp16 until the optimizer takes its part in fp32
    Source:  Megatron-LM's Float16OptimizerWithFloat16Params and DeepSpeed's ZeRO-1 (fp16); DeepSpeed's BF16_Optimizer
    """
    fp16 = (table.precision == PRECISIONS.index("fp16")) & ~modes.gathers & (table.state_bytes > PARAMETER_BYTES)
    beside = PARAMETER_BYTES if profile.keeps_half_gradients else 0.0
    sums = t.reduce_bytes + np.where(~modes.gathers & (t.reduce_bytes > PARAMETER_BYTES), beside, 0.0)
    return np.where(fp16, PARAMETER_BYTES, sums), np.where(fp16, table.state_bytes, 0.0)


def _fp8_weight_bytes(profile: Profile, modes: Modes, fp8: Fp8Shapes) -> Floats:
    """What a weight with shared fp8 casts needs more than in 16 bit, for each element.

    Where:   weights that stay whole have copies by rows and by columns, made from the states, so that no 16-bit copy of
             fp32 states is kept. Shards that are gathered in fp8 have an fp8 copy; weights that were gathered in fp8
             and stay are half as long; those gathered in 16 bit leave their columns for backward
    Source:  src/knee/training/parallelism/fp8/linear.py, shards.py
    """
    sharded = fp8.gathered + fp8.casts_gathered > 0
    no_half = profile.casts_weights & ~modes.zero1 & (fp8.state_bytes > PARAMETER_BYTES)
    kept = 2.0 - np.where(no_half, PARAMETER_BYTES, 0.0)
    gathered = fp8.gathered / fp8.shards - (fp8.gathered - fp8.reshards)
    return np.where(sharded, fp8.casts_gathered + gathered, kept)


def _stage_memory(
    profile: Profile, table: PlanTable, s: Shapes, modes: Modes, t: Traffic, stage: _Stage, kept: _Kept, most: Traffic
) -> MemoryColumns:
    """The parts on one pipeline rank; ``most`` has the messages of its largest layer."""
    copies = stage_copies(table)
    shards = table.dp_shard * np.where(modes.ddp, 1, table.cp).astype(np.float64)
    ends = stage.first * t.embedding.elements + stage.last * t.head.elements
    experts = stage.layers * t.experts.elements
    own = stage.layers * t.layer.elements + ends
    # the two copies of DualPipe's stages share out their states as data-parallel ranks do
    sharded = own / np.where(modes.ddp, 1.0, copies * shards)
    sharded = sharded + experts / np.where(modes.ddp, 1.0, copies * t.expert_shards)
    own, layer_elements = own + experts, t.layer.elements + t.experts.elements

    # one GPU has nobody to gather from: all of its parameters stay, whatever the mode is called
    one_gpu = on_one_gpu(profile, table)
    alone = (shards == 1.0) & ~one_gpu
    whole = ~modes.gathers | ~modes.reshards | alone  # every parameter is on the GPU in 16 bit
    # 16-bit states that are not sharded are the parameters that compute: there is no second copy
    one_copy = (~modes.gathers | alone) & (table.state_bytes == PARAMETER_BYTES)
    # without a gather, casts of fp32 parameters are kept for backward, and made again in a layer that is recomputed
    cast_again = np.where(modes.gathers & alone & ~one_copy, table.repeats_frac, 0.0)
    copies = np.where(whole, PARAMETER_BYTES * (own - cast_again * stage.layers * layer_elements), 0.0)
    weights = np.where(one_copy, copies, table.state_bytes * sharded + copies)
    if s.fp8 is not None and s.fp8.shared_casts:
        weights = weights + stage.layers * t.fp8.weights.elements * _fp8_weight_bytes(profile, modes, s.fp8)
    if np.any(s.four_bit):
        # two NVFP4 copies of a layer's weights stand beside the 16-bit ones, where those are not gathered for each pass
        narrow = s.four_bit * (1.0 - s.casts_narrow) * (1.0 - profile.bf16_layers_frac)
        weights = weights + 2.0 * NVFP4_BYTES * narrow * stage.layers * layer_elements
    # gradients stay whole where they are reduced once, after the last microbatch; one GPU sums them in the states' type
    keeps = ~modes.gathers | (~modes.reshards & ~alone & (table.microbatches > 1))
    kept_bytes, copied_bytes = _gradient_bytes(profile, table, modes, t)
    zero2 = modes.zero1 & modes.reduces_often
    gradients = np.where(keeps, kept_bytes * np.where(zero2, sharded, own), 0.0)
    gradients = gradients + np.where(modes.gathers, table.state_bytes * sharded, 0.0)
    outer_bytes = np.where(table.sync_every > 1, OUTER_STATES * OUTER_STATE_BYTES, 0.0)
    optimizer = (MOMENTS * table.moment_bytes + copied_bytes + outer_bytes) * sharded

    activations = stage.in_flight * stage.chunk * kept.saved + kept.working
    logits = stage.last * kept.logits
    # gradients that are freed after each step come as activations go: of the two, the larger stands at the worst moment
    frees = (modes.gathers | (table.dp == 1)) & (table.microbatches == 1) & (table.pp == 1) & ~one_gpu
    gradients = np.where(frees, np.maximum(gradients - activations - logits, 0.0), gradients)

    # the layer that computes, its gathered neighbours, and one whole gradient on its way out
    gathered = most.gather_bytes * (2.0 + table.prefetch) + PARAMETER_BYTES * ends
    no_reshard = modes.gathers & ~modes.reshards
    gathered = np.where(no_reshard, most.gather_bytes * (1.0 + table.prefetch), gathered)
    # a mesh of one copies a layer when it is needed. Results of reductions and gradients come from the pool of another
    # stream, which no memory returns to that activations have left
    gathered = np.where(
        one_gpu, most.gather_bytes + PARAMETER_BYTES * ends + t.reduce_bytes * most.layer_moved, gathered
    )
    reduced = (PARAMETER_BYTES + t.reduce_bytes) * most.layer_moved
    # without a limit on reductions in flight, two stand at the least
    waiting = 1.0 if profile.reduces_in_flight == 1 else 2.0
    buffers = np.where(modes.gathers & ~alone, gathered + waiting * reduced, 0.0)
    buffers = buffers + np.where(zero2 & ~alone, waiting * reduced, 0.0)
    whole_kv = (table.cp > 1) & (table.cp_method == CP_METHODS.index("allgather"))
    buffers = buffers + np.where(whole_kv, t.cp_bytes, 0.0)
    allocated = weights + gradients + optimizer + activations + logits + buffers
    context = profile.context_bytes + profile.allocator_frac * allocated
    return MemoryColumns(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        logits_bytes=logits,
        comm_buffers_bytes=buffers,
        context_bytes=context,
    )


def memory_of(
    model: Model,
    profile: Profile,
    table: PlanTable,
    s: Shapes,
    modes: Modes,
    t: Traffic,
    *,
    ranks: Sequence[Ints] | None = None,
) -> MemoryColumns:
    """The fullest GPU of each plan; with ``ranks`` the fullest of those."""
    kept = [_kept(kind, profile, table, s) for kind in layer_kinds(model) or (model,)]
    cuts = cuts_of(model, profile, table)
    way = cuts.of_plan
    # what ``_held`` says of each way to cut a model, a rank in each column
    held = np.zeros((4, len(cuts.ways), max((count for _, count, _ in cuts.ways), default=1)))
    for i, (layers, count, virtual) in enumerate(cuts.ways):
        held[:, i, :count] = _held(layers, count, virtual)

    def of(stage: _Stage) -> MemoryColumns:
        if len(kept) == 1:
            return _stage_memory(profile, table, s, modes, t, stage, kept[0], t)
        own, mixed = t.at(stage.expert_share), kept[0].mixed(kept[1], stage.chunk_share)
        largest = t.at(np.where(stage.expert_share > 0.0, 1.0, 0.0))
        return _stage_memory(profile, table, s, modes, own, stage, mixed, largest)

    # one is the fullest of: the first (embedding, most microbatches), the second (no layer short), the last (logits)
    first = np.zeros(len(table), dtype=np.int64)
    full = [first, np.minimum(first + 1, table.pp - 1), table.pp - 1] if (table.pp > 1).any() else [first]
    best, *others = map(of, _stages(table, full if ranks is None else ranks, held, way))
    for other in others:
        best = best.or_more(other)
    if len(kept) == 1 or ranks is not None:
        return best
    # the first ranks of deep pipelines have no experts: the first one that has most of them may be the fullest
    rank = np.argmax(held[0] * held[1], axis=1)[way]
    rows = np.flatnonzero((rank > 1) & (rank < table.pp - 1))
    if not len(rows):
        return best
    few, own = table.rows(rows), variant_rows(profile, rows)
    shapes, kinds, sent = expanded(s, rows), expanded(modes, rows), expanded(t, rows)
    other = memory_of(model, own, few, shapes, kinds, sent, ranks=[rank[rows]])
    return best.with_rows(rows, expanded(best, rows).or_more(other))
