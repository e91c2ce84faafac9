"""One month of one run, drawn at random: when it trains, saves, fails and restarts. For pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from knee.errors import SpecError
from knee.reliability.drawn_runs import SEED
from knee.reliability.goodput import Goodput, goodput_of
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.units import DAY_S
from knee.workload.parameters import parameter_count

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
