"""A whole run with failures: days, GPU-hours and dollars, as a mean and as a distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import SpecError
from knee.base.units import DAY_S, HOUR_S
from knee.engine.reliability.goodput import (
    MOST_SLOWDOWN,
    NO_PROGRESS,
    RATE_ENDS,
    Goodput,
    conditions_of,
    default_of,
    goodput_of,
    time_per_work,
)
from knee.engine.workload.parameters import parameter_count
from knee.specs.catalog import catalog_file
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster
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


DRAWS = 1_000_000
"""Failures that are drawn for one answer."""
FEWEST_RUNS, MOST_RUNS = 100, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A run of so many seconds of steps, with failures."""

    goodput: Goodput
    mean_s: float
    """By the closed form."""
    p10_s: float
    p50_s: float
    p90_s: float
    interruptions: float
    runs: int
    """Runs that were drawn."""

    def as_json(self, *, cost_usd: float | None) -> dict[str, Any]:
        """Plain data; GPU-hours and dollars include the spare nodes."""
        return {
            "days": self.mean_s / DAY_S,
            "p10_days": self.p10_s / DAY_S,
            "p50_days": self.p50_s / DAY_S,
            "p90_days": self.p90_s / DAY_S,
            "gpu_hours": self.mean_s / HOUR_S * self.goodput.paid_gpus,
            "cost_usd": None if cost_usd is None else cost_usd * self.goodput.cost_factor,
            "interruptions": self.interruptions,
            "runs_drawn": self.runs,
            "reason": None,
            **self.goodput.as_json(),
        }


def whole_run(goodput: Goodput, steps_s: float) -> WholeRun:
    """What ``steps_s`` of steps take with failures: the mean by the closed form, percentiles by drawing.

    The drawn runs differ in their failures, and in their failure rate if it is the default: clusters differ in it.
    """
    mean = steps_s * goodput.slowdown
    failures = mean / goodput.mean_s if goodput.mean_s else 0.0
    runs = int(np.clip(DRAWS / (failures + 1.0), FEWEST_RUNS, MOST_RUNS))
    times = drawn_times(goodput, steps_s, runs=runs, spread=goodput.conditions.rate_spread)
    p10, p50, p90 = (float(end) for end in np.percentile(times, (10, 50, 90)))
    interruptions = sum(goodput.interruptions_per_day.values()) * mean / DAY_S
    return WholeRun(
        goodput=goodput, mean_s=mean, p10_s=p10, p50_s=p50, p90_s=p90, interruptions=interruptions, runs=runs
    )


def run_with_failures(
    model: Model,
    cluster: Cluster,
    gpus: int,
    steps_s: float,
    *,
    step_s: float,
    cost_usd: float | None,
    power_w: float | None = None,
    energy: Mapping[str, float | None] | None = None,
    pue: float = 1.0,
) -> dict[str, Any]:
    """A run as plain data. ``energy`` has the MWh of GPUs (``gpu_mwh``) and of what stands beside them, without
    failures."""
    try:
        run = whole_run(goodput_of(parameter_count(model), cluster, gpus, step_s=step_s), steps_s)
    except SpecError as error:
        if error.code != NO_PROGRESS or cluster.reliability is not None:
            raise
        # the defaults are nobody's mistake, and the answer without failures stands
        return {"goodput_frac": 0.0, "days": None, "reason": error.message}
    data = run.as_json(cost_usd=cost_usd)
    if energy is None or power_w is None or any(mwh is None for mwh in energy.values()):
        return data | {"energy_mwh": None}
    factor, slowdown = run.goodput.energy_factor(power_w, cluster.gpu.idle_w), run.goodput.slowdown
    drawn = sum((mwh or 0.0) * (factor if name == "gpu_mwh" else slowdown) for name, mwh in energy.items())
    return data | {"energy_mwh": drawn * pue}


def restarted_time_s(cluster: Cluster, gpus: int, run_s: float) -> float | None:
    """Expected time of a short run without checkpoints, which starts again from its beginning after a failure.

    Formula: ``time_per_work`` with the whole run as the interval; None if the run would hardly ever end
    """
    given = conditions_of(cluster)
    rate = sum(given.failures_per_gpu_h.values()) * gpus / HOUR_S
    if rate == 0:
        return run_s
    factor = time_per_work(run_s, 0.0, given.detection_s, given.scheduling_s, 1.0 / rate)
    # the first start is not a restart
    factor = factor * math.exp(-given.scheduling_s * rate)
    return None if factor > MOST_SLOWDOWN else run_s * factor


def poisson_range(mean: float, *, covered: float = 0.95) -> tuple[int, int]:
    """Counts between which a Poisson variable lies with this probability."""
    tail, total, low, n = (1.0 - covered) / 2.0, 0.0, None, 0
    while True:
        total += math.exp(n * math.log(mean) - mean - math.lgamma(n + 1.0)) if mean > 0 else 1.0
        if low is None and total > tail:
            low = n
        if total >= 1.0 - tail:
            return (0 if low is None else low), n
        n += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedRun:
    """One run of ``catalog/interrupted_runs.toml``."""

    name: str
    gpus: int
    days: float
    least: int
    """Published count, or the lower end of what was published."""
    most: int
    predicted: float
    low: int
    """Of the predicted count: Poisson's 95% at the lowest published failure rate of a cluster, and at the highest; at
    the rate itself for the run that it comes from."""
    high: int
    effective_frac: float | None
    """Published: more than this share of the time was effective."""
    goodput_frac: float
    fitted: bool
    """Whether the default rates come from this run."""
    assumed: str
    source: str

    @property
    def agrees(self) -> bool:
        """Whether published and predicted counts overlap, and the effective time is as published."""
        long_enough = self.effective_frac is None or self.goodput_frac > self.effective_frac
        return self.low <= self.most and self.least <= self.high and long_enough


def interrupted_runs() -> list[InterruptedRun]:
    """All runs, with the conditions of their cluster."""
    ends = [default_of("run", name)[0] for name in RATE_ENDS]
    found = []
    for name, raw in catalog_file("interrupted_runs.toml").items():
        goodput = goodput_of(float(raw["params"]), load_cluster(raw["cluster"]).spec, int(raw["gpus"]))
        per_day = goodput.interruptions_per_day
        count = sum(per_day[cause] for cause in raw.get("causes", per_day)) * raw["days"]
        low, high = (count, count) if raw["fitted"] else (count * end for end in ends)
        found.append(
            InterruptedRun(
                name=name,
                predicted=count,
                low=poisson_range(low)[0],
                high=poisson_range(high)[1],
                effective_frac=raw.get("effective_frac"),
                goodput_frac=goodput.goodput_frac,
                **{key: raw[key] for key in ("gpus", "days", "least", "most", "fitted", "assumed", "source")},
            )
        )
    return found
