"""Passes that need no walk, or one layer of it: those without a queue, and those that queue reductions alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from knee.base.arrays import Bools, Floats, Ints
from knee.engine.timeline.passes import Pass, Sums, joined
from knee.engine.timeline.walk import LOADS, Walk, drain, is_late, run_layer, run_passes, sums_of


def run(p: Pass, gamma: float) -> Sums:
    """All passes, each in the quickest way that is exact: only those that gather, or have replicas or a late host, need
    a walk."""
    queued = _queued(p)
    few = queued & (p.layers > 0) & ~(p.gather_s + p.root_gather_s + p.layer.hidden_s > 0)
    few &= ~(p.replicate_s + p.root_replicate_s + p.carried_replicate_s > 0)
    few &= ~is_late(p.layer)
    groups = (
        (run_repeated, np.flatnonzero(~queued)),
        (run_reductions, np.flatnonzero(few)),
        (run_passes, np.flatnonzero(queued & ~few)),
    )
    sums = Sums.zeros(len(p.layers))
    for walk, rows in groups:
        if len(rows) == len(p.layers):
            return walk(p, gamma)
        if len(rows):
            sums.put(rows, walk(p.rows(rows), gamma))
    return sums


TOGETHER = 4096
"""Passes that are worth putting side by side: a walk costs hundreds of NumPy calls, whatever their number."""


def run_together(passes: Sequence[Pass], gamma: float) -> list[Sums]:
    """Passes of several actions, each list in its own sums; few of them are walked at once."""
    ends = list(accumulate(len(p.layers) for p in passes))
    if ends[-1] > TOGETHER:
        return [run(p, gamma) for p in passes]
    sums = run(joined(*passes), gamma)
    return [sums.rows(slice(start, end)) for start, end in pairwise((0, *ends))]


def _queued(p: Pass) -> Bools:
    """Passes that gather or reduce anything."""
    gathers = p.root_gather_s + p.gather_s
    reduces = p.reduce_s + p.root_reduce_s + p.carried_reduce_s
    replicates = p.replicate_s + p.root_replicate_s + p.carried_replicate_s
    return np.asarray(gathers + reduces + replicates > 0, dtype=np.bool_)


def run_repeated(p: Pass, gamma: float) -> Sums:
    """Passes without a queue: every layer is like the first, so one stands for all."""
    lead = Walk.start(p, gamma, None)
    layer, tail = lead.again(), lead.again()
    for walk, name in ((lead, "lead"), (layer, "layer"), (tail, "tail")):
        walk.place = (name, 0)
        walk.run(getattr(p, name), 0.0)
    for name in LOADS:
        setattr(lead, name, getattr(lead, name) + p.layers * getattr(layer, name) + getattr(tail, name))
    return sums_of(lead)


def run_reductions(p: Pass, gamma: float) -> Sums:
    """Passes whose queue has reductions alone: all layers but the first in closed form."""
    walk = Walk.start(p, gamma, None)
    walk.run(p.lead, 0.0)
    run_layer(walk, p.layers, 0)
    _reduce_beside(walk, p.layers - 1)
    walk.place = ("tail", 0)
    walk.reduces_s += p.reduce_s
    walk.run(p.tail, 0.0)
    sums = sums_of(walk)
    drain(walk, sums)
    return sums


def _reduce_beside(walk: Walk, layers: Ints) -> None:
    """Layers that each find a reduction more in the queue, x before the first of them.

    Formula: x_n = min(max(x + n (r - d), 0), limit), reduced beside compute: sum of min(a, x_j + r), j = 0 .. n - 1
    Where:   r a layer's reduction, a what its compute covers, d = a + what its blocking communication leaves the wire
             to. A queue that grows covers all compute (a), and compute waits for what exceeds the limit. One that falls
             does so by d - r a layer until it is empty, so that the sum has full terms (a), then terms of an
             arithmetic series, then equal ones (r)
    """
    q, x, r = walk.q, walk.reduces_s, walk.q.reduce_s
    a = q.layer.compute_s * walk.slowed / walk.gamma
    d = a + np.where(q.shares_wire, 0.0, q.layer.blocking_s)
    unlimited = np.maximum(x + layers * (r - d), 0.0)
    left = np.minimum(unlimited, q.reduce_limit_s)
    covered = layers * np.minimum(a, r)
    falls = np.flatnonzero((x > 0) & (r < a))
    if len(falls):
        covered[falls] = _falling_sum(x[falls], r[falls], a[falls], d[falls], layers[falls])
    walk.overlapped_s += covered * walk.gamma
    # beside compute a reduction takes gamma times as long
    walk.reduce_load_s += x + layers * r - left + (walk.gamma - 1.0) * covered
    walk.exposed_s += unlimited - left
    walk.reduces_s = left


def _falling_sum(x: Floats, r: Floats, a: Floats, d: Floats, layers: Ints) -> Floats:
    """The sum of ``_reduce_beside`` where the queue falls and compute could cover more than one reduction."""
    fall = d - r
    full = np.clip(np.floor((x + r - a) / fall) + 1.0, 0.0, layers)
    until_empty = np.clip(np.ceil(x / fall), full, layers)
    series = (until_empty - full) * (x + r) - fall * (until_empty * (until_empty - 1.0) - full * (full - 1.0)) / 2.0
    return np.asarray(full * a + series + (layers - until_empty) * r, dtype=np.float64)
