"""One job: its record, its communication by collective and group, its kernels, and these in lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.base.errors import argument
from knee.engine.cost.outer_sync import loss_words
from knee.engine.events import COLLECTIVES, Events, covered, merge, outside
from knee.engine.measurement import CommLoad, Measurement, Memory
from knee.engine.simulator import EvaluatedStep, Results, evaluate
from knee.engine.timeline.pipelines.spans import actions_in
from knee.engine.timeline.step_parts import gathers_kv_again, world_name
from knee.engine.workload.parameters import parameter_count
from knee.engine.workload.projections import expert_share
from knee.engine.workload.tp_messages import (
    ENDS,
    LOSS_ALL_REDUCES,
    TpMessages,
    layer_backward,
    layer_forward,
    ops_again,
)
from knee.engine.workload.traffic import PARAMETER_BYTES
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.specs.job import Job
from knee.specs.notes import Note
from knee.specs.plan import CP_METHODS, Plan
from knee.specs.plan_table import table_of

if TYPE_CHECKING:
    from knee.engine.timeline.step_events import RepeatedAction, StageOutline, Tail


ASSUMPTIONS = (
    "attention uses the causal mask; sequences are packed to their full length",
    "compute kernels of a GPU run one after another; the host launches them in advance unless it is too slow",
    "rings follow the physical order of the network unless the cluster sets topology_aware to false; groups of the "
    "same kind communicate at the same time",
    "the step has no checkpoints, evaluation and failures; whole runs (tokens) are also given with them",
)


def simulate(job: Job, *, convention: str = DEFAULT_CONVENTION, assumptions: tuple[str, ...] = ()) -> Measurement:
    """Simulate one step of a job."""
    return measurement_of(evaluated(job, convention), 0, job, convention=convention, assumptions=assumptions)


def evaluated(job: Job, convention: str = DEFAULT_CONVENTION) -> EvaluatedStep:
    """Everything on the way to a job's results."""
    return evaluate(job.model, job.cluster, job.profile, table_of([job]), convention=convention)


def simulate_jobs(jobs: Sequence[Job], *, convention: str = DEFAULT_CONVENTION) -> list[Measurement]:
    """One step of each job, in one call of the simulator where they are of one model, cluster and profile."""
    if not jobs:
        return []
    first, *others = jobs
    if any((job.model, job.cluster, job.profile) != (first.model, first.cluster, first.profile) for job in others):
        return [simulate(job, convention=convention) for job in jobs]
    step = evaluate(first.model, first.cluster, first.profile, table_of(jobs), convention=convention)
    return [measurement_of(step, row, job, convention=convention) for row, job in enumerate(jobs)]


def measurement_of(
    step: EvaluatedStep, plan: int, job: Job, *, convention: str = DEFAULT_CONVENTION, assumptions: tuple[str, ...] = ()
) -> Measurement:
    """One of the simulated plans, which is the job's, in full."""
    r = {f.name: getattr(step.results, f.name)[plan].item() for f in fields(Results)}
    memory = Memory(**{f.name: float(getattr(step.memory, f.name)[plan]) for f in fields(Memory)})
    price = r.pop("usd_per_mtoken")
    return Measurement(
        kind="simulated",
        flop_convention=convention,
        compute_load_s=r["compute_s"],
        comm_loads=comm_loads(step, plan),
        memory=memory,
        usd_per_mtoken=None if np.isnan(price) else price,
        assumptions=(*assumptions, *_about(job), *ASSUMPTIONS),
        **r,
    )


def _about(job: Job) -> tuple[str, ...]:
    notes: list[str] = []
    if job.plan.recompute == "attention" and job.profile.attention != "unfused":
        notes.append(
            Note(
                "recompute-saves-nothing",
                f"recomputing attention saves no memory with {job.profile.attention} attention, which stores "
                "no scores, "
                f"but costs time; use {argument('recompute')} none, ops, blocks or full",
            )
        )
    if job.microbatches > 1 and job.plan.sharding in ("fsdp_no_reshard", "zero1", "ddp") and job.plan.dp > 1:
        kept = "gathered parameters are kept and " if job.plan.sharding == "fsdp_no_reshard" else ""
        notes.append(f"{kept}gradients are reduced once per step, after the last of {job.microbatches} microbatches")
    if job.model.tied_embeddings and job.plan.pp > 1:
        notes.append("the gradient exchange of the tied embedding between the first and the last stage is not included")
    if job.model.experts is not None and job.plan.ep > 1 and job.plan.imbalance is None:
        notes.append(_routing_note(job.plan))
    if job.plan.sync_every > 1:
        notes.append(
            f"replicas synchronize every {job.plan.sync_every:,} steps, and all values are means over these steps; "
            + loss_words(parameter_count(job.model), job.plan.dp_replicate, sync_every=job.plan.sync_every)
        )
        if job.plan.sync_fragments > 1:
            notes.append("exchanges of fragments run beside compute without slowing it down; the trace leaves them out")
        notes.append("the same GPUs are slow in every step, so replicas wait for each other when they synchronize")
    if job.plan.collectives == "hierarchical":
        notes.append("collectives may go level by level through the network, which no NCCL version up to 2.30 offers")
    if job.profile.pat == "any":
        notes.append(
            "gathers and reductions between nodes are assumed to be logarithmic, which no NCCL version up to "
            "2.30 offers"
        )
    return tuple(notes)


def _routing_note(plan: Plan) -> str:
    if plan.routing == "balanced":
        return (
            "every expert has equally many tokens; with real routing the training of Qwen3-235B was 8 to 20% slower "
            f"({argument('routing')} dropless)"
        )
    return (
        f"tokens spread over experts as {plan.routing} says; the busiest rank of Qwen3-235B with ep 8 had 1.5 times "
        "the mean, and other values of ep are an extrapolation"
    )


def events_of(job: Job) -> list[Events]:
    """The kernels of one step, for one GPU of each pipeline stage; nothing folded.

    Of replicas that exchange every few steps it is the mean step, with its share of their exchange.
    """
    # Imported here: most answers need no events.
    from knee.engine.timeline.segment_events import scripts_of
    from knee.engine.timeline.step_events import stage_events

    w = evaluate(job.model, job.cluster, job.profile, table_of([job]), fold=False)
    scripts = [scripts_of(job.model, job.cluster, w.parts, w.actions, stage) for stage in range(job.plan.pp)]
    return stage_events(w.parts, w.actions, scripts, _tail(w), float(w.results.step_s[0]))


def outline_of(w: EvaluatedStep) -> list[StageOutline]:
    """The same step with whole layers and every kind of action once, from what was evaluated already."""
    from knee.engine.timeline.segment_events import scripts_of
    from knee.engine.timeline.step_events import stage_outlines

    # groups as the first stage sees them: other ranks, of the same number
    script = scripts_of(w.model, w.cluster, w.parts, w.actions, 0, whole_layers=True)
    return stage_outlines(w.parts, w.actions, [script] * int(w.table.pp[0]), _tail(w))


def _tail(w: EvaluatedStep) -> Tail:
    from knee.engine.timeline.step_events import Tail

    return Tail(
        norm_s=float(w.comm.norm[0]),
        optimizer_s=float(w.optimizer.time_s[0]),
        late_gather_s=float(w.late_gather_s[0]),
        straggler_s=float(w.results.straggler_s[0]),
        exchange_s=float(w.outer_sync.comm_s[0]),
        exchange_bytes=float((w.outer_sync.per_step * w.outer_sync.message_bytes)[0]),
        outer_s=float(w.outer_sync.compute_s[0]),
    )


Row = tuple[str, str, int, float, float, float]
"""(collective, group, ranks, calls, bytes of a message, load in seconds)"""


def comm_loads(w: EvaluatedStep, plan: int = 0) -> tuple[CommLoad, ...]:
    """Kernel time of each kind of collective in each kind of group, of one plan, mean over its GPUs."""
    table, outer = w.table, w.outer_sync
    exchange = (float(outer.per_step[plan]), float(outer.message_bytes[plan]), float(outer.comm_s[plan]))
    rows = [
        *_parameter_loads(w, plan),
        *_local_loads(w, plan, float(table.microbatches[plan]) * w.model.walked_layers / float(table.pp[plan])),
        # replicas that do not meet in every step: a fraction of a call in each
        ("all_reduce", "dp_replicate", int(w.groups.exchange.ranks[plan]), *exchange),
        ("all_reduce", world_name(table, plan), int(w.groups.world.ranks[plan]), 1.0, 4.0, w.comm.norm[plan]),
        ("straggler_wait", "world", int(table.gpus[plan]), 1.0, 0.0, w.results.straggler_s[plan]),
    ]
    return tuple(
        CommLoad(collective=c, group=g, group_size=n, calls=calls, message_bytes=size, load_s=float(load))
        for c, g, n, calls, size, load in rows
        if load > 0
    )


def _parameter_loads(w: EvaluatedStep, plan: int) -> list[Row]:
    """Gathers and reductions: a message a layer, and one for what the root group of a stage holds besides.

    The walk knows the load of all gathers and of all reductions of a step. Here each is shared out over the messages
    that it consists of, in proportion to their calls and to the seconds that each takes alone.
    """
    t, step, stages = w.traffic, w.step, float(w.table.pp[plan])
    every, ddp, m = bool(w.modes.reshards[plan]), bool(w.modes.ddp[plan]), float(w.table.microbatches[plan])
    often = m if w.modes.reduces_often[plan] else 1.0
    embedding, head = float(t.embedding.moved[plan]), float(t.head.moved[plan])
    # (messages per rank and pass, elements of one); embedding and head are one group only where one stage holds both
    ends = {"root": (1.0, embedding + head)}
    if stages > 1:
        ends = {"embedding": (1.0 / stages, embedding), "head": (1.0 / stages, head)}
    layers = w.model.walked_layers / stages
    messages = {"layer": (layers, float(t.layer.moved[plan]))} | ends
    if w.model.experts is not None:
        messages["experts"] = (layers * expert_share(w.model), float(t.experts.moved[plan]) / expert_share(w.model))

    def seconds_of(kind: str, part: str) -> float:
        seconds = float(getattr(w.comm, f"{kind}_{part}")[plan])
        if part == "layer":  # which has its experts in it
            return seconds - float(getattr(w.comm, f"{kind}_experts")[plan])
        return seconds / expert_share(w.model) if part == "experts" else seconds

    # seconds of one pass over the model, by part, if nothing ran beside it
    def work(kind: str) -> dict[str, float]:
        return {part: calls * seconds_of(kind, part) for part, (calls, _) in messages.items()}

    def rows(collective: str, group: str, kind: str, width: float, load: float, times: dict[str, float]) -> list[Row]:
        """The load is shared out by work: what runs beside compute is slowed alike."""

        def size_of(kind: str, part: str, elements: float) -> float:
            saved = float(t.fp8.saved_bytes[plan]) if (kind, part) == ("gather", "layer") else 0.0
            return width * elements - saved

        ranks = int((w.groups.shard if group == "dp_shard" else w.groups.replicate).ranks[plan])
        expert_ranks = ranks if group == "dp_replicate" and not ddp else int(w.groups.expert_shard.ranks[plan])
        seconds = {part: times[part] * alone for part, alone in work(kind).items()}
        scale = load / (sum(seconds.values()) or 1.0)
        places = dict.fromkeys(messages, (group, ranks)) | {"experts": ("edp", expert_ranks)}
        return [
            (collective, *places[part], times[part] * calls, size_of(kind, part, elements), scale * seconds[part])
            for part, (calls, elements) in messages.items()
        ]

    # all-reduces of replicas that share the wire stand in the queue of reductions
    reduce_work, replica_work = often * sum(work("reduce").values()), sum(work("replicate").values())
    share = replica_work / (reduce_work + replica_work or 1.0) if w.parts.serial_replicas[plan] else float(ddp)
    reduced, replicated = (1.0 - share) * step.reduce_load_s[plan], share * step.reduce_load_s[plan]
    width = float(t.reduce_bytes[plan])
    passes, once = dict.fromkeys(messages, often), dict.fromkeys(messages, 1.0)
    # resharding plans gather a layer in the forward and again in the backward of every microbatch
    of_layer = 2.0 * m if every else 1.0
    gathered = (passes if every else once) | {"layer": of_layer, "experts": of_layer}
    gather_s = step.gather_load_s[plan] + w.late_gather_s[plan]
    shards = 1.0 if ddp else float(w.groups.shard.ranks[plan])
    # DDP's replicas that do not meet in every step leave its context-parallel ranks
    copies = "cp" if w.table.sync_every[plan] > 1 else "dp_replicate"
    return [
        *rows("all_gather", "dp_shard", "gather", PARAMETER_BYTES, gather_s, gathered),
        *rows("reduce_scatter", "dp_shard", "reduce", width, reduced, passes),
        *rows("all_reduce", copies, "replicate", width / shards, replicated + step.replicate_load_s[plan], once),
    ]


def _local_loads(w: EvaluatedStep, plan: int, layer_passes: float) -> list[Row]:
    """TP, CP and pipeline transfers: their part of the time that segments spent in communication of their own."""
    table, comm = w.table, w.comm
    stages, m = float(table.pp[plan]), float(table.microbatches[plan])
    sends = 2.0 * (stages * float(table.virtual_stages[plan]) - 1.0) * m / stages
    hidden = w.profile.p2p_overlap_frac * float(comm.pp_send[plan])
    tp, tokens = int(table.tp[plan]), float(table.micro_tokens[plan])
    size, sp = float(w.traffic.tp_bytes[plan]), bool(table.sequence_parallel[plan])
    again = 1.0 + float(table.repeats_frac[plan])
    ops, backward = float(table.recomputes("ops")[plan]), layer_backward(w.model, w.profile)
    forward, repeated = layer_forward(w.model), ops_again(w.model)
    end_passes = m / stages  # the embedding and the head are each on one stage

    def calls(count: Callable[[TpMessages], int]) -> float:
        layers = layer_passes * (count(forward) * again + count(repeated) * ops + count(backward))
        return layers + sum(map(count, ENDS)) * end_passes

    gathers, scatters = calls(attrgetter("gathers")) * sp, calls(attrgetter("scatters")) * sp
    all_reduces, parallel = calls(attrgetter("all_reduces")) * (not sp), w.profile.loss_parallel
    of_loss, loss_s = (LOSS_ALL_REDUCES if parallel else 1) * end_passes, float(comm.tp_loss[plan])
    of_loss_bytes = 4.0 * tokens if parallel else float(w.traffic.logits_bytes[plan])
    exchange, reduction = float(comm.tp_gather[plan]), float(comm.tp_all_reduce[plan])

    def in_fp8(forward: Floats, backward: Floats) -> float:
        return layer_passes * (float(forward[plan]) * (again + ops) + float(backward[plan]))

    eight = in_fp8(w.traffic.fp8.tp_forward, w.traffic.fp8.tp_backward)
    scales_s = eight * float(comm.tp_scale[plan])
    eight_s = eight * exchange - in_fp8(comm.tp_forward_saved, comm.tp_backward_saved) - scales_s
    sums = calls(attrgetter("sums"))
    rows: list[Row] = [
        ("all_gather", "tp", tp, gathers - eight, size, (gathers - eight) * exchange),
        ("all_gather", "tp", tp, eight, size / 2.0, eight_s),
        ("all_reduce", "tp", tp, eight, 4.0, scales_s),
        ("reduce_scatter", "tp", tp, scatters, size, scatters * exchange),
        ("all_reduce", "tp", tp, all_reduces, size, all_reduces * reduction),
        ("all_reduce" if parallel else "all_gather", "tp", tp, of_loss, of_loss_bytes, of_loss * loss_s),
        *([("all_reduce", "tp", tp, sums, 4.0 * tokens, sums * float(comm.tp_sum[plan]))] if sums else []),
        *_context_loads(w, plan, layer_passes, again),
        *_routed_loads(w, plan, layer_passes, again),
        ("send_recv", "pp", 2, sends, float(w.traffic.pp_bytes[plan]), sends * hidden),
    ]
    # communication beside compute is slowed alike, so the segments' own time is shared out by work
    scale = float(w.step.local_load_s[plan]) / (sum(row[-1] for row in rows) or 1.0)
    waits = {"pp": float(w.step.p2p_load_s[plan])}
    return [(*row[:5], row[5] * scale + waits.get(row[1], 0.0)) for row in rows]


def _routed_loads(w: EvaluatedStep, plan: int, layer_passes: float, again: float) -> list[Row]:
    """Tokens to their experts and back, forward and backward."""
    if w.model.experts is None:
        return []
    passes = layer_passes * expert_share(w.model) * (again + 1.0 + float(w.table.recomputes_module("moe")[plan]))
    size, ep = float(w.traffic.routed_bytes[plan]), int(w.table.ep[plan])
    seconds, spread_s = float(w.comm.dispatch[plan] + w.comm.combine[plan]), float(w.comm.etp_gather[plan])
    etp = int(w.table.etp[plan])
    return [
        ("all_to_all", "ep", ep, 2.0 * passes, size, passes * seconds),
        ("all_gather", "etp", etp, passes, size * etp, passes * spread_s),
        ("reduce_scatter", "etp", etp, passes, size * etp, passes * spread_s),
    ]


def _context_loads(w: EvaluatedStep, plan: int, layer_passes: float, again: float) -> list[Row]:
    """Keys and values: ring steps, or gathers and the scatter of their gradients."""
    cp, size = int(w.table.cp[plan]), float(w.traffic.cp_bytes[plan])
    if w.table.cp_method[plan] == CP_METHODS.index("ring"):
        calls = layer_passes * (cp - 1.0) * (again + 2.0)
        return [("send_recv", "cp", cp, calls, size, calls * float(w.comm.cp_send[plan]))]
    once_more = float(gathers_kv_again(w.profile, w.table)[plan])
    gathers, seconds = layer_passes * (again + once_more), float(w.comm.cp_gather[plan])
    return [
        ("all_gather", "cp", cp, gathers, size, gathers * seconds),
        ("reduce_scatter", "cp", cp, layer_passes, size, layer_passes * seconds),
    ]


MOST_ACTIONS = 50_000
"""Most actions of a pipeline that is drawn: more take longer than anybody waits."""
MOST_INTERVALS = 5_000
"""Most intervals of one answer; beyond, what counts as short grows until there are no more."""
FINEST = 4_000
"""An interval shorter than this part of the step is joined with its neighbour."""
EXPOSED = "exposed"


@dataclass(slots=True, kw_only=True)
class LaneColumns:
    """The intervals of one lane, in any order."""

    start_s: Floats
    end_s: Floats
    name: Ints
    """Index into the names of the drawing."""
    exposed_s: Floats
    """Time of each without compute beside it."""
    kernels: Ints
    """How many kernels each is."""


Key = tuple[str, str, int]
"""Kind, group and its ranks."""


def lanes_of(step: EvaluatedStep) -> dict[str, Any]:
    """Return the lanes of plan 0. An interval is [start_s, end_s, name, exposed share, kernels in it]."""
    if int(step.table.pp[0]) > 1 and actions_in(step.parts) > MOST_ACTIONS:
        note = f"a pipeline with more than {MOST_ACTIONS:,} actions is not drawn"
        return {"lanes": [], "lanes_note": note, "end_s": float(step.results.step_s[0])}
    stages = outline_of(step)
    kernels = sum(len(action.events) * len(action.starts_s) for stage in stages for action in stage.actions)
    names: dict[str, int] = {}
    known: dict[int, dict[Key, LaneColumns]] = {}
    drawn = [_stage(stage, names, known, whole=kernels > MOST_INTERVALS) for stage in stages]
    end_s = max(max(stage.end_s for stage in stages), float(step.results.step_s[0]))
    for compute in (True, False):
        _join(drawn, {key for stage in drawn for key in stage if (key[0] == "compute") == compute}, end_s / FINEST)
    words = list(names)
    lanes = [
        {"stage": number, "kind": kind, "group": group, "group_size": size, "intervals": _rows(lane, words)}
        for number, stage in enumerate(drawn)
        for (kind, group, size), lane in stage.items()
    ]
    return {"lanes": lanes, "lanes_note": None, "end_s": end_s}


def _join(stages: Sequence[dict[Key, LaneColumns]], keys: Collection[Key], short_s: float) -> None:
    """Join neighbours in these lanes until their intervals are half of all that may be."""
    while sum(len(stage[key].start_s) for stage in stages for key in stage if key in keys) > MOST_INTERVALS // 2:
        for stage in stages:
            stage |= {key: _joined(lane, short_s) for key, lane in stage.items() if key in keys}
        short_s *= 2.0


def _stage(
    stage: StageOutline, names: dict[str, int], known: dict[int, dict[Key, LaneColumns]], *, whole: bool
) -> dict[Key, LaneColumns]:
    """Every action at every start; ``whole`` draws an action as one interval in each lane."""
    parts: dict[Key, list[LaneColumns]] = {}
    for action in stage.actions:
        if id(action.events) not in known:
            lanes = _action(action.events, names)
            if whole:
                name = names.setdefault(action.name, len(names))
                lanes = {key: _one(lane, name if key[0] == "compute" else None) for key, lane in lanes.items()}
            known[id(action.events)] = lanes
        for key, lane in known[id(action.events)].items():
            parts.setdefault(key, []).append(_at(lane, action))
    order = {"compute": 0, EXPOSED: 2}
    keys = sorted(parts, key=lambda key: (order.get(key[0], 1), key))
    return {key: _together(parts[key]) for key in keys}


def _one(lane: LaneColumns, name: int | None) -> LaneColumns:
    """All intervals of an action as one, under a name of its own or that of the longest."""
    longest = int(lane.name[np.argmax(lane.end_s - lane.start_s)])
    return LaneColumns(
        start_s=lane.start_s.min(keepdims=True),
        end_s=lane.end_s.max(keepdims=True),
        name=np.array([longest if name is None else name]),
        exposed_s=lane.exposed_s.sum(keepdims=True),
        kernels=np.array([len(lane.name)]),
    )


def _action(events: Events, names: dict[str, int]) -> dict[Key, LaneColumns]:
    """The lanes of one action, from its start on."""
    comm, start, end = events.is_comm, events.start_s, events.end_s
    ids = np.array([names.setdefault(name, len(names)) for name in events.names], dtype=np.int64)
    busy = merge(start[~comm], end[~comm])
    found: dict[Key, LaneColumns] = {}
    if (~comm).any():
        found["compute", "", 1] = _lane(start[~comm], end[~comm], ids[events.name_id[~comm]], None)
    code = events.collective.astype(np.int64) * (len(events.groups) + 1) + events.group_id
    for one in np.unique(code[comm]).tolist():
        rows = np.flatnonzero(comm & (code == one))
        i = int(rows[0])
        group = events.groups[int(events.group_id[i])]
        key = (COLLECTIVES[int(events.collective[i])], group.name, group.size)
        hidden = covered(end[rows], *busy) - covered(start[rows], *busy)
        found[key] = _lane(start[rows], end[rows], ids[events.name_id[rows]], end[rows] - start[rows] - hidden)
    alone = outside((start[comm], end[comm]), busy)
    if len(alone[0]):
        name = np.full(len(alone[0]), names.setdefault("communication without compute", len(names)))
        found[EXPOSED, "", 1] = _lane(*alone, name, alone[1] - alone[0])
    return found


def _lane(start: Floats, end: Floats, name: Ints, exposed: Floats | None) -> LaneColumns:
    count = len(start)
    exposed_s = np.zeros(count) if exposed is None else exposed
    return LaneColumns(start_s=start, end_s=end, name=name, exposed_s=exposed_s, kernels=np.ones(count, dtype=np.int64))


def _at(lane: LaneColumns, action: RepeatedAction) -> LaneColumns:
    times = len(action.starts_s)
    return LaneColumns(
        start_s=(action.starts_s[:, None] + lane.start_s).ravel(),
        end_s=(action.starts_s[:, None] + lane.end_s).ravel(),
        name=np.tile(lane.name, times),
        exposed_s=np.tile(lane.exposed_s, times),
        kernels=np.tile(lane.kernels, times),
    )


def _together(parts: list[LaneColumns]) -> LaneColumns:
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in LaneColumns.__slots__}
    order = np.argsort(columns["start_s"], kind="stable")
    return LaneColumns(**{name: column[order] for name, column in columns.items()})


def _joined(lane: LaneColumns, short_s: float) -> LaneColumns:
    """Neighbours as one where either is short and so is the gap between them."""
    length = lane.end_s - lane.start_s
    short = length < short_s
    near = (lane.start_s[1:] - lane.end_s[:-1] < short_s) & (short[1:] | short[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~near)))
    longest = _longest(length, first)
    return LaneColumns(
        start_s=lane.start_s[first],
        end_s=np.maximum.reduceat(lane.end_s, first),
        name=lane.name[longest],
        exposed_s=np.add.reduceat(lane.exposed_s, first),
        kernels=np.add.reduceat(lane.kernels, first),
    )


def _longest(length: Floats, first: Ints) -> Ints:
    """Of each stretch of rows, the row of the longest, after which what is joined is named."""
    group = np.zeros(len(length), dtype=np.int64)
    group[first[1:]] = 1
    order = np.lexsort((length, np.cumsum(group)))
    last: Ints = order[np.append(first[1:], len(length)) - 1]
    return last


def _rows(lane: LaneColumns, words: list[str]) -> list[list[Any]]:
    length = np.maximum(lane.end_s - lane.start_s, 1e-15)
    shares = np.clip(np.round(lane.exposed_s / length, 3), 0.0, 1.0)
    columns = (np.round(lane.start_s, 9), np.round(lane.end_s, 9), lane.name, shares, lane.kernels)
    return [
        [start, end, words[name], share, n]
        for start, end, name, share, n in zip(*(column.tolist() for column in columns), strict=True)
    ]
