"""Bytes that each collective of a step carries, as columns over plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.arrays import Bools, Floats
from knee.specs.job import check_simulated
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, REDUCE_DTYPES, SHARDINGS
from knee.specs.plan_table import PlanTable
from knee.workload.operations import BYTES
from knee.workload.parameters import (
    Tensor,
    embedding_tensors,
    gathered_elements,
    head_tensors,
    layer_tensors,
    shard_elements,
)

PARAMETER_BYTES = 2.0  # parameters are gathered in 16 bit, fp8 included


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
class ParameterTraffic:
    """Elements of one group of weights (a layer, the embedding, the head) on one model-parallel rank."""

    elements: Floats
    """Held by the rank's model shard, unpadded."""
    moved: Floats
    """Moved by one gather or reduce, FSDP2's padding included."""


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


def traffic_of(model: Model, table: PlanTable, modes: Modes, *, scatters_sends: bool = False) -> Traffic:
    """Messages of every plan. TP and PP shrink FSDP's bytes and, through the mesh, its group.

    Between stages every tensor-parallel rank sends what it holds: a part under sequence parallelism, or where the stack
    ``scatters_sends``; else all of it.
    """
    check_simulated(model)
    tokens = table.micro_tokens.astype(np.float64)
    ring = table.cp_method == CP_METHODS.index("ring")
    # a tensor-parallel rank keeps at least one key-value head
    kv = np.maximum(model.kv_width / table.tp, float(model.head_dim))
    kv_tokens = np.where(ring, tokens, tokens * table.cp)
    split = np.where(table.sequence_parallel | scatters_sends, table.tp, 1)
    fp32 = table.reduce_dtype == REDUCE_DTYPES.index("fp32")
    head = head_tensors(model)
    if model.tied_embeddings:
        # a tied projection lives with the embedding on one stage, but the last of several stages needs a copy
        copy = shard_elements(embedding_tensors(model)[:1], table.tp) * (table.pp > 1)
    else:
        copy = np.zeros(len(table))
    head_traffic = parameter_traffic(table, modes, head)
    return Traffic(
        layer=parameter_traffic(table, modes, layer_tensors(model)),
        embedding=parameter_traffic(table, modes, embedding_tensors(model)),
        head=ParameterTraffic(elements=head_traffic.elements + copy, moved=head_traffic.moved + copy),
        reduce_bytes=np.where(fp32, 4.0, 2.0),
        tp_bytes=tokens * model.hidden * BYTES,
        logits_bytes=tokens * model.vocab * BYTES,
        cp_bytes=kv_tokens * 2.0 * kv * BYTES,
        pp_bytes=tokens * model.hidden * BYTES / split,
    )
