"""The kernels of one plan's step, for every pipeline stage: what a profiler would have seen.

The same passes and the same recurrence as the metrics, walked unfolded with a recorder; nothing is modelled again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import pairwise

import numpy as np

from knee.base.arrays import Floats
from knee.engine.events import COMM_STREAM, EventLog, Events, RankGroup
from knee.engine.timeline.passes import Phase
from knee.engine.timeline.pipelines import recurrence as pipeline
from knee.engine.timeline.pipelines.spans import placed_actions
from knee.engine.timeline.step_actions import Actions
from knee.engine.timeline.step_parts import StepParts, world_name
from knee.engine.timeline.walk import run_passes
from knee.engine.workload.traffic import PARAMETER_BYTES
from knee.specs.plan import AXES
from knee.specs.plan_table import PlanTable


def group(parts: StepParts, name: str, axes: tuple[str, ...], stage: int) -> RankGroup:
    """The group of the stage's first rank over some axes."""
    table = parts.table
    stride, members, strides = 1, np.zeros(1, dtype=np.int64), []
    for axis in table.placement:
        degree = int(getattr(table, axis)[0])
        if axis in axes and degree > 1:
            strides.append((stride, degree))
            members = (members[None, :] + stride * np.arange(degree)[:, None]).ravel()
        stride *= degree
    first = stage_rank(parts, stage)
    even = all(outer == inner * size for (inner, size), (outer, _) in pairwise(strides))
    ranks = () if even else tuple((first + np.sort(members)).tolist())
    stride = strides[0][0] if strides else 1
    return RankGroup(name=name, size=len(members), first_rank=first, stride=stride, members=ranks)


def expert_groups(parts: StepParts, stage: int) -> tuple[RankGroup, RankGroup]:
    """The groups of the stage's first rank that hold different experts (ep), every etp-th of its neighbours, and that
    split each expert (etp)."""
    table = parts.table
    ep, etp, first = int(table.ep[0]), int(table.etp[0]), stage_rank(parts, stage)
    return (
        RankGroup(name="ep", size=ep, first_rank=first, stride=etp),
        RankGroup(name="etp", size=etp, first_rank=first, stride=1),
    )


def stage_rank(parts: StepParts, stage: int) -> int:
    """Global rank of a stage's first GPU."""
    stride = 1
    for axis in parts.table.placement:
        if axis == "pp":
            return stage * stride
        stride *= int(getattr(parts.table, axis)[0])
    raise AssertionError(f"pp is not among {AXES}")


def neighbours(parts: StepParts, stage: int, other: int) -> RankGroup:
    """The pair of ranks between two stages."""
    here, there = stage_rank(parts, stage), stage_rank(parts, other)
    return RankGroup(name="pp", size=2, first_rank=min(here, there), stride=max(abs(here - there), 1))


def shard_group(parts: StepParts, stage: int) -> RankGroup:
    return group(parts, "dp_shard", ("dp_shard", "cp"), stage)


def expert_shard_group(parts: StepParts, stage: int) -> RankGroup:
    """Ranks over which the experts of the stage's first rank are sharded: beyond those that hold other experts."""
    table, first = parts.table, stage_rank(parts, stage)
    stride = int(table.ep[0] * table.etp[0])
    return RankGroup(name="edp", size=int(parts.traffic.expert_shards[0]), first_rank=first, stride=stride)


_QUEUE, _REPLICAS, _LOCAL, P2P, _SYNC = range(COMM_STREAM, COMM_STREAM + 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A named share of a segment's compute."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective as the trace shows it."""

    collective: str
    group: RankGroup
    message_bytes: float
    dtype: str

    def write(self, log: EventLog, start_s: float, duration_s: float, stream: int) -> None:
        """Write one kernel of the message."""
        log.comm(self.collective, self.group, start_s, duration_s, self.message_bytes, self.dtype, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the phases of one action are made of."""

    kernels: dict[str, tuple[Kernel, ...]]
    """Per segment (lead, layer, tail)."""
    gather: Message
    root_gather: Message
    reduce: Message
    root_reduce: Message
    replicate: Message
    root_replicate: Message
    replicate_share: float
    """Share of a queued reduction that is the replicas' all-reduce, where both share the wire."""
    experts: dict[str, Message]
    """Of "gather", "reduce" and "replicate", what is for the layer's experts, and so for ranks of their own. Its time
    is part of the layer's message."""
    carried: Message
    """What the chunk above left in the queue: its gathers in forward, its reductions in backward."""
    local: dict[str, tuple[tuple[Message, float], ...]]
    """Per segment: its own collectives, each with its share of their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What ends the step on every stage, in order."""

    norm_s: float
    optimizer_s: float
    late_gather_s: float
    straggler_s: float
    exchange_s: float = 0.0
    """A step's share of the exchange between replicas that do not meet in every one."""
    exchange_bytes: float = 0.0
    outer_s: float = 0.0
    """Its share of the outer optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWalk:
    """One action of one chunk kind, walked layer by layer, and the work in its queues."""

    phases: tuple[Phase, ...]
    layers: int
    root_gather_s: float
    gather_s: float
    carried_reduce_s: float
    reduce_s: float
    root_reduce_s: float
    carried_replicate_s: float
    replicate_s: float
    root_replicate_s: float


def record_action(parts: StepParts, a: Actions, action: str, row: int) -> RecordedWalk:
    """Walk one action with a recorder."""
    phases: list[Phase] = []
    one = a.walked[action].one(row)
    run_passes(one, parts.profile.comm_slowdown, phases.append, fold=False)
    queues = {f.name: float(getattr(one, f.name)[0]) for f in fields(RecordedWalk) if f.name.endswith("_s")}
    return RecordedWalk(phases=tuple(phases), layers=int(one.layers[0]), **queues)


class _Channel:
    """Turns busy stretches of a queue into kernels: each has so much work, and stretches are cut at their ends."""

    def __init__(self, log: EventLog, stream: int, works: Sequence[tuple[Message, float]]) -> None:
        self.log, self.stream = log, stream
        self.todo: deque[tuple[Message, float]] = deque((m, w) for m, w in works if w > 0)
        self.total = sum(w for _, w in self.todo)
        self.started: float | None = None
        self.until = 0.0
        self.left = self.todo[0][1] if self.todo else 0.0

    def busy(self, start_s: float, duration_s: float, speed: float) -> None:
        """The channel works for a while at a speed (work per second)."""
        now, end = start_s, start_s + duration_s
        if self.todo and self.started is not None and now - self.until > 1e-12 * max(now, self.total):
            # something else had the wire meanwhile: the kernel shows in two pieces
            self._write(self.started, self.until)
            self.started = None
        while self.todo and end - now > 1e-12 * max(end, self.total):
            if self.started is None:
                self.started = now
            take = min(end - now, self.left / speed)
            now += take
            self.left -= take * speed
            self.until = now
            if self.left <= 1e-12 * self.total:
                self._finish(now)

    def _write(self, start_s: float, end_s: float) -> None:
        self.todo[0][0].write(self.log, start_s, end_s - start_s, self.stream)

    def _finish(self, end_s: float) -> None:
        self._write(self.started if self.started is not None else end_s, end_s)
        self.todo.popleft()
        self.started = None
        self.left = self.todo[0][1] if self.todo else 0.0

    def close(self, end_s: float) -> None:
        """End a kernel that rounding left a hair short, or that goes on in another action."""
        if self.started is not None:
            self._finish(min(self.until, end_s))


def play(log: EventLog, recorded: RecordedWalk, script: Script, start_s: float) -> float:
    """Write one action from a start time; returns when it ends."""
    r, n = recorded, recorded.layers
    gathers = _Channel(log, _QUEUE, [(script.root_gather, r.root_gather_s), *n * [(script.gather, r.gather_s)]])
    layer = _queued(script.reduce, script.replicate, r.reduce_s, script.replicate_share)
    root = _queued(script.root_reduce, script.root_replicate, r.root_reduce_s, script.replicate_share)
    reduces = _Channel(log, _QUEUE, [(script.carried, r.carried_reduce_s), *n * layer, *root])
    replicated = [(script.replicate, r.carried_replicate_s), *n * [(script.replicate, r.replicate_s)]]
    replicas = _Channel(log, _REPLICAS, [*replicated, (script.root_replicate, r.root_replicate_s)])
    now = start_s
    for phase in recorded.phases:
        _compute(log, phase, script, now)
        _local(log, phase, script, now)
        wire = now + phase.queue_after_s
        reduces.busy(wire, phase.reduce_s, phase.speed)
        gathers.busy(wire + phase.reduce_s, phase.gather_s, phase.speed)
        replicas.busy(now, phase.replicate_s, phase.speed)
        now += phase.duration_s
    for channel in (gathers, reduces, replicas):
        channel.close(now)
    return now


def _queued(reduce: Message, replicate: Message, seconds: float, share: float) -> list[tuple[Message, float]]:
    """A reduction in the queue, with the replicas' all-reduce behind it where that shares the wire."""
    return [(reduce, seconds * (1.0 - share)), (replicate, seconds * share)]


def _compute(log: EventLog, phase: Phase, script: Script, now: float) -> None:
    """A segment's kernels in order; those beside communication are slowed."""
    if phase.compute_s <= 0:
        return
    # work done per second: slowed while both run, full afterwards
    slowed = phase.compute_s - (phase.duration_s - phase.overlap_s)
    rate = slowed / phase.overlap_s if phase.overlap_s > 0 else 1.0

    def time_at(work: float) -> float:
        return work / rate if work <= slowed and phase.overlap_s > 0 else phase.overlap_s + work - slowed

    done, start = 0.0, 0.0
    for kernel in script.kernels[phase.segment]:
        done += kernel.share * phase.compute_s
        end = min(time_at(done), phase.duration_s)
        log.compute(kernel.name, now + start, end - start)
        start = end


def _local(log: EventLog, phase: Phase, script: Script, now: float) -> None:
    """TP and CP collectives of the segment, back to back."""
    if phase.local_s <= 0:
        return
    for message, share in script.local[phase.segment]:
        message.write(log, now, share * phase.local_s, _LOCAL)
        now += share * phase.local_s


def _reduce_dtype(parts: StepParts) -> str:
    return "fp32" if parts.traffic.reduce_bytes[0] == 4 else "bf16"


def script_of(
    parts: StepParts,
    kernels: dict[str, tuple[Kernel, ...]],
    local: dict[str, tuple[tuple[Message, float], ...]],
    row: int,
    a: Actions,
    stage: int,
    action: str,
) -> Script:
    """Messages of one action of one chunk kind on one stage."""
    t, ddp = parts.traffic, bool(parts.modes.ddp[0])
    shard = shard_group(parts, stage)
    copies = ("dp_replicate", "cp") if ddp else ("dp_replicate",)
    # replicas that do not meet in every step leave DDP's context-parallel ranks
    apart = ddp and bool(parts.table.sync_every[0] > 1)
    replicas = group(parts, "cp", ("cp",), stage) if apart else group(parts, "dp_replicate", copies, stage)
    dtype, width = _reduce_dtype(parts), float(t.reduce_bytes[0])
    layer = float(t.layer.moved[0])
    root = float(a.rows.embedding[row] * t.embedding.moved[0] + a.rows.head[row] * t.head.moved[0])
    reduce, home = ("all_reduce", replicas) if ddp else ("reduce_scatter", shard)

    def gather(elements: float, saved: float = 0.0) -> Message:
        size = PARAMETER_BYTES * elements - saved  # of two types in one message, FSDP2 sends bytes
        return Message(collective="all_gather", group=shard, message_bytes=size, dtype="uint8" if saved else "bf16")

    # the experts of one layer that has some
    edp, routed = expert_shard_group(parts, stage), float(t.experts.moved[0]) / (float(parts.expert_share) or 1.0)
    shards = 1.0 if ddp else float(t.expert_shards[0])
    experts = {
        "gather": Message(collective="all_gather", group=edp, message_bytes=PARAMETER_BYTES * routed, dtype="bf16"),
        "reduce": Message(
            collective=reduce,
            group=replace(edp, name="edp_replicate") if ddp else edp,
            message_bytes=width * routed,
            dtype=dtype,
        ),
        "replicate": Message(
            collective="all_reduce",
            group=replace(edp if ddp else replicas, name="edp_replicate"),
            message_bytes=width * routed / shards,
            dtype=dtype,
        ),
    }

    def reduction(elements: float) -> Message:
        return Message(collective=reduce, group=home, message_bytes=width * elements, dtype=dtype)

    def replication(elements: float) -> Message:
        size = width * elements / shard.size
        return Message(collective="all_reduce", group=replicas, message_bytes=size, dtype=dtype)

    of_layer = gather(layer, float(t.fp8.saved_bytes[0]))
    return Script(
        kernels=kernels,
        local=local,
        gather=of_layer,
        root_gather=gather(root),
        reduce=reduction(layer),
        root_reduce=reduction(root),
        replicate=replication(layer),
        root_replicate=replication(root),
        experts=experts if routed else {},
        replicate_share=float(parts.replicate_share()[0]) if action.endswith("last") else 0.0,
        carried=of_layer if action[0] == "F" else reduction(layer),
    )


Scripts = Sequence[dict[tuple[str, int], Script]]
"""For each stage, keyed by (action, row)."""


def stage_events(parts: StepParts, a: Actions, scripts: Scripts, tail: Tail, step_s: float) -> list[Events]:
    """The whole step of plan 0, a log for each pipeline stage."""
    table = parts.table
    logs = [EventLog() for _ in range(int(table.pp[0]))]
    ends = _play_serial(logs[0], parts, a, scripts) if len(logs) == 1 else _play_pipeline(logs, parts, a, scripts)
    world = group(parts, world_name(table), axes_that_meet(table), 0)
    for stage, log in enumerate(logs):
        play_tail(log, tail, world, parts, stage, ends)
    return [
        log.freeze(rank=stage_rank(parts, s), world_size=int(table.gpus[0]), step_s=step_s)
        for s, log in enumerate(logs)
    ]


def _play_serial(log: EventLog, parts: StepParts, a: Actions, scripts: Scripts) -> float:
    """Without a pipeline: microbatch after microbatch."""
    recorded, now, row = cache(partial(record_action, parts, a)), 0.0, int(a.row_of[0, 0])
    m = int(parts.table.microbatches[0])
    for micro in range(m):
        for action in ("F_first" if micro == 0 else "F", "B_last" if micro == m - 1 else "B"):
            now = play(log, recorded(action, row), scripts[0][(action, row)], now)
    return now


def _play_pipeline(logs: list[EventLog], parts: StepParts, a: Actions, scripts: Scripts) -> float:
    """With one: every action where the recurrence put it."""
    recorded, placed = cache(partial(record_action, parts, a)), placed_actions(parts, a)
    for rank, rows in enumerate(placed.filled):
        play_filling(logs[rank], parts, a, scripts[rank], rows)
    columns = (placed.rank, placed.kind, placed.row, placed.start_s, placed.receives, placed.sender)
    for rank, kind, row, start, receives, sender in zip(*(column.tolist() for column in columns), strict=True):
        if receives and placed.wait_s > 0:
            pair = neighbours(parts, rank, sender)
            logs[rank].comm("send_recv", pair, start, placed.wait_s, float(parts.traffic.pp_bytes[0]), "bf16", P2P)
            start += placed.wait_s
        action = pipeline.KINDS[kind]
        play(logs[rank], recorded(action, row), scripts[rank][(action, row)], start)
    return placed.end_s


def play_filling(
    log: EventLog, parts: StepParts, a: Actions, scripts: dict[tuple[str, int], Script], rows: Sequence[int]
) -> None:
    """ZeRO-1's gathers before a rank starts, back to back: its lowest chunk's, and what its upper ones cannot hide."""
    pieces, now = [], 0.0
    for row in rows:
        script, layers, whole = scripts[("F_first", row)], int(a.rows.layers[row]), float(a.filling_gather_s[row])
        layer = float(parts.at(float(a.rows.expert_share[row])).comm.gather_layer[0])
        if whole > 0:
            pieces += [*layers * [(script.gather, layer)], (script.root_gather, whole - layers * layer)]
    for message, seconds in [*pieces, (scripts[("F_first", rows[0])].gather, float(a.late_gather_s[0]))]:
        if seconds > 0:
            message.write(log, now, seconds, _QUEUE)
        now += seconds


def axes_that_meet(table: PlanTable) -> tuple[str, ...]:
    """Mesh axes over which ranks exchange in every step."""
    return tuple(axis for axis in AXES if axis != "dp_replicate" or table.sync_every[0] == 1)


def play_tail(log: EventLog, tail: Tail, world: RankGroup, parts: StepParts, stage: int, now: float) -> None:
    """What follows the last microbatch, from ``now`` on."""

    def comm(collective: str, ranks: RankGroup, seconds: float, size: float, dtype: str, stream: int) -> None:
        nonlocal now
        if seconds > 0:
            log.comm(collective, ranks, now, seconds, size, dtype, stream)
            now += seconds

    comm("all_reduce", world, tail.straggler_s, 4.0, "fp32", _SYNC)
    comm("all_reduce", world, tail.norm_s, 4.0, "fp32", _SYNC)
    log.compute("adamw", now, tail.optimizer_s)
    now += tail.optimizer_s
    replicas = group(parts, "dp_replicate", ("dp_replicate",), stage)
    comm("all_reduce", replicas, tail.exchange_s, tail.exchange_bytes, _reduce_dtype(parts), _REPLICAS)
    if tail.outer_s > 0:
        log.compute("outer", now, tail.outer_s)
        now += tail.outer_s
    layer_bytes = float(parts.traffic.gather_bytes[0])
    comm("all_gather", shard_group(parts, stage), tail.late_gather_s, layer_bytes, "bf16", _QUEUE)


WORDS = {"F": "forward", "B": "backward", "W": "weight gradients"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedAction:
    """The kernels of one kind of action from its start on, and when it starts."""

    name: str
    """forward, backward, weight gradients, gathers (before the first) or end of the step."""
    events: Events
    """Stages whose actions are alike share one; groups are as the first of them sees theirs."""
    starts_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutline:
    """One GPU of one pipeline stage."""

    actions: tuple[RepeatedAction, ...]
    end_s: float
    """When its last kernel ends."""


def stage_outlines(parts: StepParts, a: Actions, scripts: Scripts, tail: Tail) -> list[StageOutline]:
    """The whole step of plan 0, for each pipeline stage."""
    stages = int(parts.table.pp[0])
    recorded = cache(partial(record_action, parts, a))
    actions, ends = _serial(parts, a, scripts, recorded) if stages == 1 else _pipeline(parts, a, scripts, recorded)
    table = parts.table
    world = group(parts, world_name(table), axes_that_meet(table), 0)
    outlines = []
    for stage, own in enumerate(actions):
        log = EventLog()
        play_tail(log, tail, world, parts, stage, 0.0)
        after = log.freeze()
        own.append(RepeatedAction(name="end of the step", events=after, starts_s=np.array([ends])))
        outlines.append(StageOutline(actions=tuple(own), end_s=ends + after.step_s))
    return outlines


def _serial(
    parts: StepParts, a: Actions, scripts: Scripts, recorded: Callable[[str, int], RecordedWalk]
) -> tuple[list[list[RepeatedAction]], float]:
    """Without a pipeline: microbatch after microbatch."""
    row, m = int(a.row_of[0, 0]), int(parts.table.microbatches[0])
    names = ["F_first", *(["B", "F"] if m > 1 else []), "B_last"]
    logs, lasts = {name: EventLog() for name in names}, {}
    for name, log in logs.items():
        lasts[name] = play(log, recorded(name, row), scripts[0][(name, row)], 0.0)
    every = lasts["F_first"] + lasts.get("B", 0.0)
    between = lasts.get("F", 0.0) + lasts.get("B", 0.0)
    middle = np.arange(max(m - 1, 0))
    starts = {
        "F_first": np.zeros(1),
        "B": lasts["F_first"] + between * middle,
        "F": every + between * middle,
        "B_last": np.array([every + between * (m - 2) + lasts["F"] if m > 1 else lasts["F_first"]]),
    }
    found = [
        RepeatedAction(name=WORDS[name[0]], events=log.freeze(), starts_s=starts[name]) for name, log in logs.items()
    ]
    return [found], float(starts["B_last"][0]) + lasts["B_last"]


def _pipeline(
    parts: StepParts, a: Actions, scripts: Scripts, recorded: Callable[[str, int], RecordedWalk]
) -> tuple[list[list[RepeatedAction]], float]:
    """With one: the actions of a rank by kind, by chunk and by whether they wait for a neighbour."""
    placed = placed_actions(parts, a)
    waits = placed.receives & (placed.wait_s > 0)
    stages, names, rows = len(placed.filled), pipeline.KINDS, len(a.rows)
    code = ((placed.rank * len(names) + placed.kind) * rows + placed.row) * 2 + waits
    order = np.argsort(code, kind="stable")
    firsts = np.flatnonzero(np.diff(code[order], prepend=-1))
    found: list[list[RepeatedAction]] = [_filling(parts, a, scripts, placed.filled, rank) for rank in range(stages)]
    alike: dict[tuple[str, int, bool], Events] = {}
    for some in np.split(order, firsts[1:]):
        i = int(some[0])
        rank, row, action, waited = int(placed.rank[i]), int(placed.row[i]), names[int(placed.kind[i])], bool(waits[i])
        if (action, row, waited) not in alike:
            log = EventLog()
            if waited:
                pair = neighbours(parts, rank, int(placed.sender[i]))
                log.comm("send_recv", pair, 0.0, placed.wait_s, float(parts.traffic.pp_bytes[0]), "bf16", P2P)
            play(log, recorded(action, row), scripts[rank][(action, row)], placed.wait_s if waited else 0.0)
            alike[action, row, waited] = log.freeze()
        events = alike[action, row, waited]
        found[rank].append(RepeatedAction(name=WORDS[action[0]], events=events, starts_s=placed.start_s[some]))
    return found, placed.end_s


def _filling(
    parts: StepParts, a: Actions, scripts: Scripts, filled: Sequence[Sequence[int]], rank: int
) -> list[RepeatedAction]:
    log = EventLog()
    play_filling(log, parts, a, scripts[rank], filled[rank])
    return [RepeatedAction(name="gathers", events=log.freeze(), starts_s=np.zeros(1))] if len(log) else []
