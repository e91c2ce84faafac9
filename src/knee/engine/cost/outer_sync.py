"""Replicas that exchange every so many steps (local SGD, DiLoCo): what that exchange takes, and its share of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.cost.collective_cost import Links, all_reduce_s
from knee.engine.cost.compute_costs import product_column
from knee.engine.cost.group_placements import GroupPlacements
from knee.engine.cost.kernel_cost import Cost, cost_of
from knee.engine.workload import operations as op
from knee.engine.workload.parameters import stage_elements
from knee.engine.workload.traffic import Modes, Traffic, fullest_share
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import SYNC_DTYPES
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile

SYNC_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Of one number of the outer gradient; scales of blocks are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSync:
    """The replicas' exchange of every plan; nothing where gradients are reduced in every step."""

    message_bytes: Floats
    """Of one GPU's part of the outer gradient."""
    all_reduce_s: Floats
    """One exchange, which blocks."""
    optimizer: Cost
    """The outer optimizer, after one exchange."""
    per_step: Floats
    """Exchanges in a step: one over ``sync_every``, or none."""
    streams: Bools
    """Whether exchanges run beside compute."""
    hidden_s: Floats
    """A step's share of the exchange that runs beside compute."""

    @property
    def comm_s(self) -> Floats:
        """A step's share of the all-reduce, as far as it blocks."""
        return self.per_step * self.all_reduce_s - self.hidden_s

    def beside(self, step_s: Floats) -> OuterSync:
        """With what a step of this length hides, where exchanges run beside it."""
        whole = self.per_step * self.all_reduce_s
        return replace(self, hidden_s=np.where(self.streams, np.minimum(whole, step_s), 0.0))

    @property
    def compute_s(self) -> Floats:
        """A step's share of the outer optimizer."""
        return self.per_step * self.optimizer.time_s

    @property
    def moved_bytes(self) -> Floats:
        """A step's share of the outer optimizer's traffic."""
        return self.per_step * self.optimizer.moved_bytes


def outer_sync_cost(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, modes: Modes, t: Traffic, g: GroupPlacements
) -> OuterSync:
    """What replicas do at the end of every ``sync_every``-th step.

    Formula: all_reduce(bytes * P / shards) over dp_replicate, then 16 passes over P / shards in fp32; a step has
             1 / sync_every of both
    Where:   P parameters of the fullest stage's model shard, in the type that gradients are reduced in: the difference
             of the parameters since the last exchange is the outer gradient. All of a shard goes in one message
    Source:  DiLoCo, arXiv 2311.08105, algorithm 1: Nesterov's momentum on the mean difference; passes in kernels.toml
             Streaming DiLoCo, arXiv 2501.18512: a fragment at a time beside compute, in as few as 4 bits
    Valid:   an exchange beside compute is taken to slow down neither compute nor other communication
    """
    shards, owned = np.where(modes.ddp, 1.0, g.shard.ranks), t.owned_elements(model, table, modes)
    if t.kinds is not None:
        t = t.at(fullest_share(model, table))
    # as in a gather: the largest part of a dimension that does not divide is a whole number of rows
    widths = np.array([0.0, *(SYNC_BYTES[name] for name in SYNC_DTYPES)])[table.sync_dtype]
    width = np.where(table.sync_dtype == 0, t.reduce_bytes, widths)
    message = width * stage_elements(model, table, t.layer.moved, t.embedding.moved, t.head.moved) / shards
    if model.experts is not None:
        expert_ranks = np.where(modes.ddp, 1.0, t.expert_shards)
        message = message + width * np.ceil(model.walked_layers / table.pp) * t.experts.moved / expert_ranks
    apart, parts = table.sync_every > 1, table.sync_fragments.astype(np.float64)
    outer = cost_of(cluster.gpu, profile, product_column(table), op.outer_optimizer(owned, profile.kernels))
    return OuterSync(
        message_bytes=message,
        all_reduce_s=parts * all_reduce_s(Links.in_training(cluster, profile), g.exchange, message / parts),
        optimizer=outer,
        per_step=np.where(apart, 1.0 / table.sync_every, 0.0),
        streams=apart & (table.sync_fragments > 1),
        hidden_s=np.zeros(len(table)),
    )
