"""Communication of experts: tokens on their way to experts and back, and the experts' own weights and gradients."""

from __future__ import annotations

import numpy as np

from knee.arrays import Floats
from knee.cost.collective_cost import Links, all_reduce_s, gather_s
from knee.cost.placement import GroupPlacement
from knee.cost.skew import skew_wait_s
from knee.specs.constants import constant
from knee.specs.model import Model
from knee.specs.plan import DISPATCHERS, ROUTINGS
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.workload.operations import BYTES
from knee.workload.traffic import PARAMETER_BYTES, Modes, Traffic


def busiest_rank(table: PlanTable) -> Floats:
    """Tokens of the busiest expert-parallel rank over the mean: as the plan says, or as its routing has it."""
    dropless = (table.routing == ROUTINGS.index("dropless")) & (table.ep > 1)
    usual = np.where(dropless, constant("experts", "dropless_imbalance"), 1.0)
    load = np.where(np.isnan(table.imbalance), usual, table.imbalance)
    return np.fmin(load, table.capacity_factor)


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


def routed_costs(model: Model, links: Links, table: PlanTable, group: GroupPlacement) -> tuple[Floats, Floats]:
    """Seconds of a layer's dispatch and of its combine, on the busiest rank."""
    if model.experts is None:
        none = np.zeros(len(table))
        return none, none
    experts, copies = model.experts, table.dispatcher == DISPATCHERS.index("alltoall")
    tokens = table.micro_tokens / table.tp * busiest_rank(table)
    row_bytes = tokens * model.hidden * BYTES
    nodes, per_node = group.nodes, group.per_node
    # a token that is copied for each expert crosses the network so often; else once for each node that has some
    far_nodes = nodes * (1.0 - (1.0 - 1.0 / nodes) ** experts.top_k) * (nodes - 1.0) / nodes
    near_ranks = per_node * (1.0 - (1.0 - 1.0 / group.ranks) ** experts.top_k)
    far = row_bytes * np.where(copies, experts.top_k * (nodes - 1.0) / nodes, far_nodes)
    near = row_bytes * np.where(copies, experts.top_k * (per_node - 1.0) / group.ranks, nodes * near_ranks)
    node, fabric = links.cluster.node, links.cluster.fabric
    inside = near / (node.link_bytes_per_s * node.link_frac)
    outside = far / (fabric.nic_bytes_per_s * fabric.nic_frac * links.bandwidth_scale)
    seconds = constant("collectives", "p2p_base_s") + np.maximum(inside, outside)
    # ranks that split an expert gather its tokens first
    spread = np.where(
        table.etp > 1, (table.etp - 1.0) * row_bytes * experts.top_k / (node.link_bytes_per_s * node.link_frac), 0.0
    )
    seconds = np.where(group.ranks > 1, seconds, 0.0) + spread
    return seconds, seconds
