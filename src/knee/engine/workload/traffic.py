"""Bytes that each collective of a step carries, as columns over plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, Ints, blended, equal_rows
from knee.engine.workload.fp8_layers import fp8_gathers, group_of, wide_groups
from knee.engine.workload.layers_per_stage import ModelLayers, expert_pattern, most_experts
from knee.engine.workload.parameters import (
    Tensor,
    embedding_tensors,
    gathered_elements,
    head_tensors,
    layer_tensors,
    local_sides,
    routed_tensors,
    shard_elements,
    stage_elements,
)
from knee.engine.workload.projections import BYTES, Fp8Shapes, expert_share
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, REDUCE_DTYPES, SHARDINGS
from knee.specs.plan_table import PlanTable

PARAMETER_BYTES = 2.0  # parameters are gathered in 16 bit, unless a stack gathers fp8 weights
_PRODUCTS = {"wq": "q", "wk": "k", "wv": "v", "wo": "attention_out", "w1": "gate", "w3": "up", "w2": "down"}
_PRODUCTS |= {"shared_w1": "shared_gate", "shared_w3": "shared_up"}
"""Weights -> their products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """What a plan's sharding does, as columns."""

    gathers: Bools
    """Parameters are gathered layer by layer (FSDP)."""
    reshards: Bools
    """Gathered again in backward and for each microbatch (ZeRO-3)."""
    zero1: Bools
    """Parameters are whole and gathered once a step, after the optimizer has updated its part (ZeRO-1 and ZeRO-2)."""
    reduces_often: Bools
    """Gradients are reduced in every microbatch, and a part of them is kept (ZeRO-2 and ZeRO-3)."""
    ddp: Bools

    @classmethod
    def of(cls, table: PlanTable) -> Modes:
        """Read the sharding column."""
        code = {name: table.sharding == i for i, name in enumerate(SHARDINGS)}
        return cls(
            gathers=code["fsdp"] | code["hsdp"] | code["fsdp_no_reshard"],
            reshards=code["fsdp"] | code["hsdp"],
            zero1=code["zero1"] | code["zero2"],
            reduces_often=code["fsdp"] | code["hsdp"] | code["zero2"],
            ddp=code["ddp"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTraffic(Columns):
    """Elements of one group of weights (a layer, the embedding, the head) on one model-parallel rank."""

    elements: Floats
    """Held by the rank's model shard, unpadded."""
    moved: Floats
    """Moved by one gather or reduce, FSDP2's padding included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Traffic:
    """What a layer sends in fp8, in stacks with shared casts; 0 in others."""

    weights: ParameterTraffic
    """Of its weights, those with fp8 products."""
    saved_bytes: Floats
    """What its gather is shorter by, because these weights are gathered in fp8."""
    tp_forward: Floats
    """How many of its gathers of activations across the tensor-parallel group are in fp8, and of gradients in
    backward."""
    tp_backward: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """Of a model that has layers with experts and layers without."""

    dense: ParameterTraffic
    sparse: ParameterTraffic
    """Of a layer with experts, without its routed experts."""
    routed: ParameterTraffic
    """Of the routed experts of such a layer, on one expert-parallel rank."""
    dense_fp8: Fp8Traffic
    sparse_fp8: Fp8Traffic


def parameter_traffic(table: PlanTable, modes: Modes, tensors: tuple[Tensor, ...]) -> ParameterTraffic:
    """What FSDP, ZeRO-1 or DDP moves for these weights."""
    tp = table.tp
    elements = shard_elements(tensors, tp)
    padded = gathered_elements(tensors, tp, table.dp_shard * table.cp)
    return ParameterTraffic(elements=elements, moved=np.where(modes.gathers, padded, elements))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All messages of a step, each as the bytes of the whole message."""

    layer: ParameterTraffic
    """Of a layer, without its routed experts."""
    experts: ParameterTraffic
    """Of a layer's routed experts on one expert-parallel rank, mean over layers; 0 in a dense model."""
    fp8: Fp8Traffic
    kinds: LayerTraffic | None
    """What the mean layer is the mean of; None where layers are alike."""
    expert_shards: Floats
    """Ranks over which the experts of a rank are sharded, or which have the same ones under DDP."""
    embedding: ParameterTraffic
    head: ParameterTraffic
    reduce_bytes: Floats
    """Bytes of a gradient element on the wire."""
    tp_bytes: Floats
    """Activations of a microbatch across the tensor-parallel group."""
    logits_bytes: Floats
    """Logits of a microbatch, which are gathered where the loss is not parallel."""
    cp_bytes: Floats
    """Keys and values: the whole sequence for an all-gather, one block for a ring step."""
    pp_bytes: Floats
    """Activations that a rank hands to the next stage."""
    routed_bytes: Floats
    """Tokens of a rank, once for each of their experts; 0 in a dense model."""

    @property
    def layer_moved(self) -> Floats:
        """Elements of a layer that its gathers or reductions move, routed experts included."""
        return self.layer.moved + self.experts.moved

    @property
    def gather_bytes(self) -> Floats:
        """Of a layer's gather, routed experts included."""
        return PARAMETER_BYTES * self.layer_moved - self.fp8.saved_bytes

    def at(self, share: Floats | float) -> Traffic:
        """Of a chunk that has experts in that share of its layers."""
        if self.kinds is None:
            return self
        k = self.kinds
        layer, fp8 = blended(k.dense, k.sparse, share), blended(k.dense_fp8, k.sparse_fp8, share)
        return replace(self, layer=layer, experts=k.routed.times(share), fp8=fp8, kinds=None)

    def whole_elements(self, model: Model, table: PlanTable) -> Floats:
        """Of the fullest stage, what its ranks hold before anything is sharded."""
        if self.kinds is not None:
            return self.at(fullest_share(model, table)).whole_elements(model, table)
        whole = stage_elements(model, table, self.layer.elements, self.embedding.elements, self.head.elements)
        return (
            whole if model.experts is None else whole + np.ceil(model.walked_layers / table.pp) * self.experts.elements
        )

    def owned_elements(self, model: Model, table: PlanTable, modes: Modes) -> Floats:
        """Of it, what one rank of the sharded group keeps; experts are sharded over ranks of their own."""
        if self.kinds is not None:
            return self.at(fullest_share(model, table)).owned_elements(model, table, modes)
        shards = np.where(modes.ddp, 1.0, table.dp_shard * table.cp)
        whole = stage_elements(model, table, self.layer.elements, self.embedding.elements, self.head.elements)
        if model.experts is None:
            return whole / shards
        expert_ranks = np.where(modes.ddp, 1.0, self.expert_shards)
        return whole / shards + np.ceil(model.walked_layers / table.pp) * self.experts.elements / expert_ranks


def fullest_share(model: Model, table: PlanTable) -> Floats:
    """Share of layers with experts on the stage that has most of them."""
    layers = ModelLayers(count=model.walked_layers, experts=expert_pattern(model))
    first, kind = equal_rows(table.pp, table.virtual_stages)
    cuts = zip(table.pp[first].tolist(), table.virtual_stages[first].tolist(), strict=True)
    most = np.array([most_experts(layers, p, v) for p, v in cuts])
    return np.asarray(most[kind] / np.ceil(model.walked_layers / table.pp), dtype=np.float64)


def _fp8_traffic(table: PlanTable, modes: Modes, tensors: Sequence[Tensor], fp8: Fp8Shapes | None) -> Fp8Traffic:
    """Of a layer with these weights, without routed experts."""
    none = np.zeros(len(table))
    weights = ParameterTraffic(elements=none, moved=none)
    if fp8 is None or not fp8.shared_casts:
        return Fp8Traffic(weights=weights, saved_bytes=none, tp_forward=none, tp_backward=none)
    tensors = [t for t in tensors if t.cols > 1]
    wide = wide_weights(tensors, table.tp, fp8.smallest)
    for t in tensors:
        each, there = parameter_traffic(table, modes, (t,)), fp8.eight_bit * ~wide[input_of(t)]
        elements, moved = weights.elements + there * each.elements, weights.moved + there * each.moved
        weights = ParameterTraffic(elements=elements, moved=moved)
    tp_forward, tp_backward = fp8_gathers(wide, fp8, backward=False), fp8_gathers(wide, fp8, backward=True)
    return Fp8Traffic(
        weights=weights, saved_bytes=fp8.gathered * weights.moved, tp_forward=tp_forward, tp_backward=tp_backward
    )


def input_of(tensor: Tensor) -> str:
    """The products that read the same input as this weight's, by the name of one of them."""
    return group_of(_PRODUCTS.get(tensor.name, tensor.name))


def wide_weights(tensors: Sequence[Tensor], tp: Ints, smallest: int) -> dict[str, Bools]:
    """Group of products with one input -> where its weights stay in 16 bit."""
    return wide_groups(((_PRODUCTS.get(t.name, t.name), *local_sides(t, tp)) for t in tensors), smallest)


def _layer_kinds(model: Model, table: PlanTable, modes: Modes, fp8: Fp8Shapes | None) -> LayerTraffic:
    """Layers with experts keep their router and shared experts like other weights. Experts are dealt to ep ranks, and
    each may be split over etp ranks; their shards need no padding."""
    kept = tuple(tensor for tensor in layer_tensors(model, experts=True) if not tensor.experts)
    held = sum(tensor.size for tensor in routed_tensors(model)) / (table.ep * table.etp)
    return LayerTraffic(
        dense=parameter_traffic(table, modes, layer_tensors(model)),
        sparse=parameter_traffic(table, modes, kept),
        routed=ParameterTraffic(elements=held, moved=held),
        dense_fp8=_fp8_traffic(table, modes, layer_tensors(model), fp8),
        sparse_fp8=_fp8_traffic(table, modes, kept, fp8),
    )


def routed_bytes(model: Model, table: PlanTable) -> Floats:
    """What a rank sends to experts, itself included, if their load is balanced."""
    copies = 0 if model.experts is None else model.experts.top_k
    return table.micro_tokens / table.tp * copies * model.hidden * BYTES


def expert_shards(table: PlanTable, modes: Modes) -> Floats:
    """Ranks of a stage, of one replica, over those that hold different experts."""
    ranks = np.where(modes.ddp, table.dp_replicate, table.dp_shard) * table.cp * table.tp
    return np.asarray(ranks / (table.ep * table.etp), dtype=np.float64)


def traffic_of(
    model: Model, table: PlanTable, modes: Modes, *, scatters_sends: bool = False, fp8: Fp8Shapes | None = None
) -> Traffic:
    """Messages of every plan. TP and PP shrink FSDP's bytes and, through the mesh, its group.

    Between stages every tensor-parallel rank sends what it holds: a part under sequence parallelism, or where the stack
    ``scatters_sends``; else all of it.
    """
    tokens = table.micro_tokens.astype(np.float64)
    ring = table.cp_method == CP_METHODS.index("ring")
    # a tensor-parallel rank keeps at least one key-value head
    kv = np.maximum(model.kv_width / table.tp, model.head_dim)
    kv_tokens = np.where(ring, tokens, tokens * table.cp)
    split = np.where(table.sequence_parallel | scatters_sends, table.tp, 1)
    fp32 = table.reduce_dtype == REDUCE_DTYPES.index("fp32")
    head = head_tensors(model)
    if model.tied_embeddings:
        # a tied projection lives with the embedding on one stage, but the last of several stages needs a copy
        copy = shard_elements(embedding_tensors(model)[:1], table.tp) * (table.pp > 1)
    else:
        copy = np.zeros(len(table))
    # where multi-token prediction merges two vectors into one
    merge = Tensor(name="mtp", rows=model.hidden, cols=2 * model.hidden, tp="none")
    head_traffic = parameter_traffic(table, modes, (*head, *(model.mtp_layers * (merge,))))
    share, none = expert_share(model), np.zeros(len(table))
    if model.experts is None:
        layer = parameter_traffic(table, modes, layer_tensors(model))
        experts, kinds = ParameterTraffic(elements=none, moved=none), None
        eight = _fp8_traffic(table, modes, layer_tensors(model), fp8)
    else:
        kinds = _layer_kinds(model, table, modes, fp8)
        layer, experts = blended(kinds.dense, kinds.sparse, share), kinds.routed.times(share)
        eight = blended(kinds.dense_fp8, kinds.sparse_fp8, share)
    return Traffic(
        layer=layer,
        experts=experts,
        fp8=eight,
        kinds=kinds if 0.0 < share < 1.0 else None,
        expert_shards=expert_shards(table, modes),
        embedding=parameter_traffic(table, modes, embedding_tensors(model)),
        head=ParameterTraffic(elements=head_traffic.elements + copy, moved=head_traffic.moved + copy),
        reduce_bytes=np.where(fp32, 4.0, 2.0),
        tp_bytes=tokens * model.hidden * BYTES,
        logits_bytes=tokens * model.vocab * BYTES,
        cp_bytes=kv_tokens * 2.0 * kv * BYTES,
        pp_bytes=tokens * model.hidden * BYTES / split,
        routed_bytes=routed_bytes(model, table),
    )
