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

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.engine.timeline.passes import SUM_NAMES, Pass, Phase, Recorder, Sums
from knee.engine.timeline.walk_state import Some, Walk, sums_of

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
    back = np.argsort(order, kind="stable")
    return Sums(**{name: getattr(sums, name)[back] for name in SUM_NAMES})


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
    """How many leading entries exceed a bound."""
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
