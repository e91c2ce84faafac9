"""Runs with failures drawn at random: how long a run takes, as a distribution. Many runs are columns of one array."""

from __future__ import annotations

import numpy as np

from knee.arrays import Floats
from knee.reliability.goodput import Goodput

SEED = 28
BLOCK = 2**21
"""Failures that are drawn at once."""


def drawn_times(goodput: Goodput, steps_s: float, *, runs: int, spread: float = 0.0, seed: int = SEED) -> Floats:
    """Wall clocks of runs with random failures; ``spread`` is that of the logarithm of their failure rates."""
    random = np.random.default_rng(seed)
    saved = goodput.checkpoint
    work = steps_s * (1.0 + goodput.slowdown * (goodput.parts["evaluation"] + goodput.parts["slow_nodes"]))
    if goodput.mean_s is None or goodput.interval_s is None:
        waits = 0.0 if goodput.interval_s is None else saved.wait_s / goodput.interval_s
        times = np.full(runs, work * (1.0 + waits))
    else:
        means = goodput.mean_s * np.exp(-spread * random.standard_normal(runs))
        times = _with_failures(goodput, work, means, random)
    # a planned stop saves a checkpoint first, so that it costs only its own time
    stops = random.poisson(goodput.planned_per_s * times)
    return np.asarray(times + stops * (saved.wait_s + goodput.restart.planned_s))


def _with_failures(goodput: Goodput, work_s: float, means: Floats, random: np.random.Generator) -> Floats:
    """Cycles from one failure to the next, drawn until every run is at its end.

    A cycle lasts until the next failure. It restarts, then trains and saves in turn; only whole segments whose
    checkpoint is written are kept. Without memory, cycles are independent, so that a block of them is drawn at once.
    """
    assert goodput.interval_s is not None
    saved, down = goodput.checkpoint, goodput.conditions.detection_s
    segment, again = goodput.interval_s + saved.wait_s, goodput.restart.failed_s
    segments = work_s / goodput.interval_s
    times, done = np.zeros(len(means)), np.zeros(len(means))
    left = np.arange(len(means))
    cycles = max(int(work_s / float(means.min())), 1) + 8
    while len(left):
        columns = max(min(BLOCK // len(left), cycles), 1)
        up = random.standard_exponential((len(left), columns)) * means[left, None]
        kept = np.floor((up - (again + saved.write_s)) / segment)
        np.maximum(kept, 0.0, out=kept)
        before = np.cumsum(kept, axis=1)
        before -= kept
        needed = segments - done[left, None] - before
        ends = (up - again) >= needed * segment
        last = np.argmax(ends, axis=1)
        over = ends[np.arange(len(left)), last]
        spent = np.cumsum(up + down, axis=1)
        row = np.flatnonzero(over)
        at = last[row]
        until = spent[row, at] - up[row, at] - down
        times[left[row]] += until + again + needed[row, at] * segment
        going = np.flatnonzero(~over)
        times[left[going]] += spent[going, -1]
        done[left[going]] += before[going, -1] + kept[going, -1]
        left = left[going]
    # the first start is not a restart
    return times - again
