"""How a kernel is timed: alone on a settled device, data rotated, the median of repeats.

On a GPU the calls are captured into a CUDA graph and replayed between two device events, so that what is timed is the
device's work and not the host's launches, which training hides unless it is bound by them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SETTLE_S = 0.15
"""A lone kernel runs this long first: clocks come down to what the power limit allows within two refreshes of it."""
MEASURE_S = 0.08
MIN_REPEATS = 7
MOST_REPEATS = 200
BATCH_S = 400e-6
"""Kernels shorter than this are timed several at a time: an event itself costs a few microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something to time: ``run(i)`` uses the i-th of ``copies`` sets of data."""

    run: Callable[[int], Any]
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one execution."""

    median_s: float
    spread_frac: float
    """Half of the middle half of the repeats, over the median."""
    repeats: int
    graph: bool = False
    """Replayed from a CUDA graph: launches are not in it."""


def time_device(make: Callable[[], Work], device: str) -> Timing:
    """Make one piece of work and time it."""
    return _time_cuda(make) if device == "cuda" else _time_cpu(make())


def timing_of(samples: Sequence[float], *, graph: bool = False) -> Timing:
    """Median and spread of repeats."""
    middle = statistics.median(samples)
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle] * 3
    spread = (quartiles[2] - quartiles[0]) / 2 / middle
    return Timing(median_s=middle, spread_frac=spread, repeats=len(samples), graph=graph)


def _repeated(sample: Callable[[], float], each: int, *, graph: bool) -> Timing:
    """Samples until enough time was measured; a sample covers ``each`` executions."""
    samples: list[float] = []
    spent = 0.0
    while len(samples) < MIN_REPEATS or (spent < MEASURE_S and len(samples) < MOST_REPEATS):
        samples.append(sample() / each)
        spent += samples[-1] * each
    return timing_of(samples, graph=graph)


def _time_cpu(work: Work) -> Timing:
    def sample() -> float:
        start = time.perf_counter()
        for i in range(each):
            work.run(i % work.copies)
        return time.perf_counter() - start

    each = 1
    sample()  # picks algorithms, compiles
    each = max(1, int(BATCH_S / max(sample(), 1e-7)))
    return _repeated(sample, each, graph=False)


def _time_cuda(make: Callable[[], Work]) -> Timing:
    import torch

    def clocked(call: Callable[[], Any]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    # A backward pass runs on its forward's stream, so that everything has to happen on the one that is captured.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work = make()
        work.run(0)  # picks algorithms, compiles and allocates, which a capture may not
        first = min(clocked(lambda: work.run(0)), clocked(lambda: work.run(work.copies - 1)))
        each = max(work.copies, int(BATCH_S / max(first, 1e-7)))

        def calls() -> None:
            for i in range(each):
                work.run(i % work.copies)

        replay = _captured(calls, stream)
        spent = 0.0
        while spent < SETTLE_S:
            spent += max(clocked(replay), 1e-5)
        return _repeated(lambda: clocked(replay), each, graph=True)


def _captured(calls: Callable[[], None], stream: Any) -> Callable[[], Any]:
    """A CUDA graph of the calls."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        calls()
    replay: Callable[[], Any] = graph.replay
    return replay
