"""Which run comes next: cheap ones first, and none with more GPUs once more GPUs have been measured not to pay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from knee.launch.folder import Entry, Sweep, read_record
from knee.launch.status import Status
from knee.search.knee import THRESHOLD

SIGMAS = 1.645
"""One-sided 95% of a normal distribution."""
LEAST_STEPS = 3
"""Of a run's window, for its spread to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What a run measured."""

    gpus: int
    tokens_per_s: float
    error_frac: float
    """Standard error of the mean step time, over the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """What a doubling of GPUs gave between two runs of a series."""

    series: str
    from_gpus: int
    to_gpus: int
    per_doubling: float
    most: float
    """As good as it may be, at 95%."""

    @property
    def pays(self) -> bool:
        """Whether it may still reach the threshold."""
        return self.most >= THRESHOLD

    @property
    def words(self) -> str:
        """For people."""
        return (f"from {self.from_gpus:,} to {self.to_gpus:,} GPUs a doubling gave {self.per_doubling:.2f}x "
                f"(at most {self.most:.2f}x at 95%), less than {THRESHOLD:g}x")  # fmt: skip


def in_order(entries: Iterable[Entry], *, until_knee: bool = False) -> list[Entry]:
    """Cheap runs first, by GPU-hours; until the knee, few GPUs first, because they say whether more are worth it."""
    def key(entry: Entry) -> tuple[float, ...]:
        cost = math.inf if entry.gpu_h is None else entry.gpu_h
        return (entry.gpus, cost) if until_knee else (cost, entry.gpus)

    return sorted(entries, key=lambda entry: (*key(entry), entry.id))


def rate_of(record: Mapping[str, Any]) -> Rate | None:
    """Of a finished run whose spread is known."""
    times = [t for t in record.get("step_times_s") or () if isinstance(t, (int, float))]
    window = times[-int(record.get("window_steps") or 0) :] if record.get("window_steps") else []
    rate = record.get("tokens_per_s")
    if record.get("status") != "done" or not isinstance(rate, (int, float)) or len(window) < LEAST_STEPS:
        return None
    return Rate(gpus=int(record["gpus"]), tokens_per_s=float(rate),
                error_frac=stdev(window) / fmean(window) / math.sqrt(len(window)))


def returns_of(series: str, rates: Sequence[Rate]) -> list[Return]:
    """Between neighbouring counts.

    Formula: r = (T2 / T1)^(1 / log2(N2 / N1)); most = r exp(1.645 sqrt(e1^2 + e2^2) / log2(N2 / N1))
    Where:   T tokens/s, N GPUs, e the standard error of a run's mean step time over that mean
    Valid:   steps of a run are taken to be independent; what differs between repeats of a run is not in it
    """
    ordered = sorted(rates, key=lambda rate: rate.gpus)
    found = []
    for one, two in pairwise(ordered):
        if two.gpus == one.gpus:
            continue
        doublings = math.log2(two.gpus / one.gpus)
        gain = (two.tokens_per_s / one.tokens_per_s) ** (1 / doublings)
        spread = SIGMAS * math.hypot(one.error_frac, two.error_frac) / doublings
        found.append(Return(series=series, from_gpus=one.gpus, to_gpus=two.gpus, per_doubling=gain,
                            most=gain * math.exp(spread)))
    return found


class Knees:
    """What the runs of a sweep have shown so far; a record is read once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.rates: dict[str, Rate | None] = {}

    def beyond(self, entry: Entry, statuses: Mapping[str, Status]) -> str | None:
        """Why a run is not worth starting: a count of GPUs below its own is known not to pay.

        Of several runs of a series on one count (plans, repeats) the fastest counts.
        """
        best: dict[int, Rate] = {}
        for other in self.sweep.entries:
            if other.series != entry.series or other.gpus >= entry.gpus or statuses[other.id].state != "done":
                continue
            if other.id not in self.rates:
                self.rates[other.id] = rate_of(read_record(self.sweep.run(other)))
            rate = self.rates[other.id]
            if rate is not None and (other.gpus not in best or rate.tokens_per_s > best[other.gpus].tokens_per_s):
                best[other.gpus] = rate
        poor = next((step for step in returns_of(entry.series, list(best.values())) if not step.pays), None)
        return None if poor is None else poor.words
