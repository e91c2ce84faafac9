"""What the passes of a step are made of: local communication per segment and all priced parts, columns over plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, blended, names_of
from knee.engine.cost.comm_costs import CommCosts
from knee.engine.cost.compute_costs import ComputeCosts
from knee.engine.cost.kernel_cost import stream_s
from knee.engine.cost.placement import GroupPlacements
from knee.engine.workload import tp_messages
from knee.engine.workload.operations import MemoryBound, attention_backward_ratio
from knee.engine.workload.projections import BYTES, expert_share, on_one_gpu
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, ParameterTraffic, Traffic
from knee.specs.hardware import Gpu
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS
from knee.specs.plan_table import PlanTable, by_schedule, runs_both_ways
from knee.specs.profile import Profile
from knee.specs.schedules import PIPELINE_SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpCopies:
    """Of some weights, in one pass."""

    out: tuple[MemoryBound, ...]
    """Behind a gather."""
    back: tuple[MemoryBound, ...]
    """Before a reduction, with the cast to its type."""

    def moved_bytes(self) -> tuple[Floats, Floats]:
        """HBM traffic of copies out, and of copies back."""
        out, back = (np.sum([one.moved_bytes for one in some], axis=0) for some in (self.out, self.back))
        return out, back


def copies_of_group(gathered_bytes: Floats, elements: Floats, reduce_bytes: Floats) -> FsdpCopies:
    """Copies of a layer where several ranks share its parameters."""
    out = MemoryBound(name="copy_out", moved_bytes=2.0 * gathered_bytes, kernels=1, rate="copy_out")
    back = MemoryBound(name="copy_in", moved_bytes=(BYTES + reduce_bytes) * elements, kernels=1, rate="copy_in")
    return FsdpCopies(out=(out,), back=(back,))


def copies_on_one_gpu(
    gathered_bytes: Floats, elements: Floats, in_fp8: Floats | float, reduce_bytes: Floats, state_bytes: Floats
) -> FsdpCopies:
    """On a mesh of one; ``in_fp8`` of the elements are gathered in fp8, and were cast once for all passes."""
    cast = np.where(state_bytes > BYTES, (state_bytes + BYTES) * (elements - in_fp8), 0.0)
    returned = np.where(reduce_bytes != state_bytes, (reduce_bytes + state_bytes) * elements, 0.0)
    return FsdpCopies(
        out=(
            MemoryBound(name="copy_out", moved_bytes=cast, kernels=0),
            MemoryBound(name="copy_out", moved_bytes=2.0 * gathered_bytes, kernels=1, rate="copy_alone"),
        ),
        back=(
            MemoryBound(name="copy_in", moved_bytes=(BYTES + reduce_bytes) * elements, kernels=1, rate="copy_in_alone"),
            MemoryBound(name="copy_in", moved_bytes=2.0 * reduce_bytes * elements, kernels=1, rate="copy_alone"),
            MemoryBound(name="copy_in", moved_bytes=returned, kernels=1),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalComm(Columns):
    """TP and CP communication of one segment, split into what hides and what blocks."""

    hidden_s: Floats
    blocking_s: Floats
    host_s: Floats
    """Host time to issue it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalComms:
    """Per segment."""

    embedding_forward: LocalComm
    embedding_backward: LocalComm
    layer_forward: LocalComm
    layer_backward: LocalComm
    head_forward: LocalComm
    head_backward: LocalComm


def local_comms(
    model: Model,
    profile: Profile,
    table: PlanTable,
    groups: GroupPlacements,
    comm: CommCosts,
    compute: ComputeCosts,
    host_scale: float,
) -> LocalComms:
    """TP: as ``workload.tp_messages`` counts them. CP: keys and values."""
    share = np.where(np.isnan(table.tp_overlap_frac), profile.tp_overlap_frac, table.tp_overlap_frac)
    # products that overlap with their exchange write into each other's memory, which no network offers
    share = np.where(groups.tp.nodes > 1, 0.0, share)
    sp = table.sequence_parallel
    # host time to issue one collective; pipeline transfers between nodes crowd the host
    crowded = np.where(groups.pp.nodes > 1, profile.crowded_issue_s * table.tp, 0.0)
    issue = host_scale * np.where(table.tp > 1, profile.issue_s + crowded, 0.0)

    def tp(of: tp_messages.TpMessages, saved: Floats | float = 0.0) -> LocalComm:
        total = np.where(sp, of.collectives * comm.tp_gather - saved, of.all_reduces * comm.tp_all_reduce)
        host = np.where(sp, of.collectives, of.all_reduces) * issue
        blocks = (1.0 - share) * total
        if of.sums:
            host, blocks = host + of.sums * issue, blocks + of.sums * comm.tp_sum
        return LocalComm(hidden_s=share * total, blocking_s=blocks, host_s=host)

    def blocking(seconds: Floats) -> LocalComm:
        return LocalComm(hidden_s=0.0 * seconds, blocking_s=seconds, host_s=0.0 * seconds)

    times = tp_messages.LOSS_ALL_REDUCES if profile.loss_parallel else 1
    forward_cp, backward_cp = _context_parallel(profile, table, comm, compute)
    forward = tp(tp_messages.layer_forward(model), comm.tp_forward_saved).plus(forward_cp)
    backward = tp(tp_messages.layer_backward(model, profile), comm.tp_backward_saved).plus(backward_cp)
    if model.experts is not None:
        routed = routed_comm(model, profile, table, comm, host_scale)
        again = routed.times(table.recomputes_module("moe"))
        forward, backward = forward.plus(routed), backward.plus(routed).plus(again)
    return LocalComms(
        embedding_forward=tp(tp_messages.EMBEDDING_FORWARD),
        embedding_backward=tp(tp_messages.EMBEDDING_BACKWARD),
        layer_forward=forward,
        layer_backward=backward.plus(forward.times(table.repeats_frac)).plus(
            tp(tp_messages.ops_again(model), comm.tp_forward_saved).times(table.recomputes("ops"))
        ),
        head_forward=tp(tp_messages.HEAD_FORWARD).plus(blocking(times * comm.tp_loss)),
        head_backward=tp(tp_messages.HEAD_BACKWARD),
    )


def routed_comm(model: Model, profile: Profile, table: PlanTable, comm: CommCosts, host_scale: float) -> LocalComm:
    """Tokens to their experts and back, mean over layers; the gradients take the same way. They block, unless they
    travel beside another microbatch. The host keeps books of them."""
    share = expert_share(model)
    seconds = share * (comm.dispatch + 2.0 * comm.etp_gather + comm.combine)
    hidden = paired_share(table) * seconds
    host = np.zeros(len(table)) + host_scale * share * profile.expert_host_s
    return LocalComm(hidden_s=hidden, blocking_s=seconds - hidden, host_s=host)


def paired_share(table: PlanTable) -> Floats:
    """Share of the passes beside which a pass of another microbatch runs, the other way, and hides their tokens; 0 for
    plans that do not overlap them.

    Formula: 1 - alone / M, alone by ``PipelineSchedule.passes_alone``. Where whole blocks are recomputed, nothing is
             hidden
    Source:  counted from the orders in ``specs.schedules`` (a test compares them); Megatron-LM 0.16,
             transformer_config.py: overlap_moe_expert_parallel_comm excludes full recomputation
    """
    p, m = table.pp.astype(np.float64), table.microbatches
    alone = by_schedule(table, [schedule.passes_alone(p, m) for schedule in PIPELINE_SCHEDULES])
    overlaps = (table.ep_overlap | runs_both_ways(table)) & (table.repeats_frac == 0.0)
    return np.where(overlaps, np.clip(1.0 - np.where(p > 1, alone, 1.0) / m, 0.0, 1.0), 0.0)


def gathers_kv_again(profile: Profile, table: PlanTable) -> Floats:
    """1 where backward gathers keys and values once more: they were kept cut, or attention is run again."""
    again = table.recomputes("attention") + table.recomputes("ops")
    return np.where(profile.keeps_gathered, again, 1.0)


def _context_parallel(
    profile: Profile, table: PlanTable, comm: CommCosts, compute: ComputeCosts
) -> tuple[LocalComm, LocalComm]:
    """All-gather blocks: KV forward, the scatter of their gradients backward, and KV again where they were not kept. A
    ring sends a block while attention works on the one before; a step hides no more than its own compute."""
    ring = table.cp_method == CP_METHODS.index("ring")
    steps = np.maximum(table.cp - 1.0, 0.0)
    step_forward = profile.cp_overlap_frac * compute.attention_forward_s / table.cp

    def ring_steps(send_s: Floats, cover_s: Floats) -> LocalComm:
        hidden = steps * np.minimum(send_s, cover_s)
        return LocalComm(hidden_s=hidden, blocking_s=steps * send_s - hidden, host_s=0.0 * hidden)

    forward = ring_steps(comm.cp_send, step_forward)
    # backward sends keys and values, and their gradients
    backward = ring_steps(2.0 * comm.cp_send, attention_backward_ratio() * step_forward)
    zero = np.zeros(len(table))

    def either(sends: LocalComm, gather_s: Floats) -> LocalComm:
        blocking_s = np.where(ring, sends.blocking_s, gather_s)
        return LocalComm(hidden_s=np.where(ring, sends.hidden_s, zero), blocking_s=blocking_s, host_s=zero)

    again = 1.0 + gathers_kv_again(profile, table)
    return either(forward, comm.cp_gather), either(backward, again * comm.cp_gather)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Everything the passes of a step are made of."""

    gpu: Gpu
    profile: Profile
    launch_s: float
    """Host time to launch one kernel."""
    table: PlanTable
    modes: Modes
    traffic: Traffic
    compute: ComputeCosts
    comm: CommCosts
    local: LocalComms
    kappa: Floats
    """How much slower compute runs beside communication."""
    shares_wire: Bools
    """TP or CP and the sharded group both cross nodes, and so the same NICs."""
    serial_replicas: Bools
    """So do the sharded group and the replicas: their all-reduces stand in the queue."""
    expert_share: Floats | float
    """Of the layers."""
    kinds: LayerParts | None
    """What the mean layer is the mean of; None where layers are alike."""

    def at(self, share: Floats | float) -> StepParts:
        """Of chunks that have experts in that share of their layers."""
        if self.kinds is None:
            return self
        dense, sparse = self.kinds.dense, self.kinds.sparse
        return replace(
            self,
            traffic=self.traffic.at(share),
            compute=blended(dense.compute, sparse.compute, share),
            comm=blended_comm(dense.comm, sparse.comm, share),
            local=blended(dense.local, sparse.local, share),
            expert_share=share,
            kinds=None,
        )

    def replicate_share(self) -> Floats:
        """Share of a queued reduction that is the replicas' all-reduce: none where that has a channel of its own."""
        both = self.comm.reduce_layer + self.comm.replicate_layer
        queued = self.serial_replicas & (both > 0)
        return np.where(queued, self.comm.replicate_layer / np.where(queued, both, 1.0), 0.0)

    def copies(self) -> tuple[Floats, Floats]:
        """FSDP's copy-out after a layer's gather and copy-in (with the cast) before its reduction."""
        out, back = (np.zeros(len(self.table)) for _ in range(2))
        for copies, where in self._copies():
            more_out, more_back = self._seconds(copies, where)
            out, back = out + more_out, back + more_back
        return out, back

    def root_copies(self, part: ParameterTraffic) -> tuple[Floats, Floats]:
        """The same of the embedding or the head on a mesh of one; in a group, the root's are part of its gather."""
        return self._seconds(self._alone(PARAMETER_BYTES * part.moved, part.moved, 0.0), self.one_gpu)

    @property
    def one_gpu(self) -> Bools:
        """Plans under FSDP2 on a mesh of one."""
        return on_one_gpu(self.profile, self.table)

    def copied_bytes(self) -> Floats:
        """HBM traffic of a layer's copies in one step: resharding plans copy out twice and in every microbatch."""
        reshards, total = self.modes.reshards, np.zeros(len(self.table))
        for copies, where in self._copies():
            out, back = copies.moved_bytes()
            each = np.where(reshards, (2.0 * out + back) * self.table.microbatches, out + back)
            total = total + np.where(where, each, 0.0)
        return total

    def _copies(self) -> list[tuple[FsdpCopies, Bools]]:
        """The copies of a layer, each with the plans that make them."""
        t, sharded = self.traffic, self.modes.gathers & (self.table.dp_shard * self.table.cp > 1)
        found = [(copies_of_group(t.gather_bytes, t.layer_moved, t.reduce_bytes), sharded)]
        if self.one_gpu.any():
            found.append((self._alone(t.gather_bytes, t.layer_moved, t.fp8.saved_bytes), self.one_gpu))
        return found

    def _alone(self, gathered_bytes: Floats, elements: Floats, in_fp8: Floats | float) -> FsdpCopies:
        return copies_on_one_gpu(gathered_bytes, elements, in_fp8, self.traffic.reduce_bytes, self.table.state_bytes)

    def _seconds(self, copies: FsdpCopies, where: Bools) -> tuple[Floats, Floats]:
        out, back = (sum(stream_s(self.gpu, self.profile, one) for one in some) for some in (copies.out, copies.back))
        return np.where(where, out, 0.0), np.where(where, back, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """A step of the same plans if no layer had experts, and if all had."""

    dense: StepParts
    sparse: StepParts


def comms_of_kinds(comm: CommCosts) -> tuple[CommCosts, CommCosts]:
    """Messages of layers without experts, and of layers with them."""
    assert comm.dense is not None
    none = np.zeros(len(comm.norm))
    kinds = ("gather_experts", "reduce_experts", "replicate_experts", "dispatch", "combine", "etp_gather")
    own: dict[str, Any] = {name: getattr(comm.dense, name) for name in names_of(type(comm.dense))}
    own |= dict.fromkeys(kinds, none)
    sparse = replace(comm, dense=None)
    return replace(sparse, **own), sparse


def blended_comm(dense: CommCosts, sparse: CommCosts, share: Floats | float) -> CommCosts:
    """Messages of the mean layer. Those of routed tokens are a layer's with experts, whatever the share."""
    routed = {name: getattr(sparse, name) for name in ("dispatch", "combine", "etp_gather")}
    return replace(blended(dense, sparse, share), **routed)


def world_name(table: PlanTable, plan: int = 0) -> str:
    """What the GPUs are called that a step of a plan keeps together."""
    return "replica" if table.sync_every[plan] > 1 else "world"
