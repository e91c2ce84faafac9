"""What the bound of a step is put together from: a layer and the ends of the model, without the messages of the sharded
group beside them, and the ranks of a pipeline that may be the slowest."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from knee.arrays import Bools, Floats, Ints, blended
from knee.cost.kernel_cost import Cost
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.timeline.actions import LocalComm, StepParts
from knee.timeline.passes import Segment
from knee.timeline.pipelines.spans import transfers
from knee.timeline.plan_passes import recomputed
from knee.workload.layers_per_stage import ModelLayers, cuts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A layer or an end of the model, without the sharded group's messages beside it."""

    time_s: Floats
    free_s: Floats
    """Of it, when the sharded group's messages cost nothing: compute waits, or runs beside other messages anyway."""
    room_s: Floats
    """Compute that would run beside its messages without making it longer."""
    idle_s: Floats
    """Of it, when the device waits for the host."""

    def times(self, count: Floats | Bools) -> Stretch:
        """So many of them."""
        return Stretch(**{name: count * getattr(self, name) for name in _TIMES})

    def plus(self, other: Stretch) -> Stretch:
        """One after the other."""
        return Stretch(**{name: getattr(self, name) + getattr(other, name) for name in _TIMES})


_TIMES = tuple(f.name for f in fields(Stretch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How compute and messages slow each other down."""

    slower: Floats
    """Compute beside messages takes so many times as long."""
    gamma: float
    shares_wire: Bools

    def stretch(self, segment: Segment) -> Stretch:
        """As ``timeline.walk`` runs a segment beside which nothing is queued."""
        overlap = np.minimum(segment.compute_s * self.slower, segment.hidden_s * self.gamma)
        blocked = segment.blocking_s + segment.hidden_s - overlap / self.gamma
        busy = segment.compute_s + overlap - overlap / self.slower + blocked
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
        """Price the segments."""
        c, local, modes = parts.compute, parts.local, parts.modes
        out, back = parts.copies()
        again_s, again_kernels = recomputed(parts)
        forward_s = c.layer_forward.time_s + np.where(modes.reshards, out, 0.0)
        backward_s = c.layer_backward_input.time_s + c.layer_backward_weight.time_s + again_s
        backward_s = backward_s + np.where(modes.reshards, out, 0.0) + np.where(modes.reduces_often, back, 0.0)
        kernels = c.layer_backward_input.kernels + c.layer_backward_weight.kernels + again_kernels
        return cls(
            forward=_segment(parts, forward_s, c.layer_forward.kernels, local.layer_forward),
            backward=_segment(parts, backward_s, kernels, local.layer_backward),
            copy_out_s=np.where(modes.reshards, 0.0, out),
            copy_in_s=np.where(modes.reduces_often, 0.0, back),
            gather_s=parts.comm.gather_layer,
            reduce_s=parts.comm.reduce_layer,
            replicate_s=parts.comm.replicate_layer,
        )


def _segment(parts: StepParts, compute_s: Floats, kernels: Floats, local: LocalComm) -> Segment:
    host = parts.launch_s * kernels + local.host_s
    return Segment(compute_s=compute_s, hidden_s=local.hidden_s, blocking_s=local.blocking_s, host_s=host)


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
        """Price the stretches."""
        c, local, kinds = parts.compute, parts.local, parts.kinds
        pace = Pace(slower=1.0 + parts.kappa, gamma=parts.profile.comm_slowdown, shares_wire=parts.shares_wire)
        layer = LayerWork.of(parts)
        ends = (c.embedding_forward, c.embedding_backward, c.head_forward, c.head_backward)
        per_stage = parts.table.microbatches / parts.table.pp
        blocked = layer.forward.blocking_s + layer.backward.blocking_s
        compute = model.walked_layers * (layer.forward.compute_s + layer.backward.compute_s)

        def end(cost: Cost, comm: LocalComm) -> Stretch:
            return pace.stretch(_segment(parts, cost.time_s, cost.kernels, comm))

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
        """The times of all that it has."""
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
    return [
        PipelineRank(
            layers=held[0],
            share=held[1],
            chunk=held[2],
            chunk_share=held[3],
            before=rank,
            layers_before=held[4],
            share_before=held[5],
            first=rank == 0,
            last=rank == table.pp - 1,
            chunks=table.virtual_stages,
            upper=held[6],
            upper_share=held[7],
        )
        for rank, *held in np.moveaxis(ranks, 0, 2)
    ]
