"""Communication of experts: tokens on their way to experts and back, and the experts' own weights and gradients."""

from __future__ import annotations

import numpy as np

from knee.base.arrays import Floats, distinct
from knee.engine.cost.collective_cost import Links, all_reduce_s, gather_s
from knee.engine.cost.expert_dispatch import Exchange, combine_s, dispatch_s, permutation_bytes
from knee.engine.cost.expert_loads import rank_loads
from knee.engine.cost.placement import GroupPlacement
from knee.engine.cost.skew import skew_wait_s
from knee.engine.workload.shapes import BYTES
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic
from knee.specs.constants import constant
from knee.specs.model import Experts, Model
from knee.specs.plan import DISPATCHERS, PRECISIONS, ROUTINGS
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile

FP8_SENT_BYTES = 1.0 + 4.0 / 128.0  # an element, with its share of an fp32 scale for 128 of them
_EACH_PASS = 4.0  # there and back, read and written


def busiest_rank(model: Model, table: PlanTable) -> Floats:
    """Tokens of the busiest expert-parallel rank over the mean: as the plan says, or as its routing has it; at most the
    capacity of its experts."""
    load = np.ones(len(table))
    if model.experts is None:
        return load
    tokens = routed_tokens(table)
    for code in distinct(table.routing):
        rows = np.flatnonzero((table.routing == code) & (table.ep > 1))
        if not len(rows):
            continue
        count = np.full(len(rows), float(model.experts.count))
        top_k = np.full(len(rows), float(model.experts.top_k))
        ep = table.ep[rows].astype(np.float64)
        load[rows] = rank_loads(ROUTINGS[code], tokens[rows] * ep, top_k, count, ep).imbalance
    return np.fmin(np.where(np.isnan(table.imbalance), load, table.imbalance), table.capacity_factor)


def routed_tokens(table: PlanTable) -> Floats:
    """Tokens of a microbatch that one rank sends to experts: sequence parallelism gives each its own."""
    return np.asarray(table.micro_tokens / table.tp, dtype=np.float64)


def permuted_rows(model: Model, table: PlanTable) -> Floats:
    """Tokens that a rank puts into the order of their experts and back; 0 in a dense model."""
    rows = np.zeros(len(table))
    if model.experts is None:
        return rows
    exchange = _exchange(model, model.experts, table, per_domain=table.ep.astype(np.float64))
    computed = routed_tokens(table) * model.experts.top_k * table.etp * busiest_rank(model, table)
    for code in distinct(table.dispatcher):
        moved = permutation_bytes(DISPATCHERS[code], exchange, computed)
        rows = np.where(table.dispatcher == code, moved / (_EACH_PASS * model.hidden * BYTES), rows)
    return rows


def preprocess_kernels(table: PlanTable) -> Floats:
    """Kernels of the router that DeepEP and HybridEP have in a kernel of their own, which prepares the exchange."""
    own = (table.dispatcher != DISPATCHERS.index("alltoall")) & (table.ep > 1)
    return np.where(own, constant("experts", "preprocess_kernels"), 0.0)


def _exchange(model: Model, experts: Experts, table: PlanTable, per_domain: Floats) -> Exchange:
    def same(value: int) -> Floats:
        return np.full(len(table), float(value))

    return Exchange(
        tokens=routed_tokens(table),
        hidden=same(model.hidden),
        top_k=same(experts.top_k),
        experts=same(experts.count),
        ranks=table.ep.astype(np.float64),
        per_domain=per_domain,
        groups=same(experts.groups),
        chosen_groups=same(experts.top_groups),
        imbalance=busiest_rank(model, table),
    )


def expert_weight_costs(
    links: Links, profile: Profile, modes: Modes, t: Traffic, shard: GroupPlacement, replicate: GroupPlacement
) -> dict[str, Floats]:
    """Gathers and reductions of a layer's experts, which stand in the queue behind those of the rest of the layer."""
    elements = t.experts.moved
    if not elements.any():
        return dict.fromkeys(("gather_experts", "reduce_experts", "replicate_experts"), 0.0 * elements)
    wait, replica_wait = skew_wait_s(profile.skew_s, shard), skew_wait_s(profile.skew_s, replicate)
    gradients = t.reduce_bytes * elements
    copies = all_reduce_s(links, replicate, gradients / t.expert_shards) + replica_wait
    return {
        "gather_experts": gather_s(links, shard, PARAMETER_BYTES * elements) + wait,
        "reduce_experts": np.where(modes.ddp, 0.0, gather_s(links, shard, gradients) + wait),
        "replicate_experts": np.where(modes.ddp, all_reduce_s(links, shard, gradients) + wait, copies),
    }


def routed_costs(
    model: Model, links: Links, profile: Profile, table: PlanTable, group: GroupPlacement, etp: GroupPlacement
) -> tuple[Floats, Floats, Floats]:
    """Seconds of a layer's dispatch and of its combine, on the busiest rank, and of the gather of the tokens of all
    ranks that split an expert, which takes as long as the reduction of what it puts out."""
    dispatch, combine = np.zeros(len(table)), np.zeros(len(table))
    if model.experts is None:
        return dispatch, combine, np.zeros(len(table))
    exchange = _exchange(model, model.experts, table, per_domain=group.per_node)
    eight_bit = (table.precision == PRECISIONS.index("fp8")) & profile.fp8_dispatch
    element_bytes = np.where(eight_bit, FP8_SENT_BYTES, BYTES)
    for code, name in enumerate(DISPATCHERS):
        if (table.dispatcher == code).any():
            there = table.dispatcher == code
            dispatch = np.where(there, dispatch_s(links, name, exchange, element_bytes=element_bytes), dispatch)
            combine = np.where(there, combine_s(links, name, exchange), combine)
    rows = routed_tokens(table) * model.experts.top_k * table.etp * busiest_rank(model, table)
    return dispatch, combine, gather_s(links, etp, rows * model.hidden * BYTES)
