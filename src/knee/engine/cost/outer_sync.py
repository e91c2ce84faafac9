"""Replicas that exchange every so many steps (local SGD, DiLoCo): what that exchange takes, and its share of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.base.units import short
from knee.engine.cost.collective_cost import Links, all_reduce_s
from knee.engine.cost.compute_costs import is_narrow, product_column
from knee.engine.cost.kernel_cost import Cost, cost_of
from knee.engine.cost.placement import GroupPlacements
from knee.engine.workload import operations as op
from knee.engine.workload.fp8_layers import fp8_shapes, shard_casts, weight_casts
from knee.engine.workload.parameters import layer_tensors, stage_elements
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic, fullest_share
from knee.specs.catalog import catalog_file
from knee.specs.hardware import Cluster, Gpu
from knee.specs.model import Model
from knee.specs.plan import PRECISIONS, SYNC_DTYPES
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile


def optimizer_cost(model: Model, gpu: Gpu, profile: Profile, table: PlanTable, modes: Modes, traffic: Traffic) -> Cost:
    """AdamW over the shard that a GPU owns."""
    shards = np.where(modes.ddp, 1.0, table.dp_shard * table.cp)
    owned, whole = traffic.owned_elements(model, table, modes), traffic.whole_elements(model, table)
    # FSDP casts its shard on the way into the gather, whole parameters are cast in every forward; others keep 16 bit
    keeps = modes.zero1 if profile.casts_weights else ~modes.gathers
    cast = np.where(keeps & (table.state_bytes > PARAMETER_BYTES), owned, 0.0)
    # gradients that stay whole are summed over microbatches
    alone = (shards == 1.0) & modes.gathers
    kept_bytes = np.where(alone, table.state_bytes, np.where(modes.reduces_often, 0.0, traffic.reduce_bytes))
    summed = kept_bytes * whole * (table.microbatches - 1.0)
    fullest = traffic if traffic.kinds is None else traffic.at(fullest_share(model, table))
    copies = _narrow_copies_bytes(model, profile, table, modes, fullest, whole)
    operations = op.optimizer(owned, table, cast, summed, copies, profile.kernels)
    operations += fp8_weight_casts(model, profile, table, fullest)
    return cost_of(gpu, profile, product_column(table), operations)


def _narrow_copies_bytes(
    model: Model, profile: Profile, table: PlanTable, modes: Modes, fullest: Traffic, whole: Floats
) -> Floats:
    """Moved to make the fp8 or NVFP4 weights that all microbatches of a step read; passes that gather cast them."""
    none = np.zeros(len(whole))
    kept = is_narrow(table) & ~modes.reshards
    if profile.fp8_shared_casts:
        kept = kept & (table.precision == PRECISIONS.index("fp4"))
    if not kept.any():
        return none
    held = fullest.layer.elements + fullest.experts.elements
    layers = stage_elements(model, table, held, none, none)
    four = op.NVFP4_COPY_BYTES * (1.0 - profile.bf16_layers_frac) * layers
    narrow = np.where(table.precision == PRECISIONS.index("fp4"), four, op.FP8_COPY_BYTES * whole)
    return np.where(kept, narrow, 0.0)


def fp8_weight_casts(model: Model, profile: Profile, table: PlanTable, fullest: Traffic) -> list[op.Operation]:
    """Casts of weights in stacks with shared casts, for all microbatches of a step: of those that stay whole, or of the
    shards that are gathered. ``fullest`` is of the mean layer of the stage that has most experts."""
    fp8, kernels = fp8_shapes(table, profile), profile.kernels
    if fp8 is None or not fp8.shared_casts:
        return []
    layers = np.ceil(model.walked_layers / table.pp)
    weights = layers * sum(bool(np.min(tensor.cols) > 1) and not tensor.experts for tensor in layer_tensors(model))
    elements = layers * fullest.fp8.weights.elements / fp8.shards
    there, shard = np.where(elements > 0, weights, 0.0), shard_casts(fp8, kernels)
    kept = 1.0 - fp8.gathered - fp8.casts_gathered
    whole = weight_casts(fp8, kernels, fp8.state_bytes).repeated(kept * elements, kept * there)
    return op.fp8_casts(whole.plus(shard.repeated(fp8.gathered * elements, fp8.gathered * there)))


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


DEFAULT_OUTER_LAW = "charles-2025"


def fitted_replicas(law: str = DEFAULT_OUTER_LAW) -> tuple[int, ...]:
    """Numbers of replicas that the law was fitted to, one alone left out."""
    return tuple(count for count in catalog_file("outer_sync_laws.toml")[law]["replicas"] if count > 1)


def loss_ratio(params: float, replicas: int, law: str = DEFAULT_OUTER_LAW) -> float:
    """Loss with so many replicas, divided by that of data parallelism on the same tokens.

    Formula: A_M N^alpha_M / (A N^alpha); log A_M and alpha_M between fitted numbers of replicas by a straight line in
             log M, and M^0.0116 beyond the largest
    Source:  arXiv 2503.09799, in catalog/outer_sync_laws.toml
    Valid:   35 million to 2.4 billion parameters, the nearer of which is used outside; up to 8 replicas; the tokens
             that the law was fitted to, 20 per parameter
    """
    fit = catalog_file("outer_sync_laws.toml")[law]
    counts = np.log(fit["replicas"])
    most = fit["replicas"][-1]
    wanted = math.log(min(replicas, most))
    a, alpha = (float(np.interp(wanted, counts, column)) for column in (np.log(fit["A"]), fit["alpha"]))
    base_a, base_alpha = fit["data_parallel"]
    size = min(max(params, fit["params"][0]), fit["params"][1])
    beyond = float(fit["beyond"]) * math.log(max(replicas / most, 1.0))
    return math.exp(a + (alpha - base_alpha) * math.log(size) + beyond) / float(base_a)


def outside_fit(params: float, replicas: int, *, sync_every: int, law: str = DEFAULT_OUTER_LAW) -> list[str]:
    """What of a run is outside the runs that the law was fitted to, as parts of a sentence; empty if nothing is."""
    fit = catalog_file("outer_sync_laws.toml")[law]
    low, high = fit["params"]
    found = []
    if not low <= params <= high:
        nearer = low if params < low else high
        found.append(f"{short(params)} parameters count as {short(nearer)} (fitted: {short(low)} to {short(high)})")
    if replicas > fit["replicas"][-1]:
        found.append(f"{replicas:,} replicas are more than the {fit['replicas'][-1]} that were fitted")
    if sync_every > fit["sync_every"]:
        found.append(f"exchanges are rarer than every {fit['sync_every']} steps, and may lose more")
    return found


def loss_words(params: float, replicas: int, *, sync_every: int, law: str = DEFAULT_OUTER_LAW) -> str:
    """The change of the loss as a sentence, and whether it is extrapolated."""
    change = loss_ratio(params, replicas, law) - 1.0
    said = f"by the law {law} (arXiv 2503.09799), {replicas:,} replicas change the loss by {change:+.2%}"
    outside = outside_fit(params, replicas, sync_every=sync_every, law=law)
    return f"{said}; this is extrapolated: {', and '.join(outside)}" if outside else said
