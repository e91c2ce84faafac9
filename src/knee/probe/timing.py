"""How a kernel is timed: device events, warm-up, rotating data, the median of repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WARMUP_S = 0.02
MEASURE_S = 0.06
MIN_REPEATS = 7
BATCH_S = 200e-6
"""Kernels shorter than this are timed several at a time: an event itself costs a few microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one execution."""

    median_s: float
    spread_frac: float
    """Half of the middle half of the repeats, over the median."""
    repeats: int


def time_device(run: Callable[[int], Any], device: str, *, measure_s: float = MEASURE_S) -> Timing:
    """Time ``run(i)``, called with a growing index so that it can rotate its data."""
    clock = _cuda_clock if device == "cuda" else _cpu_clock
    first = clock(run, 0, 1)  # also compiles, allocates and picks algorithms
    first = min(first, clock(run, 1, 1))
    batch = max(1, int(BATCH_S / max(first, 1e-7)))
    index, spent, warmup = 2, 0.0, WARMUP_S if device == "cuda" else 0.0
    while spent < warmup:
        spent += clock(run, index, batch) * batch
        index += batch
    samples: list[float] = []
    spent = 0.0
    while len(samples) < MIN_REPEATS or spent < measure_s:
        samples.append(clock(run, index, batch))
        spent += samples[-1] * batch
        index += batch
        if len(samples) >= MIN_REPEATS and len(samples) >= 200:
            break
    return timing_of(samples)


def timing_of(samples: Sequence[float]) -> Timing:
    """Median and spread of repeats."""
    middle = statistics.median(samples)
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle] * 3
    return Timing(median_s=middle, spread_frac=(quartiles[2] - quartiles[0]) / 2 / middle, repeats=len(samples))


def _cuda_clock(run: Callable[[int], Any], index: int, batch: int) -> float:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for i in range(index, index + batch):
        run(i)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / batch


def _cpu_clock(run: Callable[[int], Any], index: int, batch: int) -> float:
    start = time.perf_counter()
    for i in range(index, index + batch):
        run(i)
    return (time.perf_counter() - start) / batch
