"""The passes of a step: what each chunk does in its first, middle and last microbatch, as columns over plans.

A plan has few kinds of chunks (see ``timeline.chunks``), and each kind few actions; those are the columns that
``timeline.walk`` walks, not stages or microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.arrays import Bools, Floats
from knee.cost.kernel_cost import Cost, attention_launches, stream_s
from knee.cost.step_parts import CommCosts, ComputeCosts, GroupPlacements
from knee.specs.hardware import Gpu
from knee.specs.plan import CP_METHODS, SCHEDULES
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.timeline.chunks import ChunkRows
from knee.timeline.passes import Pass, Segment
from knee.workload import tp_messages
from knee.workload.operations import MemoryBound
from knee.workload.traffic import PARAMETER_BYTES, Modes, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalComm:
    """TP and CP communication of one segment, split into what hides and what blocks."""

    hidden_s: Floats
    blocking_s: Floats
    host_s: Floats
    """Host time to issue it."""

    def plus(self, other: LocalComm) -> LocalComm:
        """Both, one after the other."""
        return LocalComm(
            hidden_s=self.hidden_s + other.hidden_s,
            blocking_s=self.blocking_s + other.blocking_s,
            host_s=self.host_s + other.host_s,
        )

    def times(self, factor: Floats) -> LocalComm:
        """So many times."""
        return LocalComm(
            hidden_s=factor * self.hidden_s, blocking_s=factor * self.blocking_s, host_s=factor * self.host_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalComms:
    """Per segment."""

    embedding_forward: LocalComm
    embedding_backward: LocalComm
    layer_forward: LocalComm
    layer_backward: LocalComm
    head_forward: LocalComm
    head_backward: LocalComm


def issue_s(profile: Profile, table: PlanTable, groups: GroupPlacements) -> Floats:
    """Host time to issue one tensor-parallel collective; pipeline transfers between nodes crowd the host."""
    crowded = np.where(groups.pp.nodes > 1, profile.crowded_issue_s * table.tp, 0.0)
    return np.where(table.tp > 1, profile.issue_s + crowded, 0.0)


def local_comms(
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
    issue = host_scale * issue_s(profile, table, groups)

    def tp(of: tp_messages.TpMessages) -> LocalComm:
        total = np.where(sp, of.collectives * comm.tp_gather, of.all_reduces * comm.tp_all_reduce)
        host = np.where(sp, of.collectives, of.all_reduces) * issue
        return LocalComm(hidden_s=share * total, blocking_s=(1.0 - share) * total, host_s=host)

    def blocking(seconds: Floats) -> LocalComm:
        return LocalComm(hidden_s=0.0 * seconds, blocking_s=seconds, host_s=0.0 * seconds)

    times = tp_messages.LOSS_ALL_REDUCES if profile.loss_parallel else 1
    forward_cp, backward_cp = _context_parallel(profile, table, comm, compute)
    forward = tp(tp_messages.LAYER_FORWARD).plus(forward_cp)
    backward = tp(tp_messages.layer_backward(profile)).plus(backward_cp)
    return LocalComms(
        embedding_forward=tp(tp_messages.EMBEDDING_FORWARD),
        embedding_backward=tp(tp_messages.EMBEDDING_BACKWARD),
        layer_forward=forward,
        layer_backward=backward.plus(forward.times(table.repeats_frac)).plus(
            tp(tp_messages.OPS_AGAIN).times(table.recomputes("ops"))
        ),
        head_forward=tp(tp_messages.HEAD_FORWARD).plus(blocking(times * comm.tp_loss)),
        head_backward=tp(tp_messages.HEAD_BACKWARD),
    )


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

    forward, backward = ring_steps(comm.cp_send, step_forward), ring_steps(2.0 * comm.cp_send, 2.5 * step_forward)
    zero = np.zeros(len(table))
    return (
        LocalComm(
            hidden_s=np.where(ring, forward.hidden_s, zero),
            blocking_s=np.where(ring, forward.blocking_s, comm.cp_gather),
            host_s=zero,
        ),
        LocalComm(
            hidden_s=np.where(ring, backward.hidden_s, zero),
            blocking_s=np.where(ring, backward.blocking_s, (1.0 + gathers_kv_again(profile, table)) * comm.cp_gather),
            host_s=zero,
        ),
    )


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

    def replicate_share(self) -> Floats:
        """Share of a queued reduction that is the replicas' all-reduce: none where that has a channel of its own."""
        both = self.comm.reduce_layer + self.comm.replicate_layer
        queued = self.serial_replicas & (both > 0)
        return np.where(queued, self.comm.replicate_layer / np.where(queued, both, 1.0), 0.0)

    def copies(self, elements: Floats) -> tuple[Floats, Floats]:
        """FSDP's copy-out after a gather and copy-in (with the cast) before a reduce."""
        out = MemoryBound(name="copy_out", moved_bytes=2.0 * PARAMETER_BYTES * elements, kernels=1, rate="copy_out")
        moved = (PARAMETER_BYTES + self.traffic.reduce_bytes) * elements
        back = MemoryBound(name="copy_in", moved_bytes=moved, kernels=1, rate="copy_in")
        return (
            np.where(self._copies, stream_s(self.gpu, self.profile, out), 0.0),
            np.where(self._copies, stream_s(self.gpu, self.profile, back), 0.0),
        )

    @property
    def _copies(self) -> Bools:
        return np.asarray(self.modes.gathers & (self.table.dp_shard * self.table.cp > 1), dtype=np.bool_)

    def copied_bytes(self) -> Floats:
        """HBM traffic of a layer's copies in one step: resharding plans copy out twice and in every microbatch."""
        out, back = 2.0 * PARAMETER_BYTES, PARAMETER_BYTES + self.traffic.reduce_bytes
        each = np.where(self.modes.reshards, (2.0 * out + back) * self.table.microbatches, out + back)
        return np.where(self._copies, each * self.traffic.layer.moved, 0.0)


def _end_segment(parts: StepParts, cost: Cost, local: LocalComm, rows: ChunkRows, there: Bools) -> Segment:
    """Embedding or head of the rows' plans; nothing where the chunk lacks it."""
    i = rows.plan
    return Segment(
        compute_s=cost.time_s[i] * there,
        hidden_s=local.hidden_s[i] * there,
        blocking_s=local.blocking_s[i] * there,
        host_s=(parts.launch_s * cost.kernels[i] + local.host_s[i]) * there,
    )


def _layer_segment(
    parts: StepParts, cost_s: Floats, kernels: Floats, local: LocalComm, rows: ChunkRows, receives: Bools
) -> Segment:
    """A layer of the rows' plans. The share of a transfer that hides does so beside the chunk's layers, evenly."""
    i = rows.plan
    hidden_send = np.where(receives, parts.profile.p2p_overlap_frac * parts.comm.pp_send[i], 0.0)
    return Segment(
        compute_s=cost_s[i],
        hidden_s=local.hidden_s[i] + hidden_send / np.maximum(rows.layers, 1),
        blocking_s=local.blocking_s[i],
        host_s=parts.launch_s * kernels[i] + local.host_s[i],
    )


def _root(rows: ChunkRows, embedding: Floats, head: Floats, both: Floats) -> Floats:
    """The message of a chunk's root group: embedding, head, both in one, or none."""
    i = rows.plan
    single = np.where(rows.embedding, embedding[i], 0.0) + np.where(rows.head, head[i], 0.0)
    return np.where(rows.embedding & rows.head, both[i], single)


def gathers_while_filling(parts: StepParts, rows: ChunkRows) -> Bools:
    """Chunks whose parameters are gathered before they are needed, while the pipeline fills: all but the first. ZeRO-1
    does so where the stack overlaps its gathers, FSDP where parameters stay gathered for the step (torch's pipeline
    runtime unshards stages ahead of their first microbatch)."""
    modes = parts.modes
    once = modes.gathers & ~modes.reshards & (parts.table.pp > 1)
    ahead = once | (modes.zero1 & parts.profile.gather_overlap)
    return np.asarray(ahead[rows.plan] & ~rows.embedding, dtype=np.bool_)


def filling_gather_s(parts: StepParts, rows: ChunkRows) -> Floats:
    """Seconds of those gathers, per row."""
    comm = parts.comm
    root = _root(rows, comm.gather_embedding, comm.gather_head, comm.gather_root)
    return np.where(gathers_while_filling(parts, rows), rows.layers * comm.gather_layer[rows.plan] + root, 0.0)


def forward_pass(parts: StepParts, rows: ChunkRows, *, gathers: Bools) -> Pass:
    """Forward of one microbatch; ``gathers`` says, per plan, whether this one brings the parameters."""
    c, comm, i = parts.compute, parts.comm, rows.plan
    out, _ = parts.copies(parts.traffic.layer.moved)
    # ZeRO-1's gather beside forward writes in place: nothing is copied out
    out = np.where(gathers & ~parts.modes.zero1, out, 0.0)
    zero = np.zeros(len(rows))
    here = gathers[i] & ~gathers_while_filling(parts, rows)
    gather = np.where(here & (rows.layers > 0), comm.gather_layer[i], 0.0)
    root = np.where(here, _root(rows, comm.gather_embedding, comm.gather_head, comm.gather_root), 0.0)
    return Pass(
        layers=rows.layers,
        lead=_end_segment(parts, c.embedding_forward, parts.local.embedding_forward, rows, rows.embedding),
        layer=_layer_segment(
            parts,
            c.layer_forward.time_s + out,
            c.layer_forward.kernels,
            parts.local.layer_forward,
            rows,
            ~rows.embedding,
        ),
        tail=_end_segment(parts, c.head_forward, parts.local.head_forward, rows, rows.head),
        root_gather_s=root,
        gather_s=gather,
        # FSDP2: a gather may start once the one before has ended and the copy-out two layers back is done
        ahead=np.where(parts.table.prefetch[i] > 0, parts.table.prefetch[i] + 1, 0),
        reduce_s=zero,
        reduce_limit_s=zero + np.inf,
        root_reduce_s=zero,
        replicate_s=zero,
        root_replicate_s=zero,
        carried_reduce_s=zero,
        carried_replicate_s=zero,
        kappa=parts.kappa[i],
        shares_wire=parts.shares_wire[i],
        waits_at_end=np.ones(len(rows), dtype=np.bool_),
    )


def recomputed(parts: StepParts) -> tuple[Floats, Floats]:
    """Forward work that backward does again: seconds and kernels per layer."""
    c, full = parts.compute, parts.table.repeats_frac
    attention = parts.table.recomputes("attention")
    seconds = full * c.layer_forward.time_s + c.ops_again.time_s + attention * c.attention_forward_s
    kernels = full * c.layer_forward.kernels + c.ops_again.kernels
    return seconds, kernels + attention * attention_launches(parts.profile, forward=True)


def _backward_layer(parts: StepParts, rows: ChunkRows, reduces: Bools, what: str) -> Segment:
    """A layer's backward: what it computes, launches and exchanges."""
    c = parts.compute
    out, back = parts.copies(parts.traffic.layer.moved)
    again_s, again_kernels = recomputed(parts)
    cost_s, kernels = np.where(reduces, back, 0.0), np.zeros(len(parts.table))
    local = LocalComm(hidden_s=0.0 * cost_s, blocking_s=0.0 * cost_s, host_s=0.0 * cost_s)
    if what != "weight":
        cost_s = cost_s + c.layer_backward_input.time_s + again_s + np.where(parts.modes.reshards, out, 0.0)
        kernels = kernels + c.layer_backward_input.kernels + again_kernels
        local = parts.local.layer_backward
    if what != "input":
        cost_s, kernels = cost_s + c.layer_backward_weight.time_s, kernels + c.layer_backward_weight.kernels
    return _layer_segment(parts, cost_s, kernels, local, rows, ~rows.head & (what != "weight"))


def backward_pass(
    parts: StepParts, rows: ChunkRows, *, reduces: Bools, replicates: bool = True, what: str = "both"
) -> Pass:
    """Backward of one microbatch: ``both`` gradients, or the ``input``'s or the ``weight``'s alone (zero bubble).

    ``reduces`` says, per plan, whether this one sends its gradients off, ``replicates`` whether replicas then add
    theirs, which can wait for the last microbatch.
    """
    c, comm, local, i = parts.compute, parts.comm, parts.local, rows.plan
    zero, sends = np.zeros(len(rows)), reduces[i]
    layers = rows.layers > 0
    whole = what != "weight"  # ends and transfers belong to the half that hands the gradient on
    # DDP's all-reduce needs no scatter before it, and one that shares the wire waits its turn: both are queued
    queues = (parts.modes.ddp | parts.serial_replicas) & replicates
    reduce = np.where(sends & layers, (comm.reduce_layer + np.where(queues, comm.replicate_layer, 0.0))[i], 0.0)
    root_reduce = _root(
        rows,
        comm.reduce_embedding + np.where(queues, comm.replicate_embedding, 0.0),
        comm.reduce_head + np.where(queues, comm.replicate_head, 0.0),
        comm.reduce_root + np.where(queues, comm.replicate_root, 0.0),
    )
    if not parts.profile.reduce_overlap:
        # everything waits for the end of backward
        after = ~parts.modes.gathers[i]
        root_reduce = np.where(after, root_reduce + rows.layers * reduce, root_reduce)
        reduce = np.where(after, 0.0, reduce)
    beside = sends & replicates & ~queues[i]
    root_replicate = _root(rows, comm.replicate_embedding, comm.replicate_head, comm.replicate_root)
    # FSDP2 lets a bounded number of reduce-scatters stand before the next one is issued
    limit = zero + np.inf
    if parts.profile.reduces_in_flight:
        limit = np.where(parts.modes.gathers[i], (parts.profile.reduces_in_flight - 1) * reduce, np.inf)
    return Pass(
        layers=rows.layers,
        lead=_end_segment(parts, c.head_backward, local.head_backward, rows, rows.head & whole),
        layer=_backward_layer(parts, rows, reduces, what),
        tail=_end_segment(parts, c.embedding_backward, local.embedding_backward, rows, rows.embedding & whole),
        root_gather_s=zero,
        gather_s=np.where(parts.modes.reshards[i] & layers & whole, comm.gather_layer[i], 0.0),
        # layers are alike, so gathering more than one ahead changes memory, not time
        ahead=np.minimum(parts.table.prefetch[i], 1),
        reduce_s=reduce,
        reduce_limit_s=limit,
        root_reduce_s=np.where(sends, root_reduce, 0.0),
        replicate_s=np.where(beside & layers, comm.replicate_layer[i], 0.0),
        root_replicate_s=np.where(beside, root_replicate, 0.0),
        carried_reduce_s=zero,
        carried_replicate_s=zero,
        kappa=parts.kappa[i],
        shares_wire=parts.shares_wire[i],
        # plans that reduce in every microbatch hand nothing on
        waits_at_end=~rows.early | parts.modes.reduces_often[i],
    )


def is_zero_bubble(table: PlanTable) -> Bools:
    """Plans whose backward is split in two."""
    return np.asarray((table.schedule == SCHEDULES.index("zero_bubble")) & (table.pp > 1), dtype=np.bool_)
