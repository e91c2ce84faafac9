"""One month of one run, drawn at random: when it trains, saves, fails and restarts. For pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import SpecError
from knee.base.units import DAY_S
from knee.engine.reliability.goodput import Goodput, goodput_of
from knee.engine.workload.parameters import parameter_count
from knee.specs.hardware import Cluster
from knee.specs.model import Model

# Runs with failures drawn at random: how long a run takes, as a distribution. Many runs are columns of one array.

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


MONTH_DAYS = 30.0
MOST_EVENTS = 2_000
"""Spans of a picture; a run with more has a shorter strip."""


def month_of_job(
    model: Model, cluster: Cluster, gpus: int, *, step_s: float, days: float | None
) -> list[dict[str, Any]]:
    """The first month, or all days, of a run on so many GPUs; empty if the run makes no progress."""
    try:
        goodput = goodput_of(parameter_count(model), cluster, gpus, step_s=step_s)
    except SpecError:
        return []
    return month_of(goodput, days=min(MONTH_DAYS, days or 0.0))


def month_of(goodput: Goodput, *, days: float = MONTH_DAYS, seed: int = SEED) -> list[dict[str, Any]]:
    """Spans of the run, one after another: ``span`` is training, lost work, detection or restart.

    Checkpoints are too many to be drawn one by one; the share of the time that they take is part of ``training``.
    """
    random = np.random.default_rng(seed)
    end, now, spans = days * DAY_S, 0.0, list[dict[str, Any]]()

    def add(span: str, time_s: float, cause: str = "") -> None:
        nonlocal now
        last = min(now + time_s, end)
        if last > now:
            spans.append({"span": span, "cause": cause, "from_day": now / DAY_S, "to_day": last / DAY_S})
        now = last

    mean, interval, saved = goodput.mean_s, goodput.interval_s, goodput.checkpoint
    if mean is None or interval is None:
        add("training", end)
        return spans
    per_day = {cause: rate for cause, rate in goodput.interruptions_per_day.items() if cause != "planned"}
    names, weights = list(per_day), np.array(list(per_day.values()))
    again = 0.0
    while now < end and len(spans) < MOST_EVENTS:
        up = float(random.exponential(mean))
        add("restart", min(up, again))
        works = max(up - again, 0.0)
        kept = max(np.floor((works - saved.write_s) / (interval + saved.wait_s)), 0.0) * (interval + saved.wait_s)
        if now + works >= end:
            add("training", works)
            break
        add("training", min(kept, works))
        add("lost work", works - min(kept, works))
        add("detection", goodput.conditions.detection_s, str(random.choice(names, p=weights / weights.sum())))
        again = goodput.restart.failed_s
    return spans
