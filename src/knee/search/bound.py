"""The least time that a plan's step can take, from priced parts alone: what cannot be good is not simulated further."""

from __future__ import annotations

import numpy as np

from knee.arrays import Floats
from knee.cost.step_parts import ComputeCosts, comm_costs, compute_costs, groups_of
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import SCHEDULES
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.timeline.actions import local_comms
from knee.workload.traffic import Modes, traffic_of


def least_compute_s(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> Floats:
    """A looser bound, for which no message is priced: a pipeline takes its microbatches and its filling times the mean
    stage, whose layers compute."""
    return _worked(model, table, compute_costs(model, cluster, profile, table), np.zeros(len(table)))


def least_step_s(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> Floats:
    """No simulated step is shorter by more than a hundredth or two, which hide where a stage waits anyway.

    As above, with what layers communicate where nothing hides it; and the sharded group's queue is no shorter than what
    stands in it.
    """
    modes = Modes.of(table)
    traffic = traffic_of(model, table, modes, scatters_sends=profile.scatters_sends)
    groups = groups_of(cluster, table, modes)
    compute = compute_costs(model, cluster, profile, table)
    comm = comm_costs(cluster, profile, table, modes, traffic, groups)
    local = local_comms(profile, table, groups, comm, compute, cluster.node.launch_scale)
    worked = _worked(model, table, compute, local.layer_forward.blocking_s + local.layer_backward.blocking_s)
    per_stage = model.layers / table.pp
    gathers = np.where(modes.reshards, 2.0 * table.microbatches, 1.0)
    reduces = np.where(modes.reduces_often, table.microbatches, 1.0)
    queued = per_stage * (gathers * comm.gather_layer + reduces * comm.reduce_layer)
    queued = np.where(modes.ddp, per_stage * comm.replicate_layer, queued)
    return np.maximum(worked, queued)


def _worked(model: Model, table: PlanTable, compute: ComputeCosts, blocking_s: Floats) -> Floats:
    again = table.repeats_frac * compute.layer_forward.time_s + compute.ops_again.time_s
    again = again + table.recomputes("attention") * compute.attention_forward_s
    backward = compute.layer_backward_input.time_s + compute.layer_backward_weight.time_s
    layer = compute.layer_forward.time_s + backward + again + blocking_s
    ends = compute.head_forward.time_s + compute.head_backward.time_s
    stage = (model.layers * layer + ends) / table.pp
    filling = np.where(table.schedule == SCHEDULES.index("zero_bubble"), 0.0, (table.pp - 1.0) / table.virtual_stages)
    return (table.microbatches + filling) * stage
