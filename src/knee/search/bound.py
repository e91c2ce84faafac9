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

from knee.arrays import Bools, Floats, Ints, equal_rows
from knee.cost.kernel_cost import Cost
from knee.cost.outer_sync import outer_sync_cost
from knee.cost.skew import expected_maximum
from knee.cost.step_parts import is_narrow
from knee.energy.step_power import power_w
from knee.simulator import CHUNK, late_gather_s, optimizer_cost, priced, step_work
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import SCHEDULES, SHARDINGS
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.variants import columns_of, variant_rows
from knee.timeline.actions import LocalComm, StepParts
from knee.timeline.pipeline_spans import transfers
from knee.timeline.plan_passes import recomputed
from knee.workload.layers_per_stage import chunk_layers, cuts_of, stage_layers

SLACK = 0.998
"""Of a bound: the simulator counts the microbatches of long pipelines to so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastStep:
    """No simulated step of the plan takes less."""

    step_s: Floats
    energy_j: Floats
    """Of one GPU."""

    def rows(self, index: Ints) -> LeastStep:
        """Of some of the plans."""
        return LeastStep(step_s=self.step_s[index], energy_j=self.energy_j[index])

    def plus(self, other: LeastStep) -> LeastStep:
        """Of these plans and those."""
        both = ((self.step_s, other.step_s), (self.energy_j, other.energy_j))
        step_s, energy_j = (np.concatenate(pair) for pair in both)
        return LeastStep(step_s=step_s, energy_j=energy_j)


def least_step(model: Model, cluster: Cluster, profile: Profile, table: PlanTable) -> LeastStep:
    """From all that is priced: compute, messages, bubble, optimizer."""
    parts, groups = priced(model, cluster, profile, table)
    work = _Work.of(model, parts)
    ranks = _ranks(model, profile, table)
    span = _span_s(table, work, ranks, lambda rank: _sharded_passes_s(parts, work, rank))
    late, comm = late_gather_s(profile, model, parts), parts.comm
    optimizer = optimizer_cost(cluster, profile, model, parts)
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
    first, kind = equal_rows(*(getattr(table, name) for name in (*names, *_SEGMENTS)), *columns_of(model))
    # a schedule puts the same stretches together; the longest bubble leaves most power, and so the highest clock
    few = table.rows(first)
    few = replace(few, schedule=np.full(len(few), SCHEDULES.index("1f1b")), virtual_stages=np.ones_like(few.pp))
    # weights that stay whole are cast least often to fp8 and fp4
    few = replace(few, sharding=np.where(is_narrow(few), SHARDINGS.index("zero1"), few.sharding))
    own = variant_rows(model, first)
    parts = _unsharded(priced(own, cluster, profile, few)[0])
    flop, moved = (column[kind] for column in step_work(own, parts))
    work = _Work.of(own, parts).rows(kind)
    ranks = _ranks(model, profile, table)
    span = _span_s(table, work, ranks, lambda rank: 2 * (table.microbatches * _microbatch_s(work, rank),))
    straggler = profile.straggler_frac * expected_maximum(table.gpus) * work.compute_s
    return _least(cluster, span + straggler + profile.step_overhead_s, flop, moved, work.blocked_s + straggler)


def by_chunk(
    bound: Callable[[Model, Cluster, Profile, PlanTable], LeastStep],
    model: Model,
    cluster: Cluster,
    profile: Profile,
    table: PlanTable,
) -> LeastStep:
    """One of the two for a table of any length."""
    found = LeastStep(step_s=np.zeros(0), energy_j=np.zeros(0))
    for start in range(0, len(table), CHUNK):
        some = slice(start, start + CHUNK)
        found = found.plus(bound(variant_rows(model, some), cluster, profile, table.rows(some)))
    return found


def _least(cluster: Cluster, step_s: Floats, flop: Floats, moved: Floats, comm_s: Floats) -> LeastStep:
    """The energy of a step grows with its length, whatever the board's limit."""
    watts = power_w(cluster.gpu, step_s=SLACK * step_s, flop=flop, moved_bytes=moved, comm_s=SLACK * comm_s)
    return LeastStep(step_s=SLACK * step_s, energy_j=SLACK * step_s * watts)


def _unsharded(parts: StepParts) -> StepParts:
    """The plans as if their data-parallel ranks exchanged nothing."""
    never = np.zeros(len(parts.table), dtype=np.bool_)
    modes = replace(parts.modes, **{f.name: never for f in fields(parts.modes)})
    return replace(parts, modes=modes, kappa=np.zeros(len(parts.table)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A layer or an end of the model, without the sharded group's messages beside it."""

    time_s: Floats
    free_s: Floats
    """Of it, when the sharded group's messages cost nothing: compute waits, or runs beside other messages anyway."""
    blocked_s: Floats
    idle_s: Floats
    """Of it, when the device waits for the host."""

    def rows(self, index: Ints) -> _Stretch:
        """Some of the plans."""
        return _Stretch(**{name: getattr(self, name)[index] for name in _TIMES})

    def times(self, count: Floats | Bools) -> _Stretch:
        """So many of them."""
        return _Stretch(**{name: count * getattr(self, name) for name in _TIMES})

    def plus(self, other: _Stretch) -> _Stretch:
        """One after the other."""
        return _Stretch(**{name: getattr(self, name) + getattr(other, name) for name in _TIMES})


_TIMES = tuple(f.name for f in fields(_Stretch))


def _stretch(parts: StepParts, compute_s: Floats, kernels: Floats, local: LocalComm) -> _Stretch:
    """As ``timeline.walk`` runs a segment beside which nothing is queued."""
    slower, gamma = 1.0 + parts.kappa, parts.profile.comm_slowdown
    overlap = np.minimum(compute_s * slower, local.hidden_s * gamma)
    blocked = local.blocking_s + local.hidden_s - overlap / gamma
    busy = compute_s + overlap - overlap / slower + blocked
    time = np.maximum(busy, parts.launch_s * kernels + local.host_s)
    # messages that cross the same network take turns
    free = np.where(parts.shares_wire, 0.0, blocked + overlap)
    return _Stretch(time_s=time, free_s=free + time - busy, blocked_s=blocked, idle_s=time - busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What one microbatch takes, part by part."""

    layer_forward: _Stretch
    layer_backward: _Stretch
    embedding_forward: _Stretch
    embedding_backward: _Stretch
    head_forward: _Stretch
    head_backward: _Stretch
    wait_s: Floats
    """For a transfer between ranks."""
    copy_out_s: Floats
    """Of a layer in the first forward, where parameters then stay gathered."""
    copy_in_s: Floats
    """Of a layer in the last backward, where gradients are reduced only then."""
    compute_s: Floats
    """Of a step, mean over the stages."""
    blocked_s: Floats

    @classmethod
    def of(cls, model: Model, parts: StepParts) -> _Work:
        """Price the stretches."""
        c, local, modes = parts.compute, parts.local, parts.modes
        out, back = parts.copies()
        again_s, again_kernels = recomputed(parts)
        forward_s = c.layer_forward.time_s + np.where(modes.reshards, out, 0.0)
        backward_s = c.layer_backward_input.time_s + c.layer_backward_weight.time_s + again_s
        backward_s = backward_s + np.where(modes.reshards, out, 0.0) + np.where(modes.reduces_often, back, 0.0)
        kernels = c.layer_backward_input.kernels + c.layer_backward_weight.kernels + again_kernels
        ends = (c.embedding_forward, c.embedding_backward, c.head_forward, c.head_backward)
        forward = _stretch(parts, forward_s, c.layer_forward.kernels, local.layer_forward)
        backward = _stretch(parts, backward_s, kernels, local.layer_backward)
        per_stage = parts.table.microbatches / parts.table.pp

        def end(cost: Cost, comm: LocalComm) -> _Stretch:
            return _stretch(parts, cost.time_s, cost.kernels, comm)

        return cls(
            layer_forward=forward,
            layer_backward=backward,
            embedding_forward=end(c.embedding_forward, local.embedding_forward),
            embedding_backward=end(c.embedding_backward, local.embedding_backward),
            head_forward=end(c.head_forward, local.head_forward),
            head_backward=end(c.head_backward, local.head_backward),
            wait_s=np.where(parts.table.pp > 1, transfers(parts), 0.0),
            copy_out_s=np.where(modes.reshards, 0.0, out),
            copy_in_s=np.where(modes.reduces_often, 0.0, back),
            compute_s=(model.walked_layers * (forward_s + backward_s) + sum(cost.time_s for cost in ends)) * per_stage,
            blocked_s=model.walked_layers * (forward.blocked_s + backward.blocked_s) * per_stage,
        )

    def rows(self, index: Ints) -> _Work:
        """Some of the plans."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(_Work)}
        cut: dict[str, Any] = {n: x.rows(index) if isinstance(x, _Stretch) else x[index] for n, x in columns.items()}
        return _Work(**cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank of the pipeline of each plan."""

    layers: Floats
    chunk: Floats
    """Layers of its first chunk."""
    before: Floats
    """Ranks before it."""
    layers_before: Floats
    """Layers that a microbatch passes on those before it first reaches this one."""
    first: Bools
    last: Bools
    chunks: Ints
    upper: Floats
    """Layers of its chunks above the first, mean over the ranks."""


@cache
def _cut(layers: int, ranks: int, virtual: int, head: float) -> tuple[tuple[float, ...], ...]:
    """(rank, its layers, those of its first chunk, layers before it, mean of upper layers) of three ranks: the first,
    the last, and the first that has most layers."""
    held, chunks = stage_layers(layers, ranks, virtual, head), chunk_layers(layers, ranks * virtual, head)
    upper = sum(chunks[ranks:]) / ranks
    return tuple((r, held[r], chunks[r], sum(chunks[:r]), upper) for r in (0, ranks - 1, held.index(max(held))))


def _ranks(model: Model, profile: Profile, table: PlanTable) -> list[_Rank]:
    """The first rank, the last, and the first that has most layers."""
    cuts = cuts_of(model, profile, table)
    ranks = np.array([_cut(*way) for way in cuts.ways], dtype=np.float64).reshape(-1, 3, 5)[cuts.of_plan]
    return [
        _Rank(
            layers=layers,
            chunk=chunk,
            before=rank,
            layers_before=before,
            first=rank == 0,
            last=rank == table.pp - 1,
            chunks=table.virtual_stages,
            upper=upper,
        )
        for rank, layers, chunk, before, upper in np.moveaxis(ranks, 0, 2)
    ]


def _span_s(
    table: PlanTable, work: _Work, ranks: list[_Rank], passes_s: Callable[[_Rank], tuple[Floats, Floats]]
) -> Floats:
    """Until the last backward has ended. A rank waits for its first microbatch, works through all of them without a
    pause at best, and the last one, once it is handed on, goes back through the ranks before it; the slowest such path
    counts. ``passes_s`` has all passes of a rank, and until the last of them is handed on."""
    wait, split = work.wait_s, table.splits_backward
    spans = []
    for rank in ranks:
        after = ~rank.first
        fill = rank.layers_before * work.layer_forward.time_s + after * work.embedding_forward.time_s
        drain = rank.layers_before * work.layer_backward.time_s + after * work.embedding_backward.time_s
        # of a split backward only the first half is handed on, and weight gradients may come after it
        drain = np.where(split, 0.0, drain + rank.before * wait)
        # a pass includes the transfer that brings its input
        received = table.microbatches * (2.0 * table.virtual_stages - rank.first - rank.last)
        received = received + np.maximum(rank.before - 1.0, 0.0)
        ended, handed_on = passes_s(rank)
        spans.append(fill + received * wait + np.maximum(ended, handed_on + drain))
    return np.asarray(np.max(spans, axis=0), dtype=np.float64)


def _forward(work: _Work, rank: _Rank) -> _Stretch:
    ends = work.embedding_forward.times(rank.first).plus(work.head_forward.times(rank.last))
    return work.layer_forward.times(rank.layers).plus(ends)


def _backward(work: _Work, rank: _Rank) -> _Stretch:
    ends = work.embedding_backward.times(rank.first).plus(work.head_backward.times(rank.last))
    return work.layer_backward.times(rank.layers).plus(ends)


def _microbatch_s(work: _Work, rank: _Rank) -> Floats:
    """A microbatch through a rank, forward and backward."""
    layer = work.layer_forward.time_s + work.layer_backward.time_s
    ends = rank.first * (work.embedding_forward.time_s + work.embedding_backward.time_s)
    return rank.layers * layer + ends + rank.last * (work.head_forward.time_s + work.head_backward.time_s)


def _sharded_passes_s(parts: StepParts, work: _Work, rank: _Rank) -> tuple[Floats, Floats]:
    """All passes of a rank with the sharded group's messages, without transfers; and without the last reductions."""
    modes, comm, layers, m = parts.modes, parts.comm, rank.layers, parts.table.microbatches
    hidden = parts.profile.p2p_overlap_frac * np.where(parts.table.pp > 1, comm.pp_send, 0.0)
    forward = _with_transfers(parts, _forward(work, rank), hidden * np.minimum(rank.chunks - rank.first, layers))
    backward = _with_transfers(parts, _backward(work, rank), hidden * np.minimum(rank.chunks - rank.last, layers))
    again = np.where(modes.reshards, comm.gather_layer, 0.0)
    often = np.where(modes.reduces_often, comm.reduce_layer, 0.0)
    root_gather = _root(rank, comm.gather_embedding, comm.gather_head, comm.gather_root)
    root_reduce = _root(rank, comm.reduce_embedding, comm.reduce_head, comm.reduce_root)
    middle = _beside(parts, forward, layers * again) + np.where(modes.reshards, root_gather, 0.0)
    middle = middle + _beside(parts, backward, layers * (again + often))
    middle = middle + np.where(modes.reduces_often, root_reduce, 0.0)
    # stages after the first gather while the pipeline fills, and upper chunks beside the one below them
    whole, once = rank.chunks == 1, modes.gathers | (modes.zero1 & parts.profile.gather_overlap)
    here = once & (modes.reshards | rank.first)
    gathered = np.where(here, rank.chunk * comm.gather_layer, 0.0)
    first = _beside(parts, forward, gathered, layers * work.copy_out_s)
    first = first + np.where(here & (modes.reshards | whole), root_gather, 0.0)
    first = first + _spread(parts, forward, np.where(once & ~modes.reshards, rank.upper * comm.gather_layer, 0.0))
    reduce = comm.reduce_layer + (modes.ddp | parts.serial_replicas) * comm.replicate_layer
    copies = layers * work.copy_in_s
    last = _beside(parts, backward, rank.chunk * (again + reduce), copies)
    last = np.maximum(last, rank.chunk * comm.replicate_layer) + np.where(whole, root_reduce, 0.0)
    before = first + (m - 1.0) * middle
    before = before + _spread(parts, backward, np.where(modes.reduces_often, 0.0, rank.upper * reduce))
    return before + last, before + _beside(parts, backward, np.zeros(len(m)), copies)


def _contention(parts: StepParts) -> Floats:
    """What a second of communication beside compute takes from it, at least."""
    return np.minimum(parts.profile.comm_slowdown * parts.kappa / (1.0 + parts.kappa), 1.0)


def _with_transfers(parts: StepParts, stretch: _Stretch, sent_s: Floats) -> _Stretch:
    """A pass beside which transfers hide: they slow compute down like other messages do."""
    busy = stretch.time_s - stretch.idle_s + _contention(parts) * sent_s
    time = np.maximum(stretch.time_s, busy)
    free = stretch.free_s - stretch.idle_s + np.where(parts.shares_wire, 0.0, sent_s) + time - busy
    return replace(stretch, time_s=time, free_s=free, idle_s=time - busy)


def _beside(parts: StepParts, stretch: _Stretch, queue_s: Floats, more_s: Floats | float = 0.0) -> Floats:
    """A stretch that computes so much more, and with so much queued beside it: compute slows down beside what does not
    run in its pauses. A device that waits for the host has time for both."""
    slowed = _contention(parts) * np.maximum(queue_s - stretch.free_s, 0.0)
    busy = stretch.time_s - stretch.idle_s + more_s + slowed
    return np.asarray(np.maximum(np.maximum(stretch.time_s, busy), queue_s), dtype=np.float64)


def _spread(parts: StepParts, stretch: _Stretch, queue_s: Floats) -> Floats:
    """What the queue of upper chunks adds to the passes of a group of microbatches."""
    passes = np.minimum(parts.table.microbatches, parts.table.pp) - 1.0
    slowed = _contention(parts) * np.maximum(queue_s - passes * stretch.free_s, 0.0)
    return np.maximum(slowed - passes * stretch.idle_s, 0.0)


def _root(rank: _Rank, embedding: Floats, head: Floats, both: Floats) -> Floats:
    """A message of the root group: of the embedding, the head, both in one, or none."""
    single = np.where(rank.first, embedding, 0.0) + np.where(rank.last, head, 0.0)
    return np.where(rank.first & rank.last, both, single)
