"""Seconds of every message of a step, as columns over plans.

Messages depend on few things (groups, sharding, sizes), so they are priced once per distinct plan and gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats, Ints, equal_rows, expanded
from knee.engine.cost.collective_cost import Links, all_reduce_s, gather_s, send_s
from knee.engine.cost.expert_dispatch import busiest_rank, expert_weight_costs, routed_costs
from knee.engine.cost.placement import GroupPlacement, GroupPlacements, gpus_used, nodes_apart, skew_wait_s
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import DISPATCHERS
from knee.specs.plan_table import PlanTable, columns_of, runs_both_ways, variant_rows
from knee.specs.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayerComm:
    """Messages of a layer without experts that differ from those of a layer with them."""

    gather_layer: Floats
    reduce_layer: Floats
    replicate_layer: Floats
    tp_forward_saved: Floats
    tp_backward_saved: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CommCosts:
    """Seconds of each message, alone on the machine's in-training links."""

    gather_layer: Floats
    gather_embedding: Floats
    gather_head: Floats
    gather_root: Floats
    """Embedding and head in one group, where one stage holds both."""
    reduce_layer: Floats
    reduce_embedding: Floats
    reduce_head: Floats
    reduce_root: Floats
    replicate_layer: Floats
    gather_experts: Floats
    """Of a layer's gather, the part of its routed experts; 0 in a dense model."""
    reduce_experts: Floats
    replicate_experts: Floats
    replicate_embedding: Floats
    replicate_head: Floats
    replicate_root: Floats
    tp_gather: Floats
    """All-gather or reduce-scatter of a microbatch's activations (sequence parallel)."""
    tp_forward_saved: Floats
    """Of a layer's gathers forward, what they are shorter by because they are in fp8, less the reduction of the largest
    element before each."""
    tp_backward_saved: Floats
    tp_all_reduce: Floats
    tp_scale: Floats
    """All-reduce of one number."""
    tp_sum: Floats
    """All-reduce of one number per token."""
    tp_loss: Floats
    """One of the small reductions of the parallel loss, or the gather of all logits."""
    cp_gather: Floats
    cp_send: Floats
    pp_send: Floats
    dispatch: Floats
    """Tokens of a microbatch to their experts; 0 in a dense model."""
    etp_gather: Floats
    """Tokens of all ranks that split an expert, and as long the reduction of what it puts out."""
    combine: Floats
    """What the experts put out, back to where its tokens came from."""
    norm: Floats
    """All-reduce of the gradient norm over all GPUs that a step keeps together."""
    dense: DenseLayerComm | None = None
    """Of a layer without experts, where the model has both; the fields of the same names, here, are then those of a
    layer with experts."""


def comm_costs(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, modes: Modes, t: Traffic, g: GroupPlacements
) -> CommCosts:
    """Price every message of every plan, once for each kind of plan that sends the same over the same groups."""
    axes = [getattr(table, axis) for axis in table.placement]
    kinds: list[Floats | Ints | Bools] = [table.sharding, table.sync_every, table.reduce_dtype, table.cp_method]
    kinds += [table.sequence_parallel, table.collectives, *columns_of(model, cluster.node, cluster.fabric, profile)]
    kinds += [t.fp8.saved_bytes, t.fp8.tp_forward, t.fp8.tp_backward]
    if model.experts is not None:
        kinds += (table.ep, table.etp, table.dispatcher, table.precision, busiest_rank(model, table))
    first, kind = equal_rows(table.gpus, table.micro_tokens, *kinds, *axes)
    if len(first) == len(table):
        return _comm_costs(model, cluster, profile, table, modes, t, g)
    few, some = table.rows(first), expanded(g, first)
    model, cluster, profile = variant_rows(model, first), variant_rows(cluster, first), variant_rows(profile, first)
    return expanded(_comm_costs(model, cluster, profile, few, expanded(modes, first), expanded(t, first), some), kind)


def _comm_costs(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, modes: Modes, t: Traffic, g: GroupPlacements
) -> CommCosts:
    links = Links.in_training(cluster, profile)
    per_node = gpus_used(table.gpus, cluster.node.gpus)
    root = t.embedding.moved + t.head.moved

    shard_wait, replica_wait, tp_wait = (skew_wait_s(profile.skew_s, group) for group in (g.shard, g.replicate, g.tp))

    # the messages of one group stand side by side: what a ring's links take is then worked out once
    dense = () if t.kinds is None else (t.kinds.dense.moved,)
    in_fp8 = t.fp8.saved_bytes > 0
    if t.kinds is not None:
        t = replace(t.at(1.0), kinds=t.kinds)  # a layer with experts
    elements = np.array((t.layer.moved, t.embedding.moved, t.head.moved, root, *dense))
    gathered = PARAMETER_BYTES * elements
    gathered[0] -= t.fp8.saved_bytes
    if t.kinds is not None:
        gathered[-1] -= t.kinds.dense_fp8.saved_bytes
    sharded = np.concatenate((gathered, t.reduce_bytes * elements))
    gather, reduce = np.split(gather_s(links, g.shard, sharded) + shard_wait, 2)
    reduce = np.where(modes.ddp, 0.0, reduce)
    message = t.reduce_bytes * elements / np.where(modes.ddp, 1.0, g.shard.ranks)
    # DDP cuts gradients into buckets, each an all-reduce of its own; a shard goes in one piece
    buckets = np.where(modes.ddp, np.maximum(np.floor(message / profile.ddp_bucket_bytes), 1.0), 1.0)
    replicate = buckets * all_reduce_s(links, g.replicate, message / buckets) + replica_wait

    def over(seconds: Floats, name: str) -> dict[str, Floats]:
        return {f"{name}_{part}": seconds[i] for i, part in enumerate(("layer", "embedding", "head", "root"))}

    def send(group: GroupPlacement, message: Floats, axis: str) -> Floats:
        return send_s(links, group.ranks, group.nodes == 1, message, nodes_apart(table, per_node, axis))

    one = np.full(len(table), 4.0)
    tp_all_reduce, tp_sum, tp_scale = all_reduce_s(links, g.tp, np.array((t.tp_bytes, 4.0 * table.micro_tokens, one)))
    weights = over(gather, "gather") | over(reduce, "reduce") | over(replicate, "replicate")
    weights |= expert_weight_costs(links, profile, modes, t, g.expert_shard, g.replicate)
    if model.experts is not None:
        for name in ("gather", "reduce", "replicate"):
            weights[f"{name}_layer"] = weights[f"{name}_layer"] + weights[f"{name}_experts"]
    dispatch, combine, etp_gather = routed_costs(model, links, profile, table, g.ep, g.etp)
    tp_gather, tp_fp8 = gather_s(links, g.tp, np.array((t.tp_bytes, t.tp_bytes / 2.0)))
    shorter = tp_gather - tp_fp8 - tp_scale
    without_experts = None
    if t.kinds is not None:
        without_experts = DenseLayerComm(
            gather_layer=gather[-1],
            reduce_layer=reduce[-1],
            replicate_layer=replicate[-1],
            tp_forward_saved=t.kinds.dense_fp8.tp_forward * shorter,
            tp_backward_saved=t.kinds.dense_fp8.tp_backward * shorter,
        )
    return CommCosts(
        **weights,
        dispatch=dispatch,
        combine=combine,
        etp_gather=etp_gather,
        tp_gather=tp_gather + tp_wait,
        tp_forward_saved=t.fp8.tp_forward * shorter,
        tp_backward_saved=t.fp8.tp_backward * shorter,
        tp_all_reduce=tp_all_reduce + tp_wait,
        tp_sum=tp_sum,
        tp_scale=tp_scale,
        tp_loss=tp_sum if profile.loss_parallel else gather_s(links, g.tp, t.logits_bytes),
        cp_gather=gather_s(links, g.cp, t.cp_bytes),
        cp_send=np.where(table.cp > 1, send(g.cp, t.cp_bytes, "cp"), 0.0),
        pp_send=np.where(table.pp > 1, send(g.pp, t.pp_bytes, "pp"), 0.0),
        # and once a step the largest elements of all weights that are gathered in fp8
        norm=all_reduce_s(links, g.world, one) + np.where(in_fp8, all_reduce_s(links, g.shard, one), 0.0),
        dense=without_experts,
    )


def contention(
    cluster: Cluster, profile: Profile, table: PlanTable, modes: Modes, t: Traffic, g: GroupPlacements, comm: CommCosts
) -> Floats:
    """How much slower compute runs beside this plan's communication.

    Formula: kappa * min(1, (bytes sent / time) / (0.102 hbm)), the whole of kappa where tensor-parallel exchange hides;
             beside tokens on their way to experts at least taken / (sms - taken), for NCCL's all-to-all kappa
    Where:   bytes and time are those of a layer's gather (DDP: all-reduce); 0.102 is what an H100 node's ring reaches;
             taken are the SMs of a dispatcher's kernels (constants dispatch_sms)
    Source:  a collective takes memory traffic and SMs from compute as it moves bytes, and little while it waits;
             DeepSeek-V3, arXiv 2412.19437, section 3.2.2: 20 SMs are set aside for communication
    """
    ranks = np.where(modes.ddp, g.replicate.ranks, g.shard.ranks)
    width = np.where(modes.ddp, 2.0 * t.reduce_bytes, PARAMETER_BYTES)
    sent = (width * t.layer.moved - t.fp8.saved_bytes) * (ranks - 1.0) / ranks
    sent = sent + width * t.experts.moved * (g.expert_shard.ranks - 1.0) / g.expert_shard.ranks
    time = np.where(modes.ddp, comm.replicate_layer, comm.gather_layer)
    rate = sent / np.where(time > 0, time, 1.0)
    overlap = np.where(np.isnan(table.tp_overlap_frac), profile.tp_overlap_frac, table.tp_overlap_frac)
    hides = (table.tp > 1) & (g.tp.nodes == 1) & (overlap > 0.0)
    share = np.minimum(1.0, rate / (constant("collectives", "contention_frac") * cluster.gpu.hbm_bytes_per_s))
    kappa = profile.compute_slowdown_frac * np.where(hides, 1.0, share)
    beside = (table.ep > 1) & (table.ep_overlap | runs_both_ways(table))
    if not beside.any():
        return kappa
    taken = np.array([constant("dispatch_sms", name) for name in DISPATCHERS])[table.dispatcher]
    nccl = table.dispatcher == DISPATCHERS.index("alltoall")
    slower = np.where(nccl, profile.compute_slowdown_frac, taken / (cluster.gpu.sms - taken))
    return np.where(beside, np.maximum(kappa, slower), kappa)
