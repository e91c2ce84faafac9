"""Seconds of what a step computes, segment by segment, as columns over plans.

Compute depends on few things (tokens, tp, cp, precision, ...), so it is evaluated once per distinct shape and gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knee.base.arrays import Bools, Floats, Ints, blended, distinct, equal_rows, expanded, names_of
from knee.engine.cost.expert_dispatch import busiest_rank, permuted_rows, preprocess_kernels
from knee.engine.cost.kernel_cost import GEMM_TYPES, Cost, cost_of, costs_of, launches
from knee.engine.workload import operations as op
from knee.engine.workload.fp8_layers import fp8_shapes
from knee.engine.workload.parameters import parameter_count, routed_parameter_count
from knee.engine.workload.projections import Shapes, expert_share, layer_kinds, on_one_gpu
from knee.engine.workload.recomputed_modules import operations_of
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes
from knee.specs.constants import constant
from knee.specs.hardware import Cluster, GemmType, Gpu, Precision
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, PRECISIONS, RECOMPUTE_MODULES, RECOMPUTES, SHARDINGS
from knee.specs.plan_table import PlanTable, columns_of, variant_rows
from knee.specs.profile import Kernels, Profile

# The clock that a board's power limit leaves to products and attention.

SLOWEST = 0.05
"""Of the highest clock: less is no clock of a GPU that computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one GPU computes in a step."""

    clocked_s: Floats
    """Products and attention at the highest clock."""
    other_s: Floats
    """Memory-bound kernels, which do not follow the clock."""
    flop: Floats
    """Tensor-core operations, by their energy in products."""
    moved_bytes: Floats
    bubble_frac: Floats
    """Waiting for other stages, over compute."""
    host_s: Floats
    """Host time of its launches: the GPU waits where that is longer than its compute."""


def clock_frac(gpu: Gpu, work: StepWork) -> Floats:
    """Clock while a plan computes, over the highest.

    Formula: the x <= 1 with  idle + (E x + B) / ((C/x + M)(1 + bubble) + H) = cap
    Where:   E = flop * J/FLOP at the highest clock, B = bytes * J/B, C clocked and M other seconds, H the host's more
    Source:  data/h200/power.jsonl: products draw 1.08 pJ/FLOP at 1,980 MHz and 0.85 at 1,476, in proportion to the
             clock within 5%; products at 50 to 100% of the time leave 1,969 to 1,476 MHz, this form within 5%
    Valid:   means over many steps; communication counts neither as time nor as draw, as it draws about the mean
    """
    free = _clock(gpu, work, gpu.tdp_w)
    if gpu.gemm_clock_frac < 1.0:
        return free
    # the clock of the measurement is all that is known: it holds under the limit of the measurement
    return np.minimum(1.0, free / _clock(gpu, work, gpu.gemm_cap_w or gpu.tdp_w))


def _clock(gpu: Gpu, work: StepWork, cap_w: float) -> Floats:
    room = cap_w - gpu.idle_w
    waits = np.maximum(0.0, work.host_s - work.clocked_s - work.other_s)
    # E x^2 + (B - room W) x - room V = 0, with V the clocked and W the other seconds
    clocked = work.clocked_s * (1.0 + work.bubble_frac)
    other = work.other_s * (1.0 + work.bubble_frac) + waits
    energy = np.maximum(work.flop * gpu.gemm_j_per_flop, 1e-30)
    linear = work.moved_bytes * gpu.hbm_j_per_byte - room * other
    root = np.sqrt(linear**2 + 4.0 * energy * room * clocked)
    # the form without a difference of equal numbers, whichever sign the linear term has
    x = np.where(linear > 0, 2.0 * room * clocked / (root + linear), (root - linear) / (2.0 * energy))
    return np.clip(x, SLOWEST, 1.0)


def shapes_of(model: Model, table: PlanTable, profile: Profile | None = None) -> Shapes:
    """What the kernels of each plan depend on; without a profile, no stack casts whole fp32 weights in every forward,
    and none has fp8 layers of its own."""
    casts = profile is not None and profile.casts_weights
    tokens = table.micro_tokens.astype(np.float64)
    eight_bit, four_bit = (table.precision == PRECISIONS.index(name) for name in ("fp8", "fp4"))
    ring = table.cp_method == CP_METHODS.index("ring")
    busiest, permuted = _routed_shapes(model, table)
    return Shapes(
        tokens=tokens,
        sequences=table.micro_batch.astype(np.float64),
        seq_len=table.seq_len.astype(np.float64),
        tp=table.tp.astype(np.float64),
        cp=table.cp.astype(np.float64),
        ep=table.ep.astype(np.float64),
        etp=table.etp.astype(np.float64),
        busiest=busiest,
        permuted_rows=permuted,
        preprocess_kernels=preprocess_kernels(table),
        kv_block=np.where(ring, table.seq_len / table.cp, table.seq_len),
        norm_tokens=np.where(table.sequence_parallel, tokens / table.tp, tokens),
        eight_bit=np.where(eight_bit, 1.0, 0.0),
        four_bit=np.where(four_bit, 1.0, 0.0),
        casts_narrow=np.where((eight_bit | four_bit) & Modes.of(table).reshards, 1.0, 0.0),
        casts=np.where(casts_weights(table, profile) & casts, 1.0, 0.0),
        fp8=fp8_shapes(table, profile),
    )


def _routed_shapes(model: Model, table: PlanTable) -> tuple[Floats, Floats]:
    """Load of the busiest rank and tokens that are permuted, once for each way to lay out the experts."""
    if model.experts is None:
        return np.ones(len(table)), np.zeros(len(table))
    names = ("tp", "ep", "etp", "routing", "dispatcher", "imbalance", "capacity_factor")
    columns = [getattr(table, name) for name in names]
    first, kind = equal_rows(table.micro_tokens, *columns, *columns_of(model))
    few, own = table.rows(first), variant_rows(model, first)
    return busiest_rank(own, few)[kind], permuted_rows(own, few)[kind]


def casts_weights(table: PlanTable, profile: Profile | None) -> Bools:
    """Plans whose parameters are whole and fp32: one GPU, or DDP. FSDP casts its shard, ZeRO keeps a 16-bit copy."""
    sharded = on_one_gpu(profile, table)
    whole = np.where(table.sharding == SHARDINGS.index("ddp"), 1, table.dp_shard * table.cp) == 1
    copied = (table.sharding == SHARDINGS.index("zero1")) | (table.sharding == SHARDINGS.index("zero2"))
    return np.asarray(whole & ~copied & ~sharded & (table.state_bytes > PARAMETER_BYTES), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCosts:
    """Cost of each segment of a pass, per plan."""

    embedding_forward: Cost
    embedding_backward: Cost
    layer_forward: Cost
    layer_backward_input: Cost
    layer_backward_weight: Cost
    head_forward: Cost
    head_backward: Cost
    ops_again: Cost
    """What the recomputation policies "ops" and "modules" run again of a layer's forward; 0 for plans with another."""
    attention_forward_s: Floats
    """Of the layer's forward, for the recomputation of attention and for ring steps."""
    attention_forward_flop: Floats
    clock_frac: Floats
    """Clock that the board's limit leaves, over the highest."""


def compute_costs(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, *, any_sharding: bool = False
) -> tuple[ComputeCosts, ...]:
    """Evaluate each segment once per distinct shape, and slow it down to the clock that the plan's draw leaves: of the
    mean layer, and of the two kinds of layers where they are not alike. With ``any_sharding``, to the highest clock
    that it would have under another sharding."""
    kinds, more = layer_kinds(model), launches_of_casts(model, profile, table) if any_sharding else 0.0
    if kinds is None:
        fastest = _fastest_costs(model, cluster, profile, table)
        return (at_clock(fastest, step_clock(model, cluster, profile, table, fastest, more)),)
    dense, sparse = (_fastest_costs(kind, cluster, profile, table) for kind in kinds)
    mean = blended(dense, sparse, expert_share(model))
    clock = step_clock(model, cluster, profile, table, mean, more)
    return tuple(at_clock(costs, clock) for costs in (mean, dense, sparse))


def at_clock(costs: ComputeCosts, clock: Floats) -> ComputeCosts:
    """Products and attention at a share of the highest clock; memory-bound kernels do not follow it."""
    longer = 1.0 / clock - 1.0
    slow: dict[str, Any] = {
        name: replace(cost, time_s=cost.time_s + longer * cost.clocked_s)
        for name in names_of(ComputeCosts)
        if isinstance(cost := getattr(costs, name), Cost)
    }
    return replace(costs, **slow, attention_forward_s=costs.attention_forward_s / clock, clock_frac=clock)


def step_total(model: Model, table: PlanTable, c: ComputeCosts, name: str) -> Floats:
    """A field of the costs over one step of a GPU, mean over stages."""
    forward, back, weight = (
        getattr(cost, name) for cost in (c.layer_forward, c.layer_backward_input, c.layer_backward_weight)
    )
    ends = sum(
        getattr(cost, name) for cost in (c.embedding_forward, c.embedding_backward, c.head_forward, c.head_backward)
    )
    layers = model.walked_layers * ((1.0 + table.repeats_frac) * forward + back + weight + getattr(c.ops_again, name))
    return np.asarray((layers + ends) * table.microbatches / table.pp, dtype=np.float64)


def launches_of_casts(model: Model, profile: Profile, table: PlanTable) -> Floats | float:
    """Kernels of a step that other shardings of a plan launch to cast weights, and ZeRO-1 does not. Beside messages
    that take longer they cost no time, but the clock takes them for a pause of the GPU."""
    if not (profile.casts_weights or is_narrow(table).any()):
        return 0.0
    first, kind = equal_rows(
        *(getattr(table, name) for name in ("gpus", "tp", "cp", "ep", "etp", "dispatcher", "precision", "fp8_recipe")),
        *(table.sequence_parallel, table.state_dtype, table.dp),
        *columns_of(model, profile),
    )
    few, profile = table.rows(first), variant_rows(profile, first)
    kinds = layer_kinds(variant_rows(model, first)) or (variant_rows(model, first),)
    one, dp = np.ones_like(few.dp), few.dp
    ranks = {"zero1": (dp, one), "ddp": (one, dp), "fsdp": (dp, one), "fsdp_no_reshard": (dp, one)}
    more = np.zeros((2, len(few)))
    for own in kinds:
        found = []
        for name, (shard, copies) in ranks.items():
            code = np.full(len(few), SHARDINGS.index(name))
            s = shapes_of(own, replace(few, sharding=code, dp_shard=shard, dp_replicate=copies), profile)
            layer = {part: launches(profile, ops(own, s, profile.kernels)) for part, ops in _LAYER.items()}
            backward = layer["layer_backward_input"] + layer["layer_backward_weight"]
            found.append(np.array(np.broadcast_arrays(layer["layer_forward"], backward, np.zeros(len(few)))[:2]))
        more = np.maximum(more, np.max(found, axis=0) - found[0])
    forward, backward = more[:, kind]
    # what is recomputed has at most the kernels of a forward
    again = np.where(table.recompute == RECOMPUTES.index("none"), 0.0, 1.0)
    layers = model.walked_layers * ((1.0 + again) * forward + backward)
    return np.asarray(layers * table.microbatches / table.pp, dtype=np.float64)


def step_clock(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, c: ComputeCosts, more_kernels: Floats | float
) -> Floats:
    """The clock at which a plan's compute draws no more than the board's limit (``energy.clock``)."""

    def total(name: str) -> Floats:
        return step_total(model, table, c, name)

    shards = np.where(table.sharding == SHARDINGS.index("ddp"), 1, table.dp_shard * table.cp)
    owned = (parameter_count(model) - routed_parameter_count(model)) / (table.tp * table.pp * shards)
    ddp = table.sharding == SHARDINGS.index("ddp")
    expert_ranks = np.where(ddp, table.ep * table.etp, table.dp_shard * table.cp * table.tp)
    owned = owned + routed_parameter_count(model) / (table.pp * expert_ranks)
    none = 0.0 * owned
    steps = op.optimizer(owned, table, none, none, none, profile.kernels)
    updated = cost_of(cluster.gpu, profile, product_column(table), steps)
    work = StepWork(
        clocked_s=total("clocked_s"),
        other_s=total("time_s") - total("clocked_s") + updated.time_s,
        flop=total("flop") - energy_saved_frac(table) * total("narrow_flop"),
        moved_bytes=total("moved_bytes") + updated.moved_bytes,
        bubble_frac=(table.pp - 1.0) / (table.microbatches * table.virtual_stages),
        host_s=(total("kernels") + more_kernels) * profile.launch_s * cluster.node.launch_scale,
    )
    return clock_frac(cluster.gpu, work)


def _fastest_costs(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> ComputeCosts:
    """Each segment at the highest clock."""
    routed = () if model.experts is None else (table.ep, table.etp, table.dispatcher, busiest_rank(model, table))
    fp8 = fp8_shapes(table, profile)
    first, kind = equal_rows(
        *routed,
        table.micro_tokens,
        table.micro_batch,
        table.seq_len,
        table.tp,
        table.cp,
        table.cp_method,
        table.sequence_parallel,
        table.precision,
        is_narrow(table) & Modes.of(table).reshards,
        casts_weights(table, profile),
        *(() if fp8 is None else fp8.columns),
        *columns_of(model, cluster.gpu, profile),
    )
    few, gpu = table.rows(first), variant_rows(cluster.gpu, first)
    model, profile = variant_rows(model, first), variant_rows(profile, first)
    s = shapes_of(model, few, profile)
    products, half = product_column(few), half_column(few)

    def costs(types: Ints, lists: dict[str, list[op.Operation]]) -> dict[str, Cost]:
        return dict(zip(lists, costs_of(gpu, profile, types, list(lists.values())), strict=True))

    kernels = profile.kernels
    layer = {name: ops(model, s, kernels) for name, ops in _LAYER.items()}
    head = {name: ops(model, s, kernels, loss_parallel=profile.loss_parallel) for name, ops in _HEAD.items()}
    ops = table.recomputes("ops")
    again = op.recomputed_ops(model, s, kernels, attention=profile.attention == "unfused") if ops.any() else []
    others: dict[str, list[op.Operation]] = {
        "embedding_forward": op.embedding_forward(model, s),
        "embedding_backward": op.embedding_backward(model, s),
        "attention": [o for o in layer["layer_forward"] if isinstance(o, op.Attention)],
        "ops_again": again,
    }
    modules = RECOMPUTE_MODULES if table.recompute_modules.any() else ()
    others |= {module: [o for o in layer["layer_forward"] if o.name in operations_of(module)] for module in modules}
    # the output projection stays in 16 bit; where the layers' products do too, all are of one type
    if np.array_equal(products, half):
        found = costs(products, layer | others | head)
    else:
        found = costs(products, layer | others) | costs(half, head)
    # layers of an fp4 plan that stay in bf16 count towards the mean layer
    kept = np.where(few.precision == PRECISIONS.index("fp4"), profile.bf16_layers_frac, 0.0)
    if kept.any():
        wide = replace(s, four_bit=0.0 * s.four_bit)
        in_bf16 = costs(half, {name: ops(model, wide, kernels) for name, ops in _LAYER.items()})
        found |= {name: found[name].mixed(kept, one) for name, one in in_bf16.items()}
    attention = found.pop("attention")
    modules_again = {module: expanded(found.pop(module), kind) for module in modules}
    whole = expanded(
        ComputeCosts(
            **found,
            attention_forward_s=attention.time_s,
            attention_forward_flop=attention.flop,
            clock_frac=np.ones(len(few)),
        ),
        kind,
    )
    ops_again = whole.ops_again.times(ops) if again else whole.ops_again
    for module, cost in modules_again.items():
        ops_again = ops_again.plus(cost.times(table.recomputes_module(module)))
    return replace(whole, ops_again=ops_again)


_LAYER: dict[str, Callable[[Model, Shapes, Kernels], list[op.Operation]]] = {
    "layer_forward": op.layer_forward,
    "layer_backward_input": op.layer_backward_input,
    "layer_backward_weight": op.layer_backward_weight,
}
_HEAD = {"head_forward": op.head_forward, "head_backward": op.head_backward}


def is_narrow(table: PlanTable) -> Bools:
    """Plans whose layers multiply copies in fewer than 16 bits."""
    eight, four = (table.precision == PRECISIONS.index(name) for name in ("fp8", "fp4"))
    return np.asarray(eight | four, dtype=np.bool_)


def energy_saved_frac(table: PlanTable) -> Floats:
    """Share of the energy of a product that fewer than 16 bits save, per plan."""
    saved = {name: constant(name, "energy_saved_frac") for name in ("fp8", "fp4")}
    return np.array([saved.get(name, 0.0) for name in PRECISIONS])[table.precision]


def peak_column(cluster: Cluster, table: PlanTable) -> Floats:
    """Dense peak of each plan's precision."""
    used = {code: cluster.gpu.peak_flop_per_s(PRECISIONS[code]) for code in distinct(table.precision)}
    return np.select([table.precision == c for c in used], list(used.values())).astype(np.float64)


def product_column(table: PlanTable) -> Ints:
    """Type of each plan's products, an index of ``GEMM_TYPES``."""
    return _TYPE_OF[table.precision]


def half_column(table: PlanTable) -> Ints:
    """Type of a plan's output projection, which stays in 16 bit."""
    return np.zeros_like(table.precision)


_PRODUCTS: dict[Precision, GemmType] = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "fp4": "nvfp4"}
_TYPE_OF = np.array([GEMM_TYPES.index(_PRODUCTS[p]) for p in PRECISIONS])
