"""What a pass is made of: segments, queues, what it adds up to, and what a recorder hears of it.

A pass is one microbatch through one chunk: a lead segment (embedding or loss), identical layers, and a tail segment
(loss or embedding). ``timeline.walk`` walks it. Everything is a column over passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Columns):
    """One stretch of compute with its own communication."""

    compute_s: Floats
    hidden_s: Floats
    """Local communication that may run beside the compute."""
    blocking_s: Floats
    """Local communication that the compute waits for."""
    host_s: Floats
    """Host time to launch it; the segment lasts no less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Columns):
    """One microbatch through one chunk, forward or backward."""

    layers: Ints
    lead: Segment
    layer: Segment
    tail: Segment
    root_gather_s: Floats
    """Gather of the root group before anything can start (FSDP's embedding, norm and head)."""
    gather_s: Floats
    """Gather that each layer needs before it starts; 0 where nothing is gathered."""
    ahead: Ints
    """Gathers that may be done or under way beyond the layer that computes."""
    reduce_s: Floats
    """Reduction queued after each layer."""
    reduce_limit_s: Floats
    """Reductions that may be outstanding before the next is issued, in seconds of them (inf: no limit)."""
    root_reduce_s: Floats
    """Reduction of the root group, after the tail."""
    replicate_s: Floats
    """All-reduce between replicas after each layer's reduction."""
    root_replicate_s: Floats
    carried_reduce_s: Floats
    """Reductions left over from the chunk before, already queued when this pass starts."""
    carried_replicate_s: Floats
    kappa: Floats
    """How much slower compute runs beside communication."""
    shares_wire: Bools
    """Local communication and the queue cross the same network, so one waits for the other."""
    waits_at_end: Bools
    """Whether the pass ends only when its reductions have ended (the last of the step)."""


@dataclass(slots=True, kw_only=True)
class Sums(Columns):
    """What a pass adds up to. ``duration = compute + exposed + idle``, column by column."""

    duration_s: Floats
    compute_s: Floats
    exposed_s: Floats
    overlapped_s: Floats
    """Time with both compute and communication (of the unions)."""
    idle_s: Floats
    gather_load_s: Floats
    reduce_load_s: Floats
    replicate_load_s: Floats
    local_load_s: Floats
    drain_s: Floats
    """The end of it: compute is done and its output gone, only reductions are waited for."""
    left_reduce_s: Floats
    """Reductions still queued when the pass ends, for the next chunk to carry."""
    left_replicate_s: Floats

    @classmethod
    def zeros(cls, n: int) -> Sums:
        """Sums of passes that have not been walked."""
        return cls(**{name: np.zeros(n) for name in SUM_NAMES})

    def put(self, rows: Ints, some: Sums) -> None:
        """Take over the sums of some of the passes."""
        for name in SUM_NAMES:
            getattr(self, name)[rows] = getattr(some, name)


SUM_NAMES = tuple(f.name for f in fields(Sums))


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedPass:
    """The same pass of many rows, walked once for each kind of them."""

    kind: Ints
    """Of each row: its column in ``passes`` and ``sums``."""
    passes: Pass
    sums: Sums

    def column(self, name: str) -> Floats:
        """One of the sums, a value for each row."""
        found: Floats = getattr(self.sums, name)[self.kind]
        return found

    def one(self, row: int) -> Pass:
        """The pass of one row."""
        return self.passes.rows(self.kind[row : row + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a recorded pass: what ran, from its start, on each channel. Times in seconds of column 0."""

    segment: str
    """"lead", "layer", "tail" or "drain"."""
    layer: int = 0
    duration_s: float
    compute_s: float = 0.0
    """0 where nothing computes; else the compute work, whose slowed part lasts ``overlap_s``."""
    overlap_s: float = 0.0
    local_s: float = 0.0
    reduce_s: float
    gather_s: float = 0.0
    """Starts when the phase's ``reduce_s`` ends."""
    queue_after_s: float = 0.0
    """The queue's share of the phase starts this late: local communication has the wire."""
    replicate_s: float
    speed: float = 1.0
    """Communication done per second: 1 alone, 1/gamma beside compute."""


Recorder = Callable[[Phase], None]
