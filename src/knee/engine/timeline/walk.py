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

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Bools, Floats, Ints
from knee.engine.timeline.passes import Pass, Phase, Recorder, Segment, Sums

Some = Floats | float
"""A column, or 0.0 where the whole batch has none."""
STATE = ("lead_s", "reduces_s", "replicas_s")
LOADS = ("overlapped_s", "exposed_s", "idle_s", "hidden_load_s", "gather_load_s", "reduce_load_s", "replicate_load_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """What the passes of a batch have at all: what none has is not computed."""

    gathers: bool
    reduces: bool
    replicates: bool
    hides: bool
    """Local communication beside compute."""
    blocks: bool
    shares: bool
    limits: bool
    late: tuple[str, ...]
    """Segments whose host may take longer than they do."""

    @classmethod
    def of(cls, p: Pass) -> Channels:
        """Find out which columns have any effect, so that a walk can skip the others."""
        segments = {"lead": p.lead, "layer": p.layer, "tail": p.tail}
        return cls(
            gathers=_any(p.root_gather_s, p.gather_s),
            reduces=_any(p.reduce_s, p.root_reduce_s, p.carried_reduce_s),
            replicates=_any(p.replicate_s, p.root_replicate_s, p.carried_replicate_s),
            hides=_any(*(s.hidden_s for s in segments.values())),
            blocks=_any(*(s.blocking_s for s in segments.values())),
            shares=_any(p.shares_wire),
            limits=bool(np.isfinite(p.reduce_limit_s).any()),
            late=tuple(name for name, s in segments.items() if _any(is_late(s))),
        )

    @property
    def moving(self) -> tuple[str, ...]:
        """Names of the state and the sums that a layer can change."""
        changed = {
            "lead_s": self.gathers,
            "gather_load_s": self.gathers,
            "replicas_s": self.replicates,
            "replicate_load_s": self.replicates,
            "hidden_load_s": self.hides,
            "idle_s": "layer" in self.late,
        }
        return tuple(name for name in (*STATE, *LOADS) if changed.get(name, True))


def is_late(segment: Segment) -> Bools:
    """Whether the host may take longer to launch the segment than the segment takes."""
    return np.asarray(segment.host_s > segment.compute_s + segment.blocking_s, dtype=np.bool_)


def _any(*columns: NDArray[Any]) -> bool:
    return any(np.count_nonzero(column) for column in columns)


@dataclass(slots=True, kw_only=True)
class Walk:
    """The state of all passes between two segments, and what is added up on the way.

    Compute, blocking communication and so the duration follow from these at the end (``sums_of``).
    """

    q: Pass
    slowed: Floats
    """1 + kappa: compute beside communication takes so many times as long."""
    gamma: float
    has: Channels
    lead_s: Floats
    """Gather work done beyond what the next layer needs."""
    reduces_s: Floats
    """Reduce work outstanding."""
    replicas_s: Floats
    """Replica all-reduce work outstanding."""
    overlapped_s: Floats
    exposed_s: Floats
    """Without the local communication that blocks."""
    idle_s: Floats
    hidden_load_s: Floats
    """Local communication that ran beside compute."""
    gather_load_s: Floats
    reduce_load_s: Floats
    replicate_load_s: Floats
    record: Recorder | None = None
    place: tuple[str, int] = ("lead", 0)

    @classmethod
    def start(cls, q: Pass, gamma: float, record: Recorder | None) -> Walk:
        """The state of passes before their first segment."""
        zeros: dict[str, Any] = {name: np.zeros(len(q.layers)) for name in LOADS}
        return cls(
            q=q,
            slowed=1.0 + q.kappa,
            gamma=gamma,
            has=Channels.of(q),
            lead_s=-q.root_gather_s,
            reduces_s=q.carried_reduce_s.copy(),
            replicas_s=q.carried_replicate_s.copy(),
            record=record,
            **zeros,
        )

    def again(self) -> Walk:
        """The state of the same passes before their first segment."""
        zeros: dict[str, Any] = {name: np.zeros(len(self.lead_s)) for name in (*STATE, *LOADS)}
        return replace(self, **zeros)

    def head(self, n: int) -> Walk:
        """The first n columns, as views: what is added there is added here."""
        return self if n == len(self.lead_s) else self.some(slice(0, n))

    def some(self, rows: Ints | slice) -> Walk:
        """The state of the passes at these places."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in ("slowed", *STATE, *LOADS)}
        return Walk(q=self.q.rows(rows), gamma=self.gamma, has=self.has, record=self.record, **columns)

    def put(self, rows: Ints, some: Walk) -> None:
        """Take over what some of the passes have become."""
        for name in (*STATE, *LOADS):
            getattr(self, name)[rows] = getattr(some, name)

    def snapshot(self) -> dict[str, Floats]:
        """The state and the sums, copied."""
        return {name: getattr(self, name).copy() for name in self.has.moving}

    def window_left(self, window_s: Some) -> Some:
        """Gathers that may still be done ahead."""
        return np.maximum(window_s - self.lead_s, 0.0) if self.has.gathers else 0.0

    def progress(self, span_s: Floats, window_s: Some) -> tuple[Some, Some, Some]:
        """Let the queue and the replicas run for a span without compute; returns how long each part was busy."""
        reduce: Some = 0.0
        gather: Some = 0.0
        replicas: Some = 0.0
        if self.has.reduces:
            reduce = np.minimum(span_s, self.reduces_s)
            self.reduces_s -= reduce
            self.reduce_load_s += reduce
        if self.has.gathers:
            gather = np.minimum(span_s - reduce, self.window_left(window_s))
            self.lead_s += gather
            self.gather_load_s += gather
        if self.has.replicates:
            replicas = np.minimum(span_s, self.replicas_s)
            self.replicas_s -= replicas
            self.replicate_load_s += replicas
        return reduce, gather, replicas

    def wait(self, span_s: Floats, window_s: Some) -> None:
        """Compute waits while communication runs: exposed."""
        parts = self.progress(span_s, window_s)
        self.exposed_s += span_s
        self._note(span_s, parts)

    def run(self, seg: Segment, window_s: Some) -> None:
        """One segment: compute beside the queue, then its blocking communication, then a late host."""
        overlap, hidden = self._compute(seg, window_s)
        blocked = seg.blocking_s + (seg.hidden_s - hidden / self.gamma) if self.has.hides else seg.blocking_s
        if self.has.blocks or self.has.hides:
            beside = np.where(self.q.shares_wire, 0.0, blocked) if self.has.shares else blocked
            parts = self.progress(beside, window_s)
            self._note(blocked, parts, local=blocked)
        if self.place[0] in self.has.late:
            elapsed = overlap + seg.compute_s - overlap / self.slowed
            self._late_host(seg.host_s - elapsed - blocked, window_s)

    def _compute(self, seg: Segment, window_s: Some) -> tuple[Floats, Some]:
        """Compute beside what is queued; returns how long they overlapped, and local communication's part of it."""
        g = self.gamma
        hidden: Some = 0.0
        gather_time: Some = 0.0
        replica_time: Some = 0.0
        queue = self.reduces_s + self.window_left(window_s)
        backlog = queue
        if self.has.hides:
            wire = np.where(self.q.shares_wire, seg.hidden_s, 0.0)
            backlog = np.maximum(seg.hidden_s, wire + queue)
        if self.has.replicates:
            backlog = np.maximum(backlog, self.replicas_s)
        overlap = np.minimum(seg.compute_s * self.slowed, backlog * g)
        self.overlapped_s += overlap
        queue_time = overlap
        if self.has.hides:
            hidden = np.minimum(overlap, seg.hidden_s * g)
            self.hidden_load_s += hidden
            queue_time = overlap - np.where(self.q.shares_wire, hidden, 0.0)
        if self.has.hides or self.has.replicates:
            queue_time = np.minimum(queue_time, queue * g)
        reduce_time = queue_time
        if self.has.gathers:
            reduce_time = np.minimum(queue_time, self.reduces_s * g)
            gather_time = queue_time - reduce_time
            self.lead_s += gather_time / g
            self.gather_load_s += gather_time
        self.reduces_s -= reduce_time / g
        self.reduce_load_s += reduce_time
        if self.has.replicates:
            replica_time = np.minimum(overlap, self.replicas_s * g)
            self.replicas_s -= replica_time / g
            self.replicate_load_s += replica_time
        if self.record is not None:
            elapsed = overlap + seg.compute_s - overlap / self.slowed
            after = np.where(self.q.shares_wire, hidden, 0.0)
            self._note(elapsed, (reduce_time, gather_time, replica_time), seg.compute_s, overlap, hidden, after)
        return overlap, hidden

    def _late_host(self, missing_s: Floats, window_s: Some) -> None:
        gap = np.maximum(missing_s, 0.0)
        reduce, gather, replicas = self.progress(gap, window_s)
        busy = np.maximum(reduce + gather, replicas)
        self.exposed_s += busy
        self.idle_s += gap - busy
        self._note(gap, (reduce, gather, replicas))

    def _note(
        self,
        duration: Floats,
        parts: tuple[Some, Some, Some],
        compute: Some = 0.0,
        overlap: Some = 0.0,
        local: Some = 0.0,
        after: Some = 0.0,
    ) -> None:
        """Hand column 0 of a phase to the recorder."""
        if self.record is None or not duration[0] > 0:
            return
        reduce, gather, replicas = map(_first, parts)
        self.record(
            Phase(
                segment=self.place[0],
                layer=self.place[1],
                duration_s=_first(duration),
                compute_s=_first(compute),
                overlap_s=_first(overlap),
                local_s=_first(local),
                reduce_s=reduce,
                gather_s=gather,
                replicate_s=replicas,
                queue_after_s=_first(after),
                speed=1.0 if isinstance(compute, float) else 1.0 / self.gamma,
            )
        )


def _first(column: Some) -> float:
    return float(np.ravel(column)[0])


def sums_of(walk: Walk) -> Sums:
    """What the passes add up to before they drain."""
    q, g = walk.q, walk.gamma

    def total(name: str) -> Floats:
        lead, layer, tail = (getattr(segment, name) for segment in (q.lead, q.layer, q.tail))
        return np.asarray(lead + q.layers * layer + tail, dtype=np.float64)

    # communication beside compute takes longer, and compute beside communication too
    local = total("blocking_s") + total("hidden_s")
    compute = total("compute_s") + (1.0 - 1.0 / walk.slowed) * walk.overlapped_s
    exposed = walk.exposed_s + local - walk.hidden_load_s / g
    none = np.zeros(len(q.layers))
    return Sums(
        duration_s=compute + exposed + walk.idle_s,
        compute_s=compute,
        exposed_s=exposed,
        overlapped_s=walk.overlapped_s,
        idle_s=walk.idle_s,
        gather_load_s=walk.gather_load_s,
        reduce_load_s=walk.reduce_load_s,
        replicate_load_s=walk.replicate_load_s,
        local_load_s=local + (1.0 - 1.0 / g) * walk.hidden_load_s,
        drain_s=none,
        left_reduce_s=none,
        left_replicate_s=none,
    )


EXPLICIT_LAYERS = 3
"""Layers walked before asking whether the rest repeats: the third must equal the second."""


def run_passes(p: Pass, gamma: float, record: Recorder | None = None, *, fold: bool = True) -> Sums:
    """Walk all passes, layer by layer.

    Layers are alike, so a pass soon repeats itself; those that do are folded: the layers between the first few and the
    last few (whose gathers run out) are counted, not walked. Where some have so few layers that they end before that,
    passes are kept deepest first, so that the ones still under way are a prefix and nothing is masked.
    """
    shallow = len(p.layers) > 0 and int(p.layers.min()) <= EXPLICIT_LAYERS
    order = np.argsort(-p.layers, kind="stable") if shallow else None
    walk = Walk.start(p if order is None else p.rows(order), gamma, record)
    q, layers = walk.q, walk.q.layers
    # nothing can start before the root group is gathered, and it is gathered alone
    walk.wait(q.root_gather_s, 0.0)
    walk.run(q.lead, np.minimum(q.ahead, layers) * q.gather_s)
    deepest = int(layers.max(initial=0))
    history = []
    for i in range(min(deepest, EXPLICIT_LAYERS)):
        history.append(walk.snapshot())
        n = len(layers) if order is None else _prefix_length(layers, i)
        run_layer(walk.head(n), layers[:n] - 1 - i, i)
    if deepest > EXPLICIT_LAYERS:
        left = layers - EXPLICIT_LAYERS
        if fold:
            left = _fold_later(walk, _fold(walk, history[-2:], left))
        _rest(walk, left, deepest)
    walk.place = ("tail", 0)
    walk.reduces_s += q.reduce_s
    walk.run(q.tail, 0.0)
    sums = sums_of(walk)
    drain(walk, sums)
    if order is None:
        return sums
    return sums.rows(np.argsort(order, kind="stable"))


def _fold_later(walk: Walk, left: Ints) -> Ints:
    """Passes that have many layers left get a second chance: most repeat themselves a few layers later."""
    rows = np.flatnonzero(left > 2 * EXPLICIT_LAYERS)
    if not len(rows):
        return left
    some, history = walk.some(rows), []
    for i in range(EXPLICIT_LAYERS):
        history.append(some.snapshot())
        run_layer(some, left[rows] - 1 - i, EXPLICIT_LAYERS + i)
    left = left.copy()
    left[rows] = _fold(some, history[-2:], left[rows] - EXPLICIT_LAYERS)
    walk.put(rows, some)
    return left


def _rest(walk: Walk, left: Ints, deepest: int) -> None:
    """The last layers of each pass: first of those that have most left, until all have as many."""
    deep = walk.head(int(np.count_nonzero(left > 0)))
    left = left[: len(deep.lead_s)]
    least = int(left.min())
    long = np.flatnonzero(left > least)
    if len(long):
        long = long[np.argsort(-left[long], kind="stable")]
        some = head = deep.some(long)
        for remaining in range(int(left[long[0]]) - 1, least - 1, -1):
            n = _prefix_length(left[long], remaining)
            head = head if n == len(head.lead_s) else some.head(n)
            run_layer(head, np.full(n, remaining), deepest - 1 - remaining)
        deep.put(long, some)
    for remaining in range(least - 1, -1, -1):
        run_layer(deep, np.full(len(left), remaining), deepest - 1 - remaining)


def _prefix_length(descending: Ints, above: int) -> int:
    return int(np.searchsorted(-descending, -above, side="left"))


def _fold(walk: Walk, history: list[dict[str, Floats]], left: Ints) -> Ints:
    """Count the layers that repeat, of those that are left; returns how many are left to walk for each pass.

    A pass repeats when its last two layers added the same to every sum and to its queues, and will go on to: either
    the queues stand still, or they only grow while compute is already overlapped from end to end.
    """
    before, middle = history
    last = {name: getattr(walk, name) - column for name, column in middle.items()}
    q, slower = walk.q, 1.0 - 1.0 / walk.slowed
    compute = q.layer.compute_s + slower * last["overlapped_s"]
    tiny = 1e-12 * np.maximum(compute + last["exposed_s"] + last.get("idle_s", 0.0), 1e-12)
    change = np.zeros(len(tiny))
    for name, added in last.items():
        np.maximum(change, np.abs(added - (middle[name] - before[name])), out=change)
    moves = np.abs(last["lead_s"]) if "lead_s" in last else 0.0
    queues = [last[name] for name in ("reduces_s", "replicas_s") if name in last]
    still = np.all([np.abs(queue) <= tiny for queue in queues], axis=0)
    growing = np.all([queue >= -tiny for queue in queues], axis=0) & (last["overlapped_s"] >= compute - tiny)
    repeats = (change <= tiny) & (moves <= tiny) & (still | growing)
    skip = np.where(repeats, np.maximum(left - q.ahead - 1, 0), 0)
    for name, added in last.items():
        if name != "lead_s":
            getattr(walk, name)[:] += skip * added
    return left - skip


def run_layer(walk: Walk, remaining: Ints, i: int) -> None:
    """One layer of the leading passes: wait for its gather, compute, wait for reductions beyond the limit."""
    q = walk.q
    window: Some = 0.0
    walk.place = ("layer", i)
    if walk.has.gathers:
        missing = q.gather_s - walk.lead_s
        # the gather stands in the queue behind the reductions issued before it
        walk.wait(np.where(missing > 0, walk.reduces_s + missing, 0.0), q.gather_s)
        walk.lead_s -= q.gather_s
        window = np.minimum(q.ahead, remaining) * q.gather_s
    if i > 0 and walk.has.reduces:
        # issued after this layer's gather, so it stands behind it
        walk.reduces_s += q.reduce_s
    walk.run(q.layer, window)
    if walk.has.limits:
        walk.wait(np.maximum(walk.reduces_s - q.reduce_limit_s, 0.0), 0.0)
    if i > 0 and walk.has.replicates:
        # the layer before has been reduced by now: its shard goes on to the replicas
        walk.replicas_s += q.replicate_s


def drain(walk: Walk, s: Sums) -> None:
    """Drain what is queued: the last reduce-scatter, the root's, and the replicas' all-reduces behind them."""
    q, last = walk.q, walk.reduces_s
    queue_end = last + q.root_reduce_s
    # the last layer's all-reduce follows its reduce-scatter, the root's follows the root's
    replicas_end = np.maximum(np.maximum(walk.replicas_s, last) + q.replicate_s, queue_end) + q.root_replicate_s
    replicas_work = walk.replicas_s + q.replicate_s + q.root_replicate_s
    s.drain_s = np.where(replicas_work > 0, replicas_end, queue_end) * q.waits_at_end
    s.left_reduce_s = np.where(q.waits_at_end, 0.0, queue_end)
    s.left_replicate_s = np.where(q.waits_at_end, 0.0, replicas_work)
    s.exposed_s += s.drain_s
    s.duration_s += s.drain_s
    s.reduce_load_s += queue_end * q.waits_at_end
    s.replicate_load_s += replicas_work * q.waits_at_end
    if walk.record is not None and s.drain_s[0] > 0:
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
        record(Phase(segment="drain", duration_s=duration, reduce_s=reduce, replicate_s=busy))
