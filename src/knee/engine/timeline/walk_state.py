"""The state of passes under way, and what a segment does to it: compute beside communication, waits, a late host."""

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
        """Look at every column once."""
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
        """Before the first segment."""
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
        """The same passes from their start."""
        zeros: dict[str, Any] = {name: np.zeros(len(self.lead_s)) for name in (*STATE, *LOADS)}
        return replace(self, **zeros)

    def head(self, n: int) -> Walk:
        """The first n columns, as views: what is added there is added here."""
        return self if n == len(self.lead_s) else self.some(slice(0, n))

    def some(self, rows: Ints | slice) -> Walk:
        """Some of the passes."""
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
