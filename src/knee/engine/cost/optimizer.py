"""Seconds of what a GPU does once a step for its weights: AdamW, sums of gradients, and casts for the next step."""

from __future__ import annotations

import numpy as np

from knee.base.arrays import Floats
from knee.engine.cost.compute_costs import is_narrow, product_column
from knee.engine.cost.kernel_cost import Cost, cost_of
from knee.engine.workload import operations as op
from knee.engine.workload.fp8_layers import fp8_shapes, shard_casts, weight_casts
from knee.engine.workload.layer_weights import layer_tensors
from knee.engine.workload.parameters import stage_elements
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic, fullest_share
from knee.specs.hardware import Gpu
from knee.specs.model import Model
from knee.specs.plan import PRECISIONS
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
    whole = weight_casts(fp8, kernels, fp8.state_bytes).times(kept * elements, kept * there)
    return op.fp8_casts(whole.plus(shard.times(fp8.gathered * elements, fp8.gathered * there)))
