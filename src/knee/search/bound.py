"""The least time that a plan's step can take, from priced parts alone: what cannot be good is not simulated further."""

from __future__ import annotations

import numpy as np

from knee.columns import Floats
from knee.cost.step import comm_costs, compute_costs, groups_of
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import RECOMPUTES, SCHEDULES
from knee.specs.profile import Profile
from knee.specs.table import PlanTable
from knee.timeline.actions import local_comms
from knee.workload.traffic import Modes, traffic_of


def least_step_s(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> Floats:
    """No simulated step is shorter.

    A pipeline takes its microbatches and its filling times the mean stage, whose layers compute, and communicate where
    nothing hides it; and the sharded group's queue is no shorter than what stands in it.
    """
    modes = Modes.of(table)
    traffic = traffic_of(model, table, modes, scatters_sends=profile.scatters_sends)
    groups = groups_of(cluster, table, modes)
    compute = compute_costs(model, cluster, profile, table)
    comm = comm_costs(cluster, profile, table, modes, traffic, groups)
    local = local_comms(profile, table, groups, comm, compute, cluster.node.launch_scale)
    selective = np.where(table.recompute == RECOMPUTES.index("selective"), 1.0, 0.0)
    again = table.repeats_frac * compute.layer_forward.time_s + selective * compute.attention_forward_s
    backward = compute.layer_backward_input.time_s + compute.layer_backward_weight.time_s
    layer = compute.layer_forward.time_s + backward + again + local.layer_forward.blocking_s
    layer = layer + local.layer_backward.blocking_s
    ends = compute.head_forward.time_s + compute.head_backward.time_s
    stage = (model.layers * layer + ends) / table.pp
    m = table.microbatches.astype(np.float64)
    filling = np.where(table.schedule == SCHEDULES.index("zero_bubble"), 0.0, (table.pp - 1.0) / table.virtual_stages)
    worked = (m + filling) * stage
    per_stage = model.layers / table.pp
    often = np.where(modes.reshards, m, 1.0)
    queued = per_stage * often * (np.where(modes.reshards, 2.0, 1.0) * comm.gather_layer + comm.reduce_layer)
    queued = np.where(modes.ddp, per_stage * comm.replicate_layer, queued)
    return np.maximum(worked, queued)
