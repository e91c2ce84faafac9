"""Which run comes next: cheap ones first, and none with more GPUs once more GPUs have been measured not to pay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from knee.engine.doublings import per_doubling
from knee.specs.defaults import THRESHOLD
from knee.training.launch.run_status import Cause, Status, is_number
from knee.training.launch.sweep_folder import Sweep, SweepRun, read_record

SIGMAS = 1.645
"""One-sided 95% of a normal distribution."""
LEAST_STEPS = 3
"""Of a run's window, for its spread to be known."""
CANNOT: frozenset[Cause] = frozenset(("memory", "spec", "knee"))
"""Causes of runs that are no plan for that count of GPUs at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """What a run measured."""

    gpus: int
    tokens_per_s: float
    error_frac: float
    """Standard error of the mean step time, over the mean."""


def start_order(entries: Iterable[SweepRun], *, until_knee: bool = False) -> list[SweepRun]:
    """Cheap runs first, by GPU-hours; until the knee, few GPUs first, because they say whether more are worth it."""

    def key(entry: SweepRun) -> tuple[float, ...]:
        cost = math.inf if entry.gpu_h is None else entry.gpu_h
        return (entry.gpus, cost) if until_knee else (cost, entry.gpus)

    return sorted(entries, key=lambda entry: (*key(entry), entry.id))


def rate_of(record: Mapping[str, Any]) -> MeasuredRate | None:
    """Of a finished run whose spread is known; None where a number is missing or is none: that is no evidence."""
    rate, gpus, steps = (_positive(record.get(name)) for name in ("tokens_per_s", "gpus", "window_steps"))
    times = record.get("step_times_s")
    if record.get("status") != "done" or rate is None or gpus is None or steps is None or not isinstance(times, list):
        return None
    window = [_positive(time_s) for time_s in times[-int(steps) :]] if steps >= LEAST_STEPS else []
    known = [time_s for time_s in window if time_s is not None]
    if len(known) < LEAST_STEPS or len(known) < len(window):
        return None
    return MeasuredRate(
        gpus=int(gpus), tokens_per_s=rate, error_frac=stdev(known) / fmean(known) / math.sqrt(len(known))
    )


def _positive(value: Any) -> float | None:
    """Return a positive finite number; None for everything else."""
    return float(value) if is_number(value) and value > 0 else None


def poor_doublings(rates: Sequence[MeasuredRate]) -> Iterator[tuple[int, str]]:
    """Counts of GPUs up to which a doubling does not pay, between neighbouring counts, and a sentence about each.

    Formula: r as ``metrics.scaling.per_doubling`` has it; most = r exp(1.645 sqrt(e1^2 + e2^2) / log2(N2 / N1))
    Where:   T tokens/s, N GPUs, e the standard error of a run's mean step time over that mean
    Valid:   steps of a run are taken to be independent; what differs between repeats of a run is not in it
    """
    for one, two in pairwise(sorted(rates, key=lambda rate: rate.gpus)):
        if one.gpus == two.gpus:
            continue
        gain = per_doubling(two.tokens_per_s / one.tokens_per_s, one.gpus, two.gpus)
        spread = SIGMAS * math.hypot(one.error_frac, two.error_frac) / math.log2(two.gpus / one.gpus)
        most = gain * math.exp(spread)
        if most < THRESHOLD:
            yield (
                two.gpus,
                f"from {one.gpus:,} to {two.gpus:,} GPUs, a doubling gave {gain:.2f}x the tokens/s "
                f"(at most {most:.2f}x with 95% confidence), less than {THRESHOLD:g}x",
            )


class StopRule:
    """What the runs of a sweep have shown so far; a record is read once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.rates: dict[str, MeasuredRate | None] = {}
        self.series: dict[str, list[SweepRun]] = {}
        for entry in sweep.entries:
            self.series.setdefault(entry.series, []).append(entry)

    def reason_to_stop(self, entry: SweepRun, statuses: Mapping[str, Status]) -> str | None:
        """Why a run is not worth starting: a count of GPUs below its own is known not to pay.

        Of several runs of a series on one count (plans, repeats) the fastest counts. Where one of them was not
        measured, and not for want of memory, the fastest of that count is not known: it is no evidence against it.
        """
        best: dict[int, MeasuredRate] = {}
        unknown: set[int] = set()
        for other in self.series[entry.series]:
            if other.gpus >= entry.gpus:
                continue
            status = statuses[other.id]
            rate = self._rate(other) if status.state == "done" else None
            if rate is None and status.cause not in CANNOT:
                unknown.add(other.gpus)
            if rate is not None and (other.gpus not in best or rate.tokens_per_s > best[other.gpus].tokens_per_s):
                best[other.gpus] = rate
        return next((words for gpus, words in poor_doublings([*best.values()]) if gpus not in unknown), None)

    def _rate(self, entry: SweepRun) -> MeasuredRate | None:
        """What a run that is done has measured on the GPUs that it was to have."""
        if entry.id not in self.rates:
            rate = rate_of(read_record(self.sweep.run(entry)))
            self.rates[entry.id] = rate if rate is not None and rate.gpus == entry.gpus else None
        return self.rates[entry.id]
