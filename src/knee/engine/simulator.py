"""The composition: workload -> cost -> timeline -> metrics, for one job or a table of plans. One engine for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Bools, ByValue, Columns, Floats, blended, joined
from knee.engine.cost.comm_costs import CommCosts, comm_costs, contention
from knee.engine.cost.compute_costs import (
    ComputeCosts,
    compute_costs,
    energy_saved_frac,
    peak_column,
    shapes_of,
    step_total,
)
from knee.engine.cost.kernel_cost import Cost
from knee.engine.cost.outer_sync import OuterSync, optimizer_cost, outer_sync_cost
from knee.engine.cost.placement import GroupPlacements, expected_maximum, groups_of
from knee.engine.energy import power_w, usd_per_mtoken
from knee.engine.timeline.passes import SUM_NAMES
from knee.engine.timeline.pipelines.spans import fill_spans, transfers
from knee.engine.timeline.step_actions import Actions, per_rank, run_actions, times_of
from knee.engine.timeline.step_parts import LayerParts, StepParts, blended_comm, comms_of_kinds, local_comms
from knee.engine.workload.fp8_layers import fp8_shapes
from knee.engine.workload.layers_per_stage import cuts_of
from knee.engine.workload.memory import MemoryColumns, memory_of
from knee.engine.workload.operations import attention_backward_ratio
from knee.engine.workload.parameters import model_flop_per_token
from knee.engine.workload.projections import expert_share, layer_kinds
from knee.engine.workload.traffic import Modes, Traffic, fullest_share, traffic_of
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable, side_by_side, stage_copies, variant_rows
from knee.specs.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """A step of every plan, means over its GPUs: what the metrics are read from."""

    pipeline_s: Floats
    """Until the last stage has finished its last backward."""
    compute_s: Floats
    exposed_s: Floats
    overlapped_s: Floats
    idle_s: Floats
    bubble_s: Floats
    gather_load_s: Floats
    reduce_load_s: Floats
    replicate_load_s: Floats
    local_load_s: Floats
    p2p_load_s: Floats


def run_step(parts: StepParts, a: Actions, *, fold: bool = True) -> StepColumns:
    """Compose the actions over microbatches and stages."""
    table = parts.table
    m = table.microbatches.astype(np.float64)
    sums = _step_sums(parts, a)
    # every chunk boundary is crossed once forward and once backward by each microbatch
    chunks = table.pp * table.virtual_stages
    waits = 2.0 * (chunks - 1.0) * m / table.pp
    p2p = transfers(parts) * waits
    filling = stage_copies(table) * per_rank(a.rows, a.ranks, a.filling_gather_s * ~a.rows.early) + a.late_gather_s
    span = np.where(table.pp > 1, 0.0, sums["duration_s"])
    fill_spans(parts, a, span, fold)
    duration = sums.pop("duration_s")
    sums["exposed_s"] = sums["exposed_s"] + p2p + filling
    sums["gather_load_s"] = sums["gather_load_s"] + filling
    return StepColumns(pipeline_s=span, bubble_s=span - duration - p2p - filling, p2p_load_s=p2p, **sums)


STEP_SUMS = tuple(name for name in SUM_NAMES if name not in ("drain_s", "left_reduce_s", "left_replicate_s"))


def _step_sums(parts: StepParts, a: Actions) -> dict[str, Floats]:
    """What all passes of a step add up to, mean over ranks."""
    total = np.zeros((len(a.rows), len(STEP_SUMS)))
    for action, times in times_of(parts, a.rows, a.walked).items():
        w = a.walked[action]
        # the sums of a kind lie side by side here, so that a row's are found together
        sums = np.stack([getattr(w.sums, name) for name in STEP_SUMS], axis=1).take(w.kind, axis=0)
        sums *= (times * a.rows.count)[:, None]
        total += sums
    # a plan has a row for each kind of its chunks, and rows stand kind by kind
    per_plan = np.zeros((len(parts.table), len(STEP_SUMS)))
    edges = [0, *(np.flatnonzero(np.diff(a.rows.plan) <= 0) + 1).tolist(), len(a.rows)]
    for i, j in pairwise(edges):
        per_plan[a.rows.plan[i:j]] += total[i:j]
    per_plan /= parts.table.pp[:, None]
    return {name: np.ascontiguousarray(per_plan[:, i]) for i, name in enumerate(STEP_SUMS)}


CHUNK = 65536
"""Plans evaluated together: enough that many share their passes and pipelines, few enough to bound memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results(ByValue, Columns):
    """A step of every plan of a table; the fields of ``record.Measurement`` as columns."""

    step_s: Floats
    tokens_per_s: Floats
    tokens_per_s_per_gpu: Floats
    mfu_frac: Floats
    compute_s: Floats
    comm_s: Floats
    comm_load_s: Floats
    exposed_comm_s: Floats
    overlapped_comm_s: Floats
    bubble_s: Floats
    idle_s: Floats
    straggler_s: Floats
    memory_bytes: Floats
    fits: NDArray[np.bool_]
    power_w_per_gpu: Floats
    tokens_per_j: Floats
    usd_per_mtoken: Floats
    """NaN where the cluster's price is not known."""

    def __len__(self) -> int:
        return len(self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedStep:
    """Everything on the way to the results: what ``--why``, traces and records are made from."""

    model: Model
    cluster: Cluster
    profile: Profile
    table: PlanTable
    modes: Modes
    groups: GroupPlacements
    traffic: Traffic
    compute: ComputeCosts
    comm: CommCosts
    parts: StepParts
    actions: Actions
    step: StepColumns
    memory: MemoryColumns
    optimizer: Cost
    late_gather_s: Floats
    """ZeRO-1's gather after the optimizer, where it does not hide."""
    outer_sync: OuterSync
    """Of replicas that do not meet in every step."""
    flop: Floats
    """Tensor-core work of one GPU and step."""
    moved_bytes: Floats
    results: Results


def evaluate(
    model: Model,
    cluster: Cluster,
    profile: Profile,
    table: PlanTable,
    *,
    convention: str = DEFAULT_CONVENTION,
    fold: bool = True,
) -> EvaluatedStep:
    """Simulate one step of each plan of a table that fits in memory at once."""
    parts, groups = priced(model, cluster, profile, table)
    modes, traffic, compute, comm = parts.modes, parts.traffic, parts.compute, parts.comm
    actions = run_actions(parts, cuts_of(model, profile, table))
    step = run_step(parts, actions, fold=fold)
    optimizer = optimizer_cost(model, cluster.gpu, profile, table, modes, traffic)
    late = late_gather_s(profile, model, parts)
    outer_sync = outer_sync_cost(model, cluster, profile, table, modes, traffic, groups)
    memory = memory_of(model, profile, table, shapes_of(model, table, profile), modes, traffic)
    flop, moved = step_work(model, parts)
    moved = moved + optimizer.moved_bytes + outer_sync.moved_bytes
    # what happens once a step; the mean GPU waits in a collective for the slowest one
    straggler = profile.straggler_frac * expected_maximum(table.gpus) * step.compute_s
    compute_s = step.compute_s + optimizer.time_s + outer_sync.compute_s
    # the host launches the optimizer too: where that takes longer than the device has work, the device waits
    launches = step_total(model, table, parts.compute, "kernels") + optimizer.kernels
    host = np.maximum(parts.launch_s * launches - step.pipeline_s - optimizer.time_s, 0.0) + profile.step_overhead_s
    idle = step.idle_s + host
    step_s = step.pipeline_s + optimizer.time_s + comm.norm + late + straggler + host
    # replicas that meet every few steps: the mean of those steps
    outer_sync = outer_sync.beside(step_s)
    exposed = step.exposed_s + comm.norm + late + straggler + outer_sync.comm_s
    step_s = step_s + outer_sync.comm_s + outer_sync.compute_s
    tokens = table.global_batch * table.seq_len.astype(np.float64)
    per_gpu = tokens / step_s / table.gpus
    loads = step.gather_load_s + step.reduce_load_s + step.replicate_load_s + step.local_load_s + step.p2p_load_s
    loads = loads + comm.norm + late + straggler + outer_sync.comm_s
    # beside compute, collectives are charged for the time they take from it
    alone = exposed + step.overlapped_s * parts.kappa / (1.0 + parts.kappa)
    watts = power_w(cluster.gpu, step_s=step_s, flop=flop, moved_bytes=moved, comm_s=alone)
    price = np.nan if cluster.usd_per_gpu_h is None else cluster.usd_per_gpu_h
    total_bytes = memory.total_bytes
    results = Results(
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        tokens_per_s_per_gpu=per_gpu,
        mfu_frac=model_flop_per_token(model, table.seq_len, convention) * per_gpu / peak_column(cluster, table),
        compute_s=compute_s,
        comm_s=exposed + step.overlapped_s,
        comm_load_s=loads,
        exposed_comm_s=exposed,
        overlapped_comm_s=step.overlapped_s,
        bubble_s=step.bubble_s,
        idle_s=idle,
        straggler_s=straggler,
        memory_bytes=total_bytes,
        fits=total_bytes <= cluster.gpu.hbm_bytes,
        power_w_per_gpu=watts,
        tokens_per_j=per_gpu / watts,
        usd_per_mtoken=usd_per_mtoken(price, per_gpu),
    )
    return EvaluatedStep(
        model=model,
        cluster=cluster,
        profile=profile,
        table=table,
        modes=modes,
        groups=groups,
        traffic=traffic,
        compute=compute,
        comm=comm,
        parts=parts,
        actions=actions,
        step=step,
        memory=memory,
        optimizer=optimizer,
        late_gather_s=late,
        outer_sync=outer_sync,
        flop=flop,
        moved_bytes=moved,
        results=results,
    )


def priced(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, *, any_sharding: bool = False
) -> tuple[StepParts, GroupPlacements]:
    """What every operation and message of the plans takes alone, before anything runs beside anything; with
    ``any_sharding``, at the highest clock that a plan would have under another sharding."""
    modes = Modes.of(table)
    fp8 = fp8_shapes(table, profile)
    traffic = traffic_of(model, table, modes, scatters_sends=profile.scatters_sends, fp8=fp8)
    groups = groups_of(model, cluster, table, modes)
    compute, *of_kinds = compute_costs(model, cluster, profile, table, any_sharding=any_sharding)
    host_scale, kinds = cluster.node.launch_scale, layer_kinds(model)
    shared = _who_shares_the_network(profile, modes, groups)

    comm = comm_costs(model, cluster, profile, table, modes, traffic, groups)

    def parts_of(kind: Model, compute: ComputeCosts, comm: CommCosts, traffic: Traffic, kappa: Floats) -> StepParts:
        return StepParts(
            gpu=cluster.gpu,
            profile=profile,
            launch_s=profile.launch_s * host_scale,
            table=table,
            modes=modes,
            traffic=traffic,
            compute=compute,
            comm=comm,
            local=local_comms(kind, profile, table, groups, comm, compute, host_scale),
            kappa=kappa,
            expert_share=expert_share(kind),
            kinds=None,
            **shared,
        )

    if kinds is None:
        kappa = contention(cluster, profile, table, modes, traffic, groups, comm)
        return parts_of(model, compute, comm, traffic, kappa), groups
    comms = comms_of_kinds(comm)
    mean_comm, share = blended_comm(*comms, expert_share(model)), expert_share(model)
    kappa = contention(cluster, profile, table, modes, traffic, groups, mean_comm)
    dense, sparse = (parts_of(kinds[i], of_kinds[i], comms[i], traffic.at(float(i)), kappa) for i in range(2))
    mean = replace(
        sparse,
        traffic=traffic,
        compute=compute,
        comm=mean_comm,
        local=blended(dense.local, sparse.local, share),
        expert_share=share,
        kinds=LayerParts(dense=dense, sparse=sparse),
    )
    return mean, groups


def _who_shares_the_network(profile: Profile, modes: Modes, g: GroupPlacements) -> dict[str, Bools]:
    """Which channels cross nodes, and so wait for each other."""
    hidden_sends = (g.pp.nodes > 1) & (profile.p2p_overlap_frac > 0)
    local = (g.tp.nodes > 1) | (g.cp.nodes > 1) | hidden_sends
    serial = (g.replicate.nodes > 1) & ((g.shard.nodes > 1) | local) & ~modes.ddp
    queue = np.where(modes.ddp | serial, np.maximum(g.shard.nodes, g.replicate.nodes), g.shard.nodes) > 1
    return {"shares_wire": queue & local, "serial_replicas": serial}


def simulate_table(
    model: Model, cluster: Cluster, profile: Profile, table: PlanTable, *, convention: str = DEFAULT_CONVENTION
) -> Results:
    """Simulate a table of any length, chunk by chunk."""
    if len(table) == 0:
        return Results(**{f.name: np.zeros(0, dtype=bool if f.name == "fits" else float) for f in fields(Results)})
    done = []
    for start in range(0, len(table), CHUNK):
        some = slice(start, start + CHUNK)
        own = variant_rows(model, some), variant_rows(cluster, some), variant_rows(profile, some)
        done.append(evaluate(*own, table.rows(some), convention=convention).results)
    return joined(*done)


def simulate_variants(model: Model, variants: Sequence[tuple[Cluster, Profile]], table: PlanTable) -> Results:
    """Each plan on each cluster with its profile, in one call: one variant after another."""
    variant, plan = (grid.ravel() for grid in np.indices((len(variants), len(table))))
    cluster, profile = (side_by_side(specs, variant) for specs in zip(*variants, strict=True))
    return evaluate(model, cluster, profile, table.rows(plan)).results


def simulate_tables(
    model: Model,
    cluster: Cluster,
    profile: Profile,
    tables: Iterable[PlanTable],
    *,
    convention: str = DEFAULT_CONVENTION,
) -> Iterator[Results]:
    """Simulate tables one after another, holding one at a time: a million plans in bounded memory."""
    for table in tables:
        yield evaluate(model, cluster, profile, table, convention=convention).results


def late_gather_s(profile: Profile, model: Model, parts: StepParts) -> Floats:
    """ZeRO-1 without overlap gathers all parameters after the optimizer, layer by layer."""
    if profile.gather_overlap:
        return np.zeros(len(parts.table))
    layers = np.ceil(model.walked_layers / parts.table.pp)
    ends = np.where(
        parts.table.pp > 1, np.maximum(parts.comm.gather_embedding, parts.comm.gather_head), parts.comm.gather_root
    )
    gather = parts.comm.gather_layer
    if parts.kinds is not None:
        kinds, share = parts.kinds, fullest_share(model, parts.table)
        gather = blended(kinds.dense.comm.gather_layer, kinds.sparse.comm.gather_layer, share)
    return np.where(parts.modes.zero1, layers * gather + ends, 0.0)


def step_work(model: Model, parts: StepParts) -> tuple[Floats, Floats]:
    """Tensor-core operations (in 16-bit ones) and HBM traffic of one GPU in one step, mean over stages."""
    c, table = parts.compute, parts.table
    full = table.repeats_frac
    attention_again = table.recomputes("attention")
    passes = model.walked_layers * table.microbatches / table.pp
    totals = {}
    for field in ("flop", "moved_bytes"):
        costs = (c.layer_forward, c.layer_backward_input, c.layer_backward_weight, c.ops_again)
        forward, back, weight, again = (getattr(cost, field) for cost in costs)
        layer = forward * (1.0 + full) + back + weight + again
        ends = sum(
            getattr(x, field) for x in (c.embedding_forward, c.embedding_backward, c.head_forward, c.head_backward)
        )
        totals[field] = passes * layer, ends * table.microbatches / table.pp
    attention = passes * c.attention_forward_flop * (1.0 + attention_backward_ratio() + full)
    saved = energy_saved_frac(table) * step_total(model, table, c, "narrow_flop")
    products = totals["flop"][0] - attention - saved
    flop = products + attention + attention_again * passes * c.attention_forward_flop + totals["flop"][1]
    layers_bytes, ends_bytes = totals["moved_bytes"]
    return flop, layers_bytes + ends_bytes + parts.copied_bytes() * model.walked_layers / table.pp
