"""One job: its record, its communication by collective and group, its kernels."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from knee.record.events import Events
from knee.record.measurement import CommLoad, Measurement, Memory
from knee.simulator import Results, Working, evaluate
from knee.specs.job import Job
from knee.specs.plan import CP_METHODS, RECOMPUTES
from knee.specs.table import table_of
from knee.timeline.events import Tail, stage_events
from knee.timeline.scripts import scripts_of
from knee.workload.flop import DEFAULT_CONVENTION
from knee.workload.traffic import PARAMETER_BYTES

ASSUMPTIONS = (
    "attention respects the causal mask; sequences are packed to their full length",
    "one GPU's kernels follow each other; the host runs ahead of them unless launches are too slow",
    "rings follow the network's order unless the fabric says otherwise; groups of one kind run at the same time",
    "checkpointing, evaluation and failures are left out",
)


def simulate(job: Job, *, convention: str = DEFAULT_CONVENTION, assumptions: tuple[str, ...] = ()) -> Measurement:
    """Simulate one step of a job."""
    working = evaluate(job.model, job.cluster, job.profile, table_of([job]), convention=convention)
    r = {f.name: getattr(working.results, f.name)[0].item() for f in fields(Results)}
    memory = Memory(**{f.name: float(getattr(working.memory, f.name)[0]) for f in fields(Memory)})
    price = r.pop("usd_per_mtoken")
    return Measurement(
        kind="simulated",
        flop_convention=convention,
        compute_load_s=r["compute_s"],
        comm_loads=comm_loads(working),
        memory=memory,
        usd_per_mtoken=None if np.isnan(price) else price,
        assumptions=(*assumptions, *_about(job), *ASSUMPTIONS),
        **r,
    )


def _about(job: Job) -> tuple[str, ...]:
    """What this plan's owner might not expect."""
    notes = []
    if job.plan.recompute == "selective" and job.profile.attention != "unfused":
        notes.append(
            f"selective recomputation saves nothing beside {job.profile.attention} attention, which keeps no scores"
        )
    if job.microbatches > 1 and job.plan.sharding in ("fsdp_no_reshard", "zero1", "ddp") and job.plan.dp > 1:
        kept = "gathered parameters are kept and " if job.plan.sharding == "fsdp_no_reshard" else ""
        notes.append(f"{kept}gradients are reduced once a step, after the last of {job.microbatches} microbatches")
    if job.model.tied_embeddings and job.plan.pp > 1:
        notes.append("the exchange of a tied embedding's gradient between the first and the last stage is left out")
    return tuple(notes)


def events_of(job: Job) -> list[Events]:
    """The kernels of one step, for one GPU of each pipeline stage; nothing folded."""
    w = evaluate(job.model, job.cluster, job.profile, table_of([job]), fold=False)
    tail = Tail(
        norm_s=float(w.comm.norm[0]),
        optimizer_s=float(w.optimizer.time_s[0]),
        late_gather_s=float(w.late_gather_s[0]),
        straggler_s=float(w.results.straggler_s[0]),
    )
    scripts = [scripts_of(job.model, job.cluster, w.parts, w.actions, stage) for stage in range(job.plan.pp)]
    return stage_events(w.parts, w.actions, scripts, tail, float(w.results.step_s[0]))


def comm_loads(w: Working) -> tuple[CommLoad, ...]:
    """Kernel time of each kind of collective in each kind of group, of plan 0, mean over its GPUs."""
    table, step, t = w.table, w.step, w.traffic
    m, per_stage = float(table.microbatches[0]), w.model.layers / float(table.pp[0])
    every = bool(w.modes.reshards[0])
    gathers = per_stage * (2.0 * m if every else 1.0) + 1.0
    reduces = per_stage * (m if every else 1.0) + 1.0
    ddp, width = bool(w.modes.ddp[0]), float(t.reduce_bytes[0])
    shard, replicas = int(w.groups.shard.ranks[0]), int(w.groups.replicate.ranks[0])
    layer = float(t.layer.moved[0])
    sp = bool(table.sequence_parallel[0])
    # all-reduces of replicas that share the wire stand in the queue of reductions
    both = float(w.comm.reduce_layer[0] + w.comm.replicate_layer[0])
    queued = float(w.comm.replicate_layer[0]) / both if w.parts.serial_replicas[0] and both > 0 else 0.0
    reduced, replicated = (
        (1.0 - queued) * step.reduce_load_s[0],
        queued * step.reduce_load_s[0] + step.replicate_load_s[0],
    )
    rows = [
        ("all_gather", "dp_shard", shard, gathers, PARAMETER_BYTES * layer, step.gather_load_s[0] + w.late_gather_s[0]),
        (
            "all_reduce" if ddp else "reduce_scatter",
            "dp_replicate" if ddp else "dp_shard",
            replicas if ddp else shard,
            reduces,
            width * layer,
            reduced,
        ),
        ("all_reduce", "dp_replicate", replicas, reduces, width * layer / shard, replicated),
        *_local_loads(w, m * per_stage, sp),
        ("all_reduce", "world", int(table.gpus[0]), 1.0, 4.0, w.comm.norm[0]),
        ("straggler_wait", "world", int(table.gpus[0]), 1.0, 0.0, w.results.straggler_s[0]),
    ]
    return tuple(
        CommLoad(collective=c, group=g, group_size=n, calls=calls, message_bytes=size, load_s=float(load))
        for c, g, n, calls, size, load in rows
        if load > 0
    )


def _local_loads(w: Working, layer_passes: float, sp: bool) -> list[tuple[str, str, int, float, float, float]]:
    """TP, CP and pipeline transfers: their part of the time that segments spent in communication of their own."""
    table, t = w.table, w.traffic
    ring = bool(table.cp_method[0] == CP_METHODS.index("ring"))
    cp, steps = int(table.cp[0]), float(table.cp[0] - 1)
    again = 2.0 if table.recompute[0] == RECOMPUTES.index("full") else 1.0
    sends = 2.0 * float(table.pp[0] * table.virtual_stages[0] - 1) * float(table.microbatches[0]) / float(table.pp[0])
    # per layer: forward (again where recomputed) and backward, which gathers twice more under sequence parallelism
    tp_calls = layer_passes * ((4.0 * again + 6.0) if sp else (2.0 * again + 2.0))
    cp_calls = layer_passes * ((steps if ring else 1.0) * again + 2.0 * (steps if ring else 1.0))
    work = {
        "tp": tp_calls * float(w.comm.tp_gather[0] if sp else w.comm.tp_all_reduce[0]),
        "cp": cp_calls * float(w.comm.cp_send[0] if ring else w.comm.cp_gather[0]),
        "pp": sends * w.profile.p2p_overlap_frac * float(w.comm.pp_send[0]),
    }
    # communication beside compute is slowed alike, so the segments' own time is shared out by work
    scale = float(w.step.local_load_s[0]) / (sum(work.values()) or 1.0)
    tp, size = int(table.tp[0]), float(t.tp_bytes[0])
    gathers = (2.0 * again + 4.0) / (4.0 * again + 6.0)
    halves = [("all_gather", gathers), ("reduce_scatter", 1.0 - gathers)] if sp else [("all_reduce", 1.0)]
    return [
        *[(name, "tp", tp, tp_calls * part, size, work["tp"] * scale * part) for name, part in halves],
        ("send_recv" if ring else "all_gather", "cp", cp, cp_calls, float(t.cp_bytes[0]), work["cp"] * scale),
        ("send_recv", "pp", 2, sends, float(t.pp_bytes[0]), work["pp"] * scale + float(w.step.p2p_load_s[0])),
    ]
