"""What a pass is made of: segments, queues, what it adds up to, and what a recorder hears of it.

A pass is one microbatch through one chunk: a lead segment (embedding or loss), identical layers, and a tail segment
(loss or embedding). ``timeline.walk`` walks it. Everything is a column over passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from knee.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One stretch of compute with its own communication."""

    compute_s: Floats
    hidden_s: Floats
    """Local communication that may run beside the compute."""
    blocking_s: Floats
    """Local communication that the compute waits for."""
    host_s: Floats
    """Host time to launch it; the segment lasts no less."""

    def rows(self, index: Ints | slice) -> Segment:
        """Some of the columns."""
        return Segment(
            compute_s=self.compute_s[index],
            hidden_s=self.hidden_s[index],
            blocking_s=self.blocking_s[index],
            host_s=self.host_s[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
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

    def rows(self, index: Ints | slice) -> Pass:
        """Some of the columns."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in PASS_NAMES}
        cut: dict[str, Any] = {n: x.rows(index) if isinstance(x, Segment) else x[index] for n, x in parts.items()}
        return Pass(**cut)


def joined(*passes: Pass) -> Pass:
    """The columns of all, side by side."""
    columns: dict[str, Any] = {}
    for name in PASS_NAMES:
        own = [getattr(p, name) for p in passes]
        if isinstance(own[0], Segment):
            parts = {n: [getattr(segment, n) for segment in own] for n in SEGMENT_NAMES}
            columns[name] = Segment(**{n: np.concatenate(part) for n, part in parts.items()})
        else:
            columns[name] = np.concatenate(own)
    return Pass(**columns)


# looked up once: dataclasses.fields is slow enough to show in a single simulation
PASS_NAMES = tuple(f.name for f in fields(Pass))
SEGMENT_NAMES = tuple(f.name for f in fields(Segment))


@dataclass(slots=True, kw_only=True)
class Sums:
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

    def rows(self, index: slice) -> Sums:
        """The sums of some of the passes."""
        return Sums(**{name: getattr(self, name)[index] for name in SUM_NAMES})

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
    layer: int
    duration_s: float
    compute_s: float
    """0 where nothing computes; else the compute work, whose slowed part lasts ``overlap_s``."""
    overlap_s: float
    local_s: float
    reduce_s: float
    gather_s: float
    """Starts when the phase's ``reduce_s`` ends."""
    queue_after_s: float
    """The queue's share of the phase starts this late: local communication has the wire."""
    replicate_s: float
    speed: float
    """Communication done per second: 1 alone, 1/gamma beside compute."""


Recorder = Callable[[Phase], None]
