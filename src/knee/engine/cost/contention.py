"""How much slower compute runs beside communication."""

from __future__ import annotations

import numpy as np

from knee.base.arrays import Floats
from knee.engine.cost.comm_costs import CommCosts
from knee.engine.cost.group_placements import GroupPlacements
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.plan import DISPATCHERS
from knee.specs.plan_table import PlanTable, runs_both_ways
from knee.specs.profile import Profile


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
