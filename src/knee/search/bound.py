"""The least time and energy that a plan's step can take, from priced parts alone: nothing is walked.

Each formula leaves out what only a walk can know (how gathers line up with layers, how the ranks of a pipeline wait for
each other), so that no simulated step is below it; a test holds it against the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, Ints, blended, equal_rows, expanded
from knee.engine.cost.kernel_cost import Cost
from knee.engine.cost.outer_sync import optimizer_cost, outer_sync_cost
from knee.engine.cost.placement import expected_maximum
from knee.engine.energy import power_w
from knee.engine.simulator import CHUNK, late_gather_s, priced, step_work
from knee.engine.timeline.passes import Segment
from knee.engine.timeline.pipelines.spans import transfers
from knee.engine.timeline.plan_passes import recomputed, segment_of
from knee.engine.timeline.step_parts import LayerParts, LocalComm, StepParts
from knee.engine.workload.layers_per_stage import ModelLayers, cuts_of
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import SHARDINGS
from knee.specs.plan_table import PlanTable, columns_of, runs_both_ways, variant_rows
from knee.specs.profile import Profile
from knee.specs.schedules import ONE_F_ONE_B

# What the bound of a step is put together from: a layer and the ends of the model, without the messages of the
# sharded group beside them, and the ranks of a pipeline that may be the slowest.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch(Columns):
    """A layer or an end of the model, without the sharded group's messages beside it."""

    time_s: Floats
    free_s: Floats
    """Of it, when the sharded group's messages cost nothing: compute waits, or runs beside other messages anyway."""
    room_s: Floats
    """Compute that would run beside its messages without making it longer."""
    idle_s: Floats
    """Of it, when the device waits for the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How compute and messages slow each other down."""

    slower: Floats
    """Compute beside messages takes so many times as long."""
    gamma: float
    shares_wire: Bools

    def stretch(self, segment: Segment) -> Stretch:
        """As ``timeline.walk`` runs a segment beside which nothing is queued."""
        # seconds in which compute and hidden messages run side by side, each slowed down by the other
        overlap = np.minimum(segment.compute_s * self.slower, segment.hidden_s * self.gamma)
        # what is left of the messages after that, beside which nothing runs
        blocked = segment.blocking_s + segment.hidden_s - overlap / self.gamma
        busy = segment.compute_s + overlap - overlap / self.slower + blocked
        # a device that has less work than the host needs to launch it waits
        time = np.maximum(busy, segment.host_s)
        # messages that cross the same network take turns
        free = np.where(self.shares_wire, 0.0, blocked + overlap)
        room = (segment.hidden_s * self.gamma - overlap) / self.slower
        return Stretch(time_s=time, free_s=free + time - busy, room_s=room, idle_s=time - busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """A layer of one kind, or the mean of some: what one microbatch takes, and the messages of its parameters."""

    forward: Segment
    backward: Segment
    copy_out_s: Floats
    """In the first forward, where parameters then stay gathered."""
    copy_in_s: Floats
    """In the last backward, where gradients are reduced only then."""
    gather_s: Floats
    reduce_s: Floats
    replicate_s: Floats

    @classmethod
    def of(cls, parts: StepParts) -> LayerWork:
        """The work of a layer of priced plans."""
        c, local, modes = parts.compute, parts.local, parts.modes
        out, back = parts.copies()
        again_s, again_kernels = recomputed(parts)
        forward_s = c.layer_forward.time_s + np.where(modes.reshards, out, 0.0)
        backward_s = c.layer_backward_input.time_s + c.layer_backward_weight.time_s + again_s
        backward_s = backward_s + np.where(modes.reshards, out, 0.0) + np.where(modes.reduces_often, back, 0.0)
        kernels = c.layer_backward_input.kernels + c.layer_backward_weight.kernels + again_kernels
        return cls(
            forward=segment_of(parts, forward_s, c.layer_forward.kernels, local.layer_forward),
            backward=segment_of(parts, backward_s, kernels, local.layer_backward),
            copy_out_s=np.where(modes.reshards, 0.0, out),
            copy_in_s=np.where(modes.reduces_often, 0.0, back),
            gather_s=parts.comm.gather_layer,
            reduce_s=parts.comm.reduce_layer,
            replicate_s=parts.comm.replicate_layer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchWork:
    """What one microbatch takes, part by part."""

    layer: LayerWork
    """The mean over all layers."""
    dense: LayerWork | None
    sparse: LayerWork | None
    """Layers without experts and with them; None where layers are alike."""
    pace: Pace
    embedding_forward: Stretch
    embedding_backward: Stretch
    head_forward: Stretch
    head_backward: Stretch
    wait_s: Floats
    """For a transfer between ranks."""
    compute_s: Floats
    """Of a step, mean over the stages."""
    blocked_s: Floats
    """Of a step, mean over the stages, by messages beside which nothing could run."""

    @classmethod
    def of(cls, model: Model, parts: StepParts) -> MicrobatchWork:
        """The work of one microbatch of priced plans."""
        c, local, kinds = parts.compute, parts.local, parts.kinds
        pace = Pace(slower=1.0 + parts.kappa, gamma=parts.profile.comm_slowdown, shares_wire=parts.shares_wire)
        layer = LayerWork.of(parts)
        ends = (c.embedding_forward, c.embedding_backward, c.head_forward, c.head_backward)
        per_stage = parts.table.microbatches / parts.table.pp
        blocked = layer.forward.blocking_s + layer.backward.blocking_s
        compute = model.walked_layers * (layer.forward.compute_s + layer.backward.compute_s)

        def end(cost: Cost, comm: LocalComm) -> Stretch:
            return pace.stretch(segment_of(parts, cost.time_s, cost.kernels, comm))

        return cls(
            layer=layer,
            dense=None if kinds is None else LayerWork.of(kinds.dense),
            sparse=None if kinds is None else LayerWork.of(kinds.sparse),
            pace=pace,
            embedding_forward=end(c.embedding_forward, local.embedding_forward),
            embedding_backward=end(c.embedding_backward, local.embedding_backward),
            head_forward=end(c.head_forward, local.head_forward),
            head_backward=end(c.head_backward, local.head_backward),
            wait_s=np.where(parts.table.pp > 1, transfers(parts), 0.0),
            compute_s=(compute + sum(cost.time_s for cost in ends)) * per_stage,
            blocked_s=model.walked_layers * blocked * per_stage,
        )

    def at(self, share: Floats) -> LayerWork:
        """A layer of chunks that have experts in that share of their layers, mean over them. The walk takes the mean
        of each chunk; of a mean over several chunks, no message or pause is longer than the mean of theirs."""
        return self.layer if self.dense is None or self.sparse is None else blended(self.dense, self.sparse, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshardedWork:
    """Seconds of one microbatch where nothing is queued beside it: all that a bound of every sharding needs."""

    forward: Floats
    """Of a layer; where layers are not alike, of one without experts."""
    backward: Floats
    sparse_forward: Floats | None
    """Of a layer with experts; None where layers are alike."""
    sparse_backward: Floats | None
    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats
    wait_s: Floats
    compute_s: Floats
    blocked_s: Floats

    @classmethod
    def of(cls, work: MicrobatchWork) -> UnshardedWork:
        """Its times where nothing is queued beside them."""
        names = ("embedding_forward", "embedding_backward", "head_forward", "head_backward")
        ends: dict[str, Floats] = {name: getattr(work, name).time_s for name in names}
        times: dict[str, Any] = {"sparse_forward": None, "sparse_backward": None}
        for name in ("forward", "backward"):
            own: Segment = getattr(work.layer, name)
            times[name] = work.pace.stretch(own).time_s
            if work.dense is not None and work.sparse is not None:
                kinds = getattr(work.dense, name), getattr(work.sparse, name)
                times[name], times[f"sparse_{name}"] = _least_times(work.pace, own, *kinds)
        return cls(**times, **ends, wait_s=work.wait_s, compute_s=work.compute_s, blocked_s=work.blocked_s)

    def layer_s(self, share: Floats) -> tuple[Floats, Floats]:
        """Forward and backward of a layer in chunks that have experts in that share of their layers."""
        if self.sparse_forward is None or self.sparse_backward is None:
            return self.forward, self.backward
        dense = 1.0 - share
        forward = dense * self.forward + share * self.sparse_forward
        return forward, dense * self.backward + share * self.sparse_backward


def _least_times(pace: Pace, mean: Segment, dense: Segment, sparse: Segment) -> tuple[Floats, Floats]:
    """Times of the two kinds of layers by the one of three lines that is the longest for the mean layer: messages,
    compute, or the host. Beside nothing queued, the time of any mixture is the longest of the three, so no shorter."""

    # ``Pace.stretch`` as the longest of three sums, each linear in the segment: its mixture is the sums' mixture
    def lines(of: Segment) -> Floats:
        hidden = of.hidden_s + (1.0 - 1.0 / pace.gamma) * of.compute_s
        return np.array((of.compute_s + of.blocking_s, hidden + of.blocking_s, of.host_s))

    longest = lines(mean).argmax(axis=0)[None]
    without, with_experts = (np.take_along_axis(lines(kind), longest, axis=0)[0] for kind in (dense, sparse))
    return without, with_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRank:
    """One rank of the pipeline of each plan. Shares are those of layers with experts, 0 where all layers are alike."""

    layers: Floats
    share: Floats
    chunk: Floats
    """Layers of its first chunk."""
    chunk_share: Floats
    before: Floats
    """Ranks before it."""
    layers_before: Floats
    """Layers that a microbatch passes on those before it first reaches this one."""
    share_before: Floats
    first: Bools
    last: Bools
    chunks: Ints
    upper: Floats
    """Layers of its chunks above the first, mean over the ranks."""
    upper_share: Floats


@cache
def _cut(layers: ModelLayers, ranks: int, virtual: int) -> tuple[tuple[float, ...], ...]:
    """(rank, then layers and their share with experts: of the rank, of its first chunk, before it, and of upper chunks
    in the mean) of the first rank, the last, and the first that has most layers, and most of them with experts."""
    chunks = np.array((layers.dealt(ranks * virtual), layers.with_experts(ranks * virtual)), dtype=np.float64)
    held = chunks.reshape(2, virtual, ranks).sum(axis=1)
    upper = chunks[:, ranks:].sum(axis=1) / ranks
    # layers count first, and of ranks with as many layers those with experts
    some = (0, ranks - 1, int((held[0] + held[1] / (layers.count + 1.0)).argmax()))

    def counted(pair: Floats) -> tuple[float, float]:
        return float(pair[0]), float(pair[1] / max(pair[0], 1e-9))

    return tuple(
        (float(r), *counted(held[:, r]), *counted(chunks[:, r]), *counted(chunks[:, :r].sum(axis=1)), *counted(upper))
        for r in some
    )


def slow_ranks(model: Model, profile: Profile, table: PlanTable) -> list[PipelineRank]:
    """The ranks of which one may be the slowest."""
    cuts = cuts_of(model, profile, table)
    ranks = np.array([_cut(*way) for way in cuts.ways], dtype=np.float64).reshape(-1, 3, 9)[cuts.of_plan]
    names = ("layers", "share", "chunk", "chunk_share", "layers_before", "share_before", "upper", "upper_share")
    found = []
    for rank, *held in np.moveaxis(ranks, 0, 2):
        counts: dict[str, Any] = dict(zip(names, held, strict=True))
        first, last = rank == 0, rank == table.pp - 1
        found.append(PipelineRank(**counts, before=rank, first=first, last=last, chunks=table.virtual_stages))
    return found


SLACK = 0.998
"""What a bound is multiplied with. The simulator counts the repeated microbatches of a long pipeline instead of walking
them, and is then off by up to half of ``spans.FOLD_ERROR`` (0.15%); without slack a bound could be above its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastStep(Columns):
    """No simulated step of the plan takes less."""

    step_s: Floats
    energy_j: Floats
    """Of one GPU."""


def least_step(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> LeastStep:
    """From all that is priced: compute, messages, bubble, optimizer."""
    parts, groups = priced(model, cluster, profile, table)
    work = MicrobatchWork.of(model, parts)
    ranks = slow_ranks(model, profile, table)
    span = _span_s(table, UnshardedWork.of(work), ranks, lambda rank: _sharded_passes_s(parts, work, rank))
    late, comm = late_gather_s(profile, model, parts), parts.comm
    optimizer = optimizer_cost(model, cluster.gpu, profile, table, parts.modes, parts.traffic)
    outer = outer_sync_cost(model, cluster, profile, table, parts.modes, parts.traffic, groups)
    straggler = profile.straggler_frac * expected_maximum(table.gpus) * work.compute_s
    outer = replace(outer, hidden_s=np.where(outer.streams, outer.per_step * outer.all_reduce_s, 0.0))
    once = optimizer.time_s + comm.norm + late + straggler + profile.step_overhead_s + outer.comm_s + outer.compute_s
    flop, moved = step_work(model, parts)
    moved = moved + optimizer.moved_bytes + outer.moved_bytes
    return _least(cluster, span + once, flop, moved, work.blocked_s + comm.norm + late + straggler + outer.comm_s)


_SEGMENTS = ("sequence_parallel", "recompute", "recompute_frac", "cp_method", "precision", "fp8_recipe")
"""What segments depend on, beside degrees and sizes."""


def least_unsharded_step(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> LeastStep:
    """Whatever the sharding of the plans: compute, bubble, and tensor- and context-parallel messages alone."""
    names = ("gpus", "global_batch", "seq_len", "dp", "tp", "pp", "cp", "ep", "etp", "micro_batch")
    columns = [getattr(table, name) for name in (*names, *_SEGMENTS)]
    first, kind = equal_rows(*columns, runs_both_ways(table), *columns_of(model))
    # a schedule puts the same stretches together; the longest bubble leaves most power, and so the highest clock. Of
    # schedules in one direction, no other hides more tokens than 1F1B
    few = table.rows(first)
    usual = np.where(runs_both_ways(few), few.schedule, ONE_F_ONE_B.code)
    few = _zero1(replace(few, schedule=usual, virtual_stages=np.ones_like(few.pp)))
    own = variant_rows(model, first)
    parts = _unsharded(priced(own, cluster, profile, few, any_sharding=True)[0])
    flop, moved = (column[kind] for column in step_work(own, parts))
    work = expanded(UnshardedWork.of(MicrobatchWork.of(own, parts)), kind)
    ranks = slow_ranks(model, profile, table)
    span = _span_s(table, work, ranks, lambda rank: 2 * (table.microbatches * _microbatch_s(work, rank),))
    straggler = profile.straggler_frac * expected_maximum(table.gpus) * work.compute_s
    return _least(cluster, span + straggler + profile.step_overhead_s, flop, moved, work.blocked_s + straggler)


def least_shape_step(model: Model, cluster: Cluster, profile: Profile, shapes: PlanTable) -> LeastStep:
    """Whatever the stages, the schedule and the sharding of plans whose kernels have these shapes
    (``space.kernel_shapes``): the mean over stages of compute and of tensor-, context- and expert-parallel
    messages. It does not depend on how many stages there are; of all plans, those with most stages have the longest
    bubble, and so the highest clock, and hide most tokens."""
    alone = replace(profile, crowded_issue_s=0.0)
    parts = _unsharded(priced(model, cluster, alone, shapes, any_sharding=True)[0])
    work = UnshardedWork.of(MicrobatchWork.of(model, parts))
    forward, backward = work.layer_s(np.asarray(parts.expert_share))
    ends = work.embedding_forward + work.embedding_backward + work.head_forward + work.head_backward
    span = shapes.microbatches / shapes.pp * (model.walked_layers * (forward + backward) + ends)
    straggler = profile.straggler_frac * expected_maximum(shapes.gpus) * work.compute_s
    once = straggler + profile.step_overhead_s
    return _least(cluster, span + once, *step_work(model, parts), work.blocked_s + straggler)


def _zero1(table: PlanTable) -> PlanTable:
    """The plans as ZeRO-1 over all data-parallel ranks: whole weights that are kept in 16 bits are cast least often."""
    mode, one = np.full(len(table), SHARDINGS.index("zero1")), np.ones_like(table.dp)
    return replace(table, sharding=mode, dp_shard=table.dp, dp_replicate=one)


def by_chunk(
    bound: Callable[[Model, Cluster, Profile, PlanTable], LeastStep],
    model: Model,
    cluster: Cluster,
    profile: Profile,
    table: PlanTable,
) -> LeastStep:
    """One of the bounds for a table of any length. Plans whose kernels have the same shapes are priced together, so
    that each shape is priced once."""
    if 0 < len(table) <= CHUNK:
        return bound(model, cluster, profile, table)
    order = np.argsort((table.tp * 2**20 + table.cp) * 2**20 + table.micro_batch, kind="stable")
    step_s, energy_j = np.empty(len(table)), np.empty(len(table))
    for start in range(0, len(table), CHUNK):
        rows = order[start : start + CHUNK]
        found = bound(variant_rows(model, rows), cluster, profile, table.rows(rows))
        step_s[rows], energy_j[rows] = found.step_s, found.energy_j
    return LeastStep(step_s=step_s, energy_j=energy_j)


def _least(cluster: Cluster, step_s: Floats, flop: Floats, moved: Floats, comm_s: Floats) -> LeastStep:
    """The energy of a step grows with its length, whatever the board's limit."""
    watts = power_w(cluster.gpu, step_s=SLACK * step_s, flop=flop, moved_bytes=moved, comm_s=SLACK * comm_s)
    return LeastStep(step_s=SLACK * step_s, energy_j=SLACK * step_s * watts)


def _unsharded(parts: StepParts) -> StepParts:
    """The plans as if their data-parallel ranks exchanged nothing."""
    never = np.zeros(len(parts.table), dtype=np.bool_)
    modes = replace(parts.modes, **{f.name: never for f in fields(parts.modes)})
    kinds = parts.kinds
    if kinds is not None:
        kinds = LayerParts(dense=replace(kinds.dense, modes=modes), sparse=replace(kinds.sparse, modes=modes))
    return replace(parts, modes=modes, kappa=np.zeros(len(parts.table)), kinds=kinds)


def _span_s(
    table: PlanTable,
    work: UnshardedWork,
    ranks: list[PipelineRank],
    passes_s: Callable[[PipelineRank], tuple[Floats, Floats]],
) -> Floats:
    """Until the last backward has ended. A rank waits for its first microbatch, works through all of them without a
    pause at best, and the last one, once it is handed on, goes back through the ranks before it; the slowest such path
    counts. ``passes_s`` has all passes of a rank, and until the last of them is handed on."""
    wait, split = work.wait_s, table.splits_backward
    spans = []
    for rank in ranks:
        after, (forward, backward) = ~rank.first, work.layer_s(rank.share_before)
        fill = rank.layers_before * forward + after * work.embedding_forward
        drain = rank.layers_before * backward + after * work.embedding_backward
        # of a split backward only the first half is handed on, and weight gradients may come after it
        drain = np.where(split, 0.0, drain + rank.before * wait)
        # a pass includes the transfer that brings its input
        received = table.microbatches * (2.0 * table.virtual_stages - rank.first - rank.last)
        received = received + np.maximum(rank.before - 1.0, 0.0)
        ended, handed_on = passes_s(rank)
        spans.append(fill + received * wait + np.maximum(ended, handed_on + drain))
    span = np.asarray(np.max(spans, axis=0), dtype=np.float64)
    two_way = runs_both_ways(table)
    return np.where(two_way, _two_way_span_s(table, work, ranks), span) if two_way.any() else span


def _two_way_span_s(table: PlanTable, work: UnshardedWork, ranks: list[PipelineRank]) -> Floats:
    """Of DualPipe: a rank works through half of the microbatches on each of its two stages. The first and the last rank
    have the same two; any other is left out."""
    first, last, *_ = ranks
    both = _microbatch_s(work, first) + _microbatch_s(work, last)
    return np.asarray(table.microbatches / 2.0 * both, dtype=np.float64)


def _pass(pace: Pace, rank: PipelineRank, layer: Segment, embedding: Stretch, head: Stretch) -> Stretch:
    ends = embedding.times(rank.first).plus(head.times(rank.last))
    return pace.stretch(layer).times(rank.layers).plus(ends)


def _microbatch_s(work: UnshardedWork, rank: PipelineRank) -> Floats:
    forward, backward = work.layer_s(rank.share)
    ends = rank.first * (work.embedding_forward + work.embedding_backward)
    return rank.layers * (forward + backward) + ends + rank.last * (work.head_forward + work.head_backward)


def _sharded_passes_s(parts: StepParts, work: MicrobatchWork, rank: PipelineRank) -> tuple[Floats, Floats]:
    """All passes of a rank with the sharded group's messages, without transfers; and without the last reductions."""
    modes, comm, layers, m = parts.modes, parts.comm, rank.layers, parts.table.microbatches
    layer, chunk, upper = work.at(rank.share), work.at(rank.chunk_share), work.at(rank.upper_share)
    hidden = parts.profile.p2p_overlap_frac * np.where(parts.table.pp > 1, comm.pp_send, 0.0)
    there = _pass(work.pace, rank, layer.forward, work.embedding_forward, work.head_forward)
    back = _pass(work.pace, rank, layer.backward, work.embedding_backward, work.head_backward)
    forward = _with_transfers(parts, there, hidden * np.minimum(rank.chunks - rank.first, layers))
    backward = _with_transfers(parts, back, hidden * np.minimum(rank.chunks - rank.last, layers))
    again = np.where(modes.reshards, layer.gather_s, 0.0)
    often = np.where(modes.reduces_often, layer.reduce_s, 0.0)
    root_gather = _root(rank, comm.gather_embedding, comm.gather_head, comm.gather_root)
    root_reduce = _root(rank, comm.reduce_embedding, comm.reduce_head, comm.reduce_root)
    middle = _beside(parts, forward, layers * again) + np.where(modes.reshards, root_gather, 0.0)
    middle = middle + _beside(parts, backward, layers * (again + often))
    middle = middle + np.where(modes.reduces_often, root_reduce, 0.0)
    # stages after the first gather while the pipeline fills, and upper chunks beside the one below them
    whole, once = rank.chunks == 1, modes.gathers | (modes.zero1 & parts.profile.gather_overlap)
    here = once & (modes.reshards | rank.first)
    gathered = np.where(here, rank.chunk * chunk.gather_s, 0.0)
    first = _beside(parts, forward, gathered, layers * layer.copy_out_s)
    first = first + np.where(here & (modes.reshards | whole), root_gather, 0.0)
    first = first + _spread(parts, forward, np.where(once & ~modes.reshards, rank.upper * upper.gather_s, 0.0))
    queued = modes.ddp | parts.serial_replicas
    copies = layers * layer.copy_in_s
    regathered = np.where(modes.reshards, chunk.gather_s, 0.0)
    last = _beside(parts, backward, rank.chunk * (regathered + chunk.reduce_s + queued * chunk.replicate_s), copies)
    last = np.maximum(last, rank.chunk * chunk.replicate_s) + np.where(whole, root_reduce, 0.0)
    before, left = first + (m - 1.0) * middle, upper.reduce_s + queued * upper.replicate_s
    before = before + _spread(parts, backward, np.where(modes.reduces_often, 0.0, rank.upper * left))
    return before + last, before + _beside(parts, backward, np.zeros(len(m)), copies)


def _contention(parts: StepParts) -> Floats:
    """What a second of communication beside compute takes from it, at least."""
    return np.minimum(parts.profile.comm_slowdown * parts.kappa / (1.0 + parts.kappa), 1.0)


def _with_transfers(parts: StepParts, stretch: Stretch, sent_s: Floats) -> Stretch:
    """A pass beside which transfers hide: they slow compute down like other messages do."""
    busy = stretch.time_s - stretch.idle_s + _contention(parts) * sent_s
    time = np.maximum(stretch.time_s, busy)
    free = stretch.free_s - stretch.idle_s + np.where(parts.shares_wire, 0.0, sent_s) + time - busy
    return replace(stretch, time_s=time, free_s=free, idle_s=time - busy)


def _beside(parts: StepParts, stretch: Stretch, queue_s: Floats, more_s: Floats | float = 0.0) -> Floats:
    """A stretch that computes so much more, and with so much queued beside it: compute slows down beside what does not
    run in its pauses. A device that waits for the host has time for both, and messages have room for compute."""
    slowed = _contention(parts) * np.maximum(queue_s - stretch.free_s, 0.0)
    busy = stretch.time_s - stretch.idle_s + np.maximum(more_s - stretch.room_s, 0.0) + slowed
    return np.asarray(np.maximum(np.maximum(stretch.time_s, busy), queue_s), dtype=np.float64)


def _spread(parts: StepParts, stretch: Stretch, queue_s: Floats) -> Floats:
    """What the queue of upper chunks adds to the passes of a group of microbatches."""
    passes = np.minimum(parts.table.microbatches, parts.table.pp) - 1.0
    slowed = _contention(parts) * np.maximum(queue_s - passes * stretch.free_s, 0.0)
    return np.maximum(slowed - passes * stretch.idle_s, 0.0)


def _root(rank: PipelineRank, embedding: Floats, head: Floats, both: Floats) -> Floats:
    """A message of the root group: of the embedding, the head, both in one, or none."""
    single = np.where(rank.first, embedding, 0.0) + np.where(rank.last, head, 0.0)
    return np.where(rank.first & rank.last, both, single)
