"""The layer recurrence: passes walked segment by segment, with overlap and contention.

Each segment computes, may block on communication of its own (TP, CP), and runs beside a queue of gathers and reduces
(FSDP, DDP, ZeRO). Everything is a column over passes; the loop is over layers, so a batch of plans costs one walk.

Three channels carry communication, each in order, beside each other unless they cross the same network:
    local     communication that belongs to a segment (TP, CP): a hidden part and a blocking part
    queue     gathers and reduces of the sharded group, and DDP's all-reduces; one communicator, reduces first
    replicas  HSDP's all-reduces between replicas, each after its reduce-scatter

Contention: compute beside communication takes 1 + kappa times as long, communication beside compute gamma times.
For compute c beside a backlog q the overlap lasts o = min(c (1 + kappa), q gamma), the segment o + c - o / (1 + kappa).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knee.arrays import Bools, Floats, Ints
from knee.timeline.passes import SUM_NAMES, Pass, Phase, Recorder, Segment, Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Sums and queues at one moment, or the difference of two."""

    sums: dict[str, Floats]
    lead_s: Floats
    reduces_s: Floats
    replicas_s: Floats

    def _columns(self) -> list[Floats]:
        return [*self.sums.values(), self.lead_s, self.reduces_s, self.replicas_s]

    def minus(self, other: Snapshot) -> Snapshot:
        """What was added since."""
        return Snapshot(
            sums={k: v - other.sums[k] for k, v in self.sums.items()},
            lead_s=self.lead_s - other.lead_s,
            reduces_s=self.reduces_s - other.reduces_s,
            replicas_s=self.replicas_s - other.replicas_s,
        )

    def equals(self, other: Snapshot, scale: Floats) -> NDArray[np.bool_]:
        """Passes whose every column agrees, up to rounding."""
        worst = np.max([np.abs(a - b) for a, b in zip(self._columns(), other._columns(), strict=True)], axis=0)
        return np.asarray(worst <= 1e-12 * scale, dtype=np.bool_)


@dataclass(slots=True)
class _Walk:
    """The state of all passes between two segments."""

    sums: Sums
    kappa: Floats
    gamma: float
    lead_s: Floats
    """Gather work done beyond what the next layer needs."""
    reduces_s: Floats
    """Reduce work outstanding."""
    replicas_s: Floats
    """Replica all-reduce work outstanding."""
    record: Recorder | None = None
    place: tuple[str, int] = ("lead", 0)

    def head(self, n: int) -> _Walk:
        """The first n columns, as views: what is added there is added here."""
        sums = Sums(**{name: getattr(self.sums, name)[:n] for name in SUM_NAMES})
        return _Walk(
            sums=sums,
            kappa=self.kappa[:n],
            gamma=self.gamma,
            lead_s=self.lead_s[:n],
            reduces_s=self.reduces_s[:n],
            replicas_s=self.replicas_s[:n],
            record=self.record,
        )

    def snapshot(self) -> Snapshot:
        """The state and the sums, copied."""
        return Snapshot(
            sums={name: getattr(self.sums, name).copy() for name in SUM_NAMES},
            lead_s=self.lead_s.copy(),
            reduces_s=self.reduces_s.copy(),
            replicas_s=self.replicas_s.copy(),
        )

    def reorder(self, order: Ints) -> None:
        """Permute the passes."""
        self.sums = Sums(**{name: getattr(self.sums, name)[order] for name in SUM_NAMES})
        self.kappa, self.lead_s, self.reduces_s, self.replicas_s = (
            x[order] for x in (self.kappa, self.lead_s, self.reduces_s, self.replicas_s)
        )

    def progress(self, span_s: Floats, window_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Let the queue and the replicas run for a span without compute; returns how long each part was busy."""
        reduce = np.minimum(span_s, self.reduces_s)
        gather = np.minimum(span_s - reduce, np.maximum(window_s - self.lead_s, 0.0))
        replicas = np.minimum(span_s, self.replicas_s)
        self.reduces_s -= reduce
        self.lead_s += gather
        self.replicas_s -= replicas
        self.sums.reduce_load_s += reduce
        self.sums.gather_load_s += gather
        self.sums.replicate_load_s += replicas
        return reduce, gather, replicas

    def wait(self, span_s: Floats, window_s: Floats) -> None:
        """Compute waits while communication runs: exposed."""
        parts = self.progress(span_s, window_s)
        self.sums.exposed_s += span_s
        self.sums.duration_s += span_s
        self._note(span_s, parts)

    def run(self, seg: Segment, window_s: Floats, shares: Bools) -> None:
        """One segment: compute beside the queue, then its blocking communication, then a late host."""
        s, k, g = self.sums, 1.0 + self.kappa, self.gamma
        queue = self.reduces_s + np.maximum(window_s - self.lead_s, 0.0)
        wire = np.where(shares, seg.hidden_s, 0.0)
        backlog = np.maximum(np.maximum(seg.hidden_s, wire + queue), self.replicas_s)
        overlap = np.minimum(seg.compute_s * k, backlog * g)
        elapsed = overlap + seg.compute_s - overlap / k
        local_time = np.minimum(overlap, seg.hidden_s * g)
        queue_time = np.minimum(overlap - np.where(shares, local_time, 0.0), queue * g)
        reduce_time = np.minimum(queue_time, self.reduces_s * g)
        gather_time = queue_time - reduce_time
        replica_time = np.minimum(overlap, self.replicas_s * g)
        self.reduces_s -= reduce_time / g
        self.lead_s += gather_time / g
        self.replicas_s -= replica_time / g
        s.compute_s += elapsed
        s.overlapped_s += overlap
        s.reduce_load_s += reduce_time
        s.gather_load_s += gather_time
        s.replicate_load_s += replica_time
        s.local_load_s += local_time
        s.duration_s += elapsed
        after = np.where(shares, local_time, 0.0)
        self._note(elapsed, (reduce_time, gather_time, replica_time), seg.compute_s, overlap, local_time, after)
        blocked = seg.blocking_s + seg.hidden_s - local_time / g
        self._block(blocked, window_s, shares)
        self._late_host(seg.host_s - elapsed - blocked, window_s)

    def _block(self, span_s: Floats, window_s: Floats, shares: Bools) -> None:
        parts = self.progress(np.where(shares, 0.0, span_s), window_s)
        self.sums.local_load_s += span_s
        self.sums.exposed_s += span_s
        self.sums.duration_s += span_s
        self._note(span_s, parts, local=span_s)

    def _late_host(self, missing_s: Floats, window_s: Floats) -> None:
        gap = np.maximum(missing_s, 0.0)
        reduce, gather, replicas = self.progress(gap, window_s)
        busy = np.maximum(reduce + gather, replicas)
        self.sums.exposed_s += busy
        self.sums.idle_s += gap - busy
        self.sums.duration_s += gap
        self._note(gap, (reduce, gather, replicas))

    def _note(
        self,
        duration: Floats,
        parts: tuple[Floats, Floats, Floats],
        compute: Floats | None = None,
        overlap: Floats | None = None,
        local: Floats | None = None,
        after: Floats | None = None,
    ) -> None:
        """Hand column 0 of a phase to the recorder."""
        if self.record is None or not duration[0] > 0:
            return
        reduce, gather, replicas = parts
        self.record(
            Phase(
                segment=self.place[0],
                layer=self.place[1],
                duration_s=float(duration[0]),
                compute_s=0.0 if compute is None else float(compute[0]),
                overlap_s=0.0 if overlap is None else float(overlap[0]),
                local_s=0.0 if local is None else float(local[0]),
                reduce_s=float(reduce[0]),
                gather_s=float(gather[0]),
                replicate_s=float(replicas[0]),
                queue_after_s=0.0 if after is None else float(after[0]),
                speed=1.0 if compute is None else 1.0 / self.gamma,
            )
        )


def run(p: Pass, gamma: float) -> Sums:
    """All passes, each in the quickest way that is exact: those without a queue need no walk."""
    queued = np.flatnonzero(
        p.root_gather_s
        + p.gather_s
        + p.reduce_s
        + p.root_reduce_s
        + p.replicate_s
        + p.root_replicate_s
        + p.carried_reduce_s
        + p.carried_replicate_s
    )
    if len(queued) == len(p.layers):
        return run_passes(p, gamma)
    sums = run_repeated(p, gamma)
    walked = run_passes(p.rows(queued), gamma)
    for name in SUM_NAMES:
        getattr(sums, name)[queued] = getattr(walked, name)
    return sums


EXPLICIT_LAYERS = 3
"""Layers walked before asking whether the rest repeats: the third must equal the second."""


def run_passes(p: Pass, gamma: float, record: Recorder | None = None, *, fold: bool = True) -> Sums:
    """Walk all passes, layer by layer.

    Layers are alike, so a pass soon repeats itself; those that do are folded: the layers between the first few and the
    last few (whose gathers run out) are counted, not walked. Passes are kept deepest first, so that the ones still
    under way are a prefix and nothing is masked.
    """
    size = len(p.layers)
    order = np.argsort(-p.layers, kind="stable")
    q = p.rows(order)
    walk = _Walk(
        sums=Sums.zeros(size),
        kappa=q.kappa,
        gamma=gamma,
        lead_s=-q.root_gather_s,
        reduces_s=q.carried_reduce_s.copy(),
        replicas_s=q.carried_replicate_s.copy(),
        record=record,
    )
    # nothing can start before the root group is gathered, and it is gathered alone
    walk.wait(q.root_gather_s, np.zeros(size))
    walk.run(q.lead, np.minimum(q.ahead, q.layers) * q.gather_s, q.shares_wire)
    deepest = int(q.layers[0]) if size else 0
    history = []
    for i in range(min(deepest, EXPLICIT_LAYERS)):
        history.append(walk.snapshot())
        n = _prefix_length(q.layers, i)
        _layer(walk.head(n), q, q.layers[:n] - 1 - i, i)
    history.append(walk.snapshot())
    if deepest > EXPLICIT_LAYERS:
        left = q.layers - EXPLICIT_LAYERS
        if fold:
            left = _fold(walk, q, history)
        again = np.argsort(-left, kind="stable")
        order, left, q = order[again], left[again], q.rows(again)
        walk.reorder(again)
        for remaining in range(int(left[0]) - 1, -1, -1):
            n = _prefix_length(left, remaining)
            _layer(walk.head(n), q, np.full(n, remaining), deepest - 1 - remaining)
    walk.place = ("tail", 0)
    walk.reduces_s += q.reduce_s
    walk.run(q.tail, np.zeros(size), q.shares_wire)
    _finish(walk, q)
    walk.reorder(np.argsort(order, kind="stable"))
    return walk.sums


def _prefix_length(descending: Ints, above: int) -> int:
    """How many leading entries exceed a bound."""
    return int(np.searchsorted(-descending, -above, side="left"))


def _fold(walk: _Walk, q: Pass, history: list[Snapshot]) -> Ints:
    """Count the layers that repeat; returns how many are left to walk for each pass.

    A pass repeats when its last two layers added the same to every sum and to its queues, and will go on to: either
    the queues stand still, or they only grow while compute is already overlapped from end to end.
    """
    before, middle, now = history[-3:]
    last, previous = now.minus(middle), middle.minus(before)
    same = last.equals(previous, scale=np.maximum(last.sums["duration_s"], 1e-12))
    tiny = 1e-12 * np.maximum(last.sums["duration_s"], 1e-12)
    still = (np.abs(last.reduces_s) <= tiny) & (np.abs(last.replicas_s) <= tiny)
    covered = last.sums["overlapped_s"] >= last.sums["compute_s"] - tiny
    growing = covered & (last.reduces_s >= -tiny) & (last.replicas_s >= -tiny)
    repeats = same & (np.abs(last.lead_s) <= tiny) & (still | growing)
    left = q.layers - EXPLICIT_LAYERS
    skip = np.where(repeats, np.maximum(left - q.ahead - 1, 0), 0)
    for name, added in last.sums.items():
        getattr(walk.sums, name)[:] += skip * added
    walk.reduces_s += skip * last.reduces_s
    walk.replicas_s += skip * last.replicas_s
    return left - skip


def run_repeated(p: Pass, gamma: float) -> Sums:
    """Passes without a queue: every layer is like the first, so one stands for all."""
    walks = [
        _Walk(
            sums=Sums.zeros(len(p.layers)),
            kappa=p.kappa,
            gamma=gamma,
            lead_s=np.zeros(len(p.layers)),
            reduces_s=np.zeros(len(p.layers)),
            replicas_s=np.zeros(len(p.layers)),
        )
        for _ in range(3)
    ]
    for walk, segment in zip(walks, (p.lead, p.layer, p.tail), strict=True):
        walk.run(segment, np.zeros(len(p.layers)), p.shares_wire)
    lead, layer, tail = (walk.sums for walk in walks)
    return Sums(
        **{name: getattr(lead, name) + p.layers * getattr(layer, name) + getattr(tail, name) for name in SUM_NAMES}
    )


def _layer(walk: _Walk, q: Pass, remaining: Ints, i: int) -> None:
    """One layer of the leading passes: wait for its gather, compute, wait for reductions beyond the limit."""
    n = len(remaining)
    gather = q.gather_s[:n]
    walk.place = ("layer", i)
    missing = gather - walk.lead_s
    # the gather stands in the queue behind the reductions issued before it
    walk.wait(np.where(missing > 0, walk.reduces_s + missing, 0.0), gather)
    walk.lead_s -= gather
    if i > 0:
        # issued after this layer's gather, so it stands behind it
        walk.reduces_s += q.reduce_s[:n]
    window = np.minimum(q.ahead[:n], remaining) * gather
    walk.run(_prefix(q.layer, n), window, q.shares_wire[:n])
    walk.wait(np.maximum(walk.reduces_s - q.reduce_limit_s[:n], 0.0), np.zeros(n))
    if i > 0:
        # the layer before has been reduced by now: its shard goes on to the replicas
        walk.replicas_s += q.replicate_s[:n]


def _prefix(seg: Segment, n: int) -> Segment:
    return Segment(
        compute_s=seg.compute_s[:n], hidden_s=seg.hidden_s[:n], blocking_s=seg.blocking_s[:n], host_s=seg.host_s[:n]
    )


def _finish(walk: _Walk, q: Pass) -> None:
    """Drain what is queued: the last reduce-scatter, the root's, and the replicas' all-reduces behind them."""
    s = walk.sums
    last = walk.reduces_s
    queue_end = last + q.root_reduce_s
    # the last layer's all-reduce follows its reduce-scatter, the root's follows the root's
    replicas_end = np.maximum(np.maximum(walk.replicas_s, last) + q.replicate_s, queue_end) + q.root_replicate_s
    replicas_work = walk.replicas_s + q.replicate_s + q.root_replicate_s
    drain = np.where(replicas_work > 0, replicas_end, queue_end) * q.waits_at_end
    s.left_reduce_s += np.where(q.waits_at_end, 0.0, queue_end)
    s.left_replicate_s += np.where(q.waits_at_end, 0.0, replicas_work)
    s.exposed_s += drain
    s.duration_s += drain
    s.drain_s += drain
    s.reduce_load_s += queue_end * q.waits_at_end
    s.replicate_load_s += replicas_work * q.waits_at_end
    if walk.record is not None and drain[0] > 0:
        _record_drain(walk.record, q, float(walk.replicas_s[0]), float(last[0]), float(queue_end[0]))


def _record_drain(record: Recorder, q: Pass, replicas_s: float, last_s: float, queue_s: float) -> None:
    """The drain of pass 0 in stretches at whose start the replicas' channel has work, if it has any."""
    layer, root = float(q.replicate_s[0]), float(q.root_replicate_s[0])
    if replicas_s + layer + root <= 0:
        stretches = [(queue_s, 0.0)]
    else:
        layer_starts = max(replicas_s, last_s)
        root_starts = max(layer_starts + layer, queue_s)
        stretches = [(layer_starts, replicas_s), (root_starts - layer_starts, layer), (root, root)]
    for duration, busy in stretches:
        reduce = min(duration, queue_s)
        queue_s -= reduce
        record(
            Phase(
                segment="drain",
                layer=0,
                duration_s=duration,
                compute_s=0.0,
                overlap_s=0.0,
                local_s=0.0,
                reduce_s=reduce,
                gather_s=0.0,
                replicate_s=busy,
                queue_after_s=0.0,
                speed=1.0,
            )
        )
