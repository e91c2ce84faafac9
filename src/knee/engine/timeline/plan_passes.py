"""What a forward or backward of each plan is made of, and the passes of its chunks: columns over plans, then over rows.

Three steps lead from plans to what ``walk`` runs:

1. ``forward_pass`` and ``backward_pass`` make a ``PlanPass`` of one microbatch: a row per plan, whatever the chunk.
2. ``chunks.chunk_rows`` has a row for each kind of chunk that a plan's pipeline has; ``kinds_of_rows`` finds rows whose
   passes are equal. Plans that differ in their schedule alone, or in how replicas are cut, have passes in common.
3. ``passes_of`` makes a ``Pass`` of each different row: how many layers, which ends, which messages beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, Ints, blended, equal_rows, names_of
from knee.engine.cost.kernel_cost import Cost, attention_launches
from knee.engine.timeline.passes import Pass, Segment
from knee.engine.timeline.pipelines.chunks import ChunkRows
from knee.engine.timeline.step_parts import LayerParts, LocalComm, StepParts
from knee.engine.workload.traffic import ParameterTraffic

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages(Columns):
    """Seconds of one kind of collective of each plan."""

    layer: Floats
    embedding: Floats
    head: Floats
    root: Floats
    """Embedding and head in one, where one chunk holds both."""

    @classmethod
    def of(cls, parts: StepParts, name: str, where: Bools) -> Messages:
        """Those of ``CommCosts`` with that name; nothing elsewhere."""
        return cls(**{of: np.where(where, getattr(parts.comm, f"{name}_{of}"), 0.0) for of in names_of(cls)})

    def of_root(self, rows: ChunkRows) -> Floats:
        """The root group's of a chunk: embedding, head, both in one, or none."""
        i = rows.plan
        single = np.where(rows.embedding, self.embedding[i], 0.0) + np.where(rows.head, self.head[i], 0.0)
        return np.where(rows.embedding & rows.head, self.root[i], single)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPass:
    """A forward or backward of one microbatch, whatever the chunk."""

    forward: bool
    embedding: Segment
    layer: Segment
    head: Segment
    hidden_send_s: Floats
    """The share of a transfer that hides: beside the chunk's layers, evenly."""
    gather: Messages | None
    reduce: Messages | None
    replicate: Messages | None
    ahead: Ints
    """Gathers that may be done or under way beyond the layer that computes."""
    limited: Bools
    """FSDP2 lets a bounded number of reduce-scatters stand before the next one is issued."""
    kappa: Floats
    shares_wire: Bools
    fills: Bools
    """The chunk's gathers come before its pass, while the pipeline fills."""
    hands_on: Bools
    """Early chunks leave their reductions to the rank's last one."""
    kinds: LayerPasses | None = None
    """The same pass of layers without experts and of layers with them; None where layers are alike."""

    def columns(self) -> list[Floats | Ints | Bools]:
        """Every column, those of segments and messages included: passes with equal columns are equal."""
        groups = [self.embedding, self.layer, self.head, self.gather, self.reduce, self.replicate]
        nested = [getattr(group, name) for group in groups if group is not None for name in names_of(type(group))]
        own = [*nested, *(x for name in names_of(PlanPass) if isinstance(x := getattr(self, name), np.ndarray))]
        return own if self.kinds is None else [*own, *self.kinds.dense.columns(), *self.kinds.sparse.columns()]

    def layer_of(self, rows: ChunkRows) -> Segment:
        """A layer of the rows' chunks, mean over the layers of each."""
        return self._mean(rows, lambda one: one.layer.rows(rows.plan))

    def layer_messages(self, rows: ChunkRows, name: str) -> Floats:
        """Seconds of a layer's gather, reduction or replication, of chunks that have layers; mean over theirs."""

        def of(one: PlanPass) -> Floats:
            messages: Messages | None = getattr(one, name)
            return np.zeros(len(rows)) if messages is None else messages.layer[rows.plan]

        return np.where(rows.layers > 0, self._mean(rows, of), 0.0)

    def _mean(self, rows: ChunkRows, of: Callable[[PlanPass], T]) -> T:
        return (
            of(self) if self.kinds is None else blended(of(self.kinds.dense), of(self.kinds.sparse), rows.expert_share)
        )

    def where(self, there: Bools, other: PlanPass) -> PlanPass:
        """This pass for plans that are ``there``, the other pass for the rest."""
        return cast(PlanPass, _where(there, self, other))


def _where(there: Bools, a: Any, b: Any) -> Any:
    """Columns of one or the other, at any depth; a group that one lacks is zero there."""
    if isinstance(a, bool):
        return a
    if a is None and b is None:
        return None
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.where(there, 0.0 if a is None else a, 0.0 if b is None else b)
    kind = type(b if a is None else a)
    return kind(**{name: _where(there, getattr(a, name, None), getattr(b, name, None)) for name in names_of(kind)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPasses:
    """A pass if no layer had experts, and if all had."""

    dense: PlanPass
    sparse: PlanPass

    @classmethod
    def of(cls, kinds: LayerParts | None, make: Callable[[StepParts], PlanPass]) -> LayerPasses | None:
        """A pass of each kind; None where layers are alike."""
        return None if kinds is None else cls(dense=make(kinds.dense), sparse=make(kinds.sparse))


FEW_PLANS = 64
"""Plans whose passes are quicker walked than compared."""
MOST_LAYERS = 2**20
"""Above the layers of any model."""


def kinds_of_rows(p: PlanPass, rows: ChunkRows, only: Bools | None = None) -> tuple[Ints, Ints]:
    """Rows whose passes differ, and the kind of each row: its place among them. Plans outside of ``only`` have one."""
    _, plan = equal_rows(*p.columns(), few=FEW_PLANS)
    if only is not None:
        plan = np.where(only, plan, -1)
    # one number for all that tells the chunks of a plan apart, so that two columns are compared instead of six
    chunk = ((rows.layers * MOST_LAYERS + rows.expert_layers) * 2 + rows.embedding) * 2 + rows.head
    if not p.forward:
        chunk = chunk * 2 + rows.early
    return equal_rows(plan[rows.plan], chunk)


def passes_of(parts: StepParts, p: PlanPass, rows: ChunkRows) -> Pass:
    """The pass of each row of chunks, ready to be walked."""
    i, zero = rows.plan, np.zeros(len(rows))
    # columns of ``p`` are per plan; [i] repeats them for each row of a plan
    embedding, head = _end(p.embedding, i, rows.embedding), _end(p.head, i, rows.head)
    # while a pipeline fills, only the first chunk gathers inside its pass; the others have gathered before it
    here = ~p.fills[i] | rows.embedding
    reduce, root_reduce = zero, zero
    if p.reduce is not None:
        reduce, root_reduce = p.layer_messages(rows, "reduce"), p.reduce.of_root(rows)
    if not parts.profile.reduce_overlap:
        # everything waits for the end of backward
        after = ~parts.modes.gathers[i]
        root_reduce = np.where(after, root_reduce + rows.layers * reduce, root_reduce)
        reduce = np.where(after, 0.0, reduce)
    # seconds of reductions that may stand in the queue before the next one waits to be issued
    limit = zero + np.inf
    if parts.profile.reduces_in_flight:
        limit = np.where(p.limited[i], (parts.profile.reduces_in_flight - 1) * reduce, np.inf)
    return Pass(
        layers=rows.layers,
        # backward runs through the model from its head to its embedding
        lead=embedding if p.forward else head,
        layer=_layer(p, rows),
        tail=head if p.forward else embedding,
        root_gather_s=zero if p.gather is None else np.where(here, p.gather.of_root(rows), 0.0),
        gather_s=zero if p.gather is None else np.where(here, p.layer_messages(rows, "gather"), 0.0),
        ahead=p.ahead[i],
        reduce_s=reduce,
        reduce_limit_s=limit,
        root_reduce_s=root_reduce,
        replicate_s=zero if p.replicate is None else p.layer_messages(rows, "replicate"),
        root_replicate_s=zero if p.replicate is None else p.replicate.of_root(rows),
        carried_reduce_s=zero,
        carried_replicate_s=zero,
        kappa=p.kappa[i],
        shares_wire=p.shares_wire[i],
        waits_at_end=~(rows.early & p.hands_on[i]),
    )


def _end(segment: Segment, plan: Ints, there: Bools) -> Segment:
    """Embedding or head of the rows' plans; nothing where the chunk lacks it."""
    return Segment(**{name: getattr(segment, name)[plan] * there for name in names_of(Segment)})


def _layer(p: PlanPass, rows: ChunkRows) -> Segment:
    """A layer of the rows' plans; all chunks but the first, or in backward the last, receive something."""
    receives = ~(rows.embedding if p.forward else rows.head)
    layer = p.layer_of(rows)
    hidden = layer.hidden_s + p.hidden_send_s[rows.plan] * receives / np.maximum(rows.layers, 1)
    return Segment(compute_s=layer.compute_s, hidden_s=hidden, blocking_s=layer.blocking_s, host_s=layer.host_s)


def segment_of(parts: StepParts, compute_s: Floats, kernels: Floats, local: LocalComm) -> Segment:
    """Compute of so many kernels, with its local communication."""
    host_s = parts.launch_s * kernels + local.host_s
    return Segment(compute_s=compute_s, hidden_s=local.hidden_s, blocking_s=local.blocking_s, host_s=host_s)


def _with_copies(parts: StepParts, cost: Cost, local: LocalComm, weights: ParameterTraffic, which: int) -> Segment:
    """Embedding or head, with what FSDP2 copies of them on one GPU: out in forward (0), back in backward (1)."""
    segment = segment_of(parts, cost.time_s, cost.kernels, local)
    if not parts.one_gpu.any():
        return segment
    return replace(segment, compute_s=segment.compute_s + parts.root_copies(weights)[which])


def forward_pass(parts: StepParts, *, gathers: Bools) -> PlanPass:
    """Forward of one microbatch; ``gathers`` says, per plan, whether this one brings the parameters."""
    c, local, table = parts.compute, parts.local, parts.table
    layer = segment_of(parts, c.layer_forward.time_s, c.layer_forward.kernels, local.layer_forward)
    out, _ = parts.copies()
    # ZeRO-1's gather beside forward writes in place: nothing is copied out
    out = np.where(gathers & ~parts.modes.zero1, out, 0.0)
    never = np.zeros(len(table), dtype=np.bool_)
    return PlanPass(
        kinds=LayerPasses.of(parts.kinds, lambda kind: forward_pass(kind, gathers=gathers)),
        forward=True,
        embedding=_with_copies(parts, c.embedding_forward, local.embedding_forward, parts.traffic.embedding, 0),
        layer=replace(layer, compute_s=layer.compute_s + out),
        head=_with_copies(parts, c.head_forward, local.head_forward, parts.traffic.head, 0),
        hidden_send_s=parts.profile.p2p_overlap_frac * parts.comm.pp_send,
        gather=Messages.of(parts, "gather", gathers),
        reduce=None,
        replicate=None,
        # FSDP2: a gather may start once the one before has ended and the copy-out two layers back is done
        ahead=np.where(gathers & (table.prefetch > 0), table.prefetch + 1, 0),
        limited=never,
        kappa=parts.kappa,
        shares_wire=parts.shares_wire,
        fills=gathers & gathers_while_filling(parts),
        hands_on=never,
    )


def gathers_while_filling(parts: StepParts) -> Bools:
    """Plans that gather the parameters of all chunks but the first while the pipeline fills, before they are needed.

    ZeRO-1 does so where the stack overlaps its gathers, FSDP where parameters stay gathered for the step (torch's
    pipeline runtime unshards stages ahead of their first microbatch).
    """
    modes = parts.modes
    once = modes.gathers & ~modes.reshards & (parts.table.pp > 1)
    return np.asarray(once | (modes.zero1 & parts.profile.gather_overlap), dtype=np.bool_)


def filling_gather_s(parts: StepParts, rows: ChunkRows) -> Floats:
    """Seconds of the gathers of ``gathers_while_filling``, per row."""
    fills = gathers_while_filling(parts)
    gather = Messages.of(parts, "gather", fills)
    layer = gather.layer[rows.plan]
    if parts.kinds is not None:
        dense, sparse = parts.kinds.dense.comm.gather_layer, parts.kinds.sparse.comm.gather_layer
        layer = fills[rows.plan] * blended(dense[rows.plan], sparse[rows.plan], rows.expert_share)
    return np.where(rows.embedding, 0.0, rows.layers * layer + gather.of_root(rows))


def recomputed(parts: StepParts) -> tuple[Floats, Floats]:
    """Forward work that backward does again: seconds and kernels per layer."""
    c, full = parts.compute, parts.table.repeats_frac
    attention = parts.table.recomputes("attention")
    seconds = full * c.layer_forward.time_s + c.ops_again.time_s + attention * c.attention_forward_s
    kernels = full * c.layer_forward.kernels + c.ops_again.kernels
    return seconds, kernels + attention * attention_launches(parts.profile, forward=True)


def _backward_layer(parts: StepParts, reduces: Bools, what: str) -> Segment:
    """A layer's backward: what it computes, launches and exchanges."""
    c = parts.compute
    out, back = parts.copies()
    none = np.zeros(len(parts.table))
    cost_s, kernels = np.where(reduces, back, 0.0), none
    local = LocalComm(hidden_s=none, blocking_s=none, host_s=none)
    if what != "weight":
        again_s, again_kernels = recomputed(parts)
        cost_s = cost_s + c.layer_backward_input.time_s + again_s + np.where(parts.modes.reshards, out, 0.0)
        kernels = kernels + c.layer_backward_input.kernels + again_kernels
        local = parts.local.layer_backward
    if what != "input":
        cost_s, kernels = cost_s + c.layer_backward_weight.time_s, kernels + c.layer_backward_weight.kernels
    return segment_of(parts, cost_s, kernels, local)


def backward_pass(parts: StepParts, *, reduces: Bools, replicates: bool = True, what: str = "both") -> PlanPass:
    """Backward of one microbatch: ``both`` gradients, or the ``input``'s or the ``weight``'s alone (zero bubble).

    ``reduces`` says, per plan, whether this one sends its gradients off, ``replicates`` whether replicas then add
    theirs, which can wait for the last microbatch.
    """
    c, local, table, modes = parts.compute, parts.local, parts.table, parts.modes
    none = np.zeros(len(table))
    nothing = Segment(compute_s=none, hidden_s=none, blocking_s=none, host_s=none)
    whole = what != "weight"  # ends and transfers belong to the half that hands the gradient on
    # DDP's all-reduce needs no scatter before it, and one that shares the wire waits its turn: both are queued
    queued = (modes.ddp | parts.serial_replicas) & reduces
    reduce = Messages.of(parts, "reduce", reduces)
    if replicates:
        reduce = reduce.plus(Messages.of(parts, "replicate", queued))
    gathers = modes.reshards & whole
    gather = Messages(layer=np.where(gathers, parts.comm.gather_layer, 0.0), embedding=none, head=none, root=none)

    def of_kind(kind: StepParts) -> PlanPass:
        return backward_pass(kind, reduces=reduces, replicates=replicates, what=what)

    return PlanPass(
        kinds=LayerPasses.of(parts.kinds, of_kind),
        forward=False,
        embedding=_with_copies(parts, c.embedding_backward, local.embedding_backward, parts.traffic.embedding, 1)
        if whole
        else nothing,
        layer=_backward_layer(parts, reduces, what),
        head=_with_copies(parts, c.head_backward, local.head_backward, parts.traffic.head, 1) if whole else nothing,
        hidden_send_s=parts.profile.p2p_overlap_frac * parts.comm.pp_send if whole else none,
        gather=gather,
        reduce=reduce,
        replicate=Messages.of(parts, "replicate", reduces & ~queued) if replicates else None,
        # layers are alike, so gathering more than one ahead changes memory, not time
        ahead=np.where(gathers, np.minimum(table.prefetch, 1), 0),
        limited=modes.gathers,
        kappa=parts.kappa,
        shares_wire=parts.shares_wire,
        fills=np.zeros(len(table), dtype=np.bool_),
        # plans that reduce in every microbatch hand nothing on
        hands_on=~modes.reduces_often,
    )
