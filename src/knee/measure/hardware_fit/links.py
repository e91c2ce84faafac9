"""Collectives' readings -> latency per hop and bandwidth, what they predict of sizes held back, and contention.

The time of a collective is a line in its size, as in ``cost.collective_cost``: latency of the hops, and bytes over the
slowest link. NCCL and gloo are fitted alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Floats
from knee.measure.hardware_fit.residuals import Residuals
from knee.measure.machine.readings import CollectivePoint, Readings

FEWEST_SIZES = 4
"""Sizes that a line is fitted to: two more than it has parameters."""
_LEAST_HALF, _MOST_HALF, _HALVES = 1e-2, 1e2, 400


def bus_factor(collective: str, ranks: int) -> float:
    """Bytes over the slowest link for each byte of the message.

    Formula: all-reduce 2 (N-1)/N; all-gather, reduce-scatter, all-to-all (N-1)/N; broadcast, send/receive 1
    Where:   a message is the whole buffer, all ranks' parts together; busbw = algbw x this
    Source:  NVIDIA/nccl-tests, doc/PERFORMANCE.md; for send/receive src/sendrecv.cu
    """
    part = (ranks - 1) / ranks
    return {"all_reduce": 2 * part, "broadcast": 1.0, "send_receive": 1.0}.get(collective, part)


def hops(collective: str, ranks: int) -> int:
    """Steps that follow each other on a ring: all-reduce goes around twice, send/receive is one."""
    return {"all_reduce": 2 * (ranks - 1), "send_receive": 1}.get(collective, ranks - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds as a line in bytes over the slowest link."""

    latency_s: float
    bytes_per_s: float

    def predict(self, moved_bytes: Floats) -> Floats:
        """Seconds for so many bytes."""
        return self.latency_s + moved_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """One collective over one axis."""

    collective: str
    axis: str
    group: int
    stride: int
    groups: int
    nodes: int
    sizes: int
    smallest_bytes: int
    largest_bytes: int
    latency_s: float
    """Of the whole collective; ``hop_s`` is its share per step."""
    hop_s: float
    bus_bytes_per_s: float
    spread_frac: float
    """Median of the readings' own spreads."""
    residuals: Residuals
    held_out: Residuals
    """Every size but the smallest and the largest predicted from a fit without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """What an all-gather and products cost each other."""

    axis: str
    group: int
    nodes: int
    size_bytes: int
    compute_slowdown_frac: float
    """kappa: a product takes (1 + kappa) times as long."""
    comm_slowdown: float
    """gamma: an all-gather takes gamma times as long."""
    spread_frac: float


def fit_line(moved_bytes: Floats, seconds: Floats) -> Line:
    """The line with the least absolute logarithmic error: relative, because sizes span six decades, and robust.

    Formula: t = (h + x) / B, so that log t = log(h + x) - log B: for a given h the best log B is a median
    Where:   x bytes over the slowest link, h those that take as long as the latency (B times latency)
    Valid:   0 <= h; between a hundredth of the smallest x, where latency is not seen, and a hundred times the largest
    """
    grid = np.geomspace(_LEAST_HALF * moved_bytes.min(), _MOST_HALF * moved_bytes.max(), _HALVES)
    for _ in range(2):  # the second time between the neighbours of the best
        halves = np.concatenate(([0.0], grid))
        logs = np.log(halves[:, None] + moved_bytes) - np.log(seconds)
        rates = np.median(logs, axis=1)
        best = int(np.argmin(np.abs(logs - rates[:, None]).sum(axis=1)))
        low, high = halves[max(best - 1, 1)], halves[min(best + 1, len(halves) - 1)]
        grid = np.geomspace(low, high, _HALVES) if high > low else grid
    rate = float(np.exp(rates[best]))
    return Line(latency_s=float(halves[best]) / rate, bytes_per_s=rate)


def predict_held_out(moved_bytes: Floats, seconds: Floats) -> Floats:
    """Seconds at each size but the first and last, from lines that did not see it."""
    predicted = []
    for i in range(1, len(seconds) - 1):
        others = np.arange(len(seconds)) != i
        predicted.append(fit_line(moved_bytes[others], seconds[others]).predict(moved_bytes[i]))
    return np.array(predicted)


def columns(points: Sequence[tuple[CollectivePoint, dict[str, float]]]) -> tuple[Floats, Floats]:
    """Bytes over the slowest link and seconds."""
    moved = np.array([p.size_bytes * bus_factor(p.collective, p.group) for p, _ in points])
    return moved, np.array([r["time_s"] for _, r in points])


def series_of(readings: Readings) -> dict[tuple[str, int, int], list[tuple[CollectivePoint, dict[str, float]]]]:
    """Readings of collectives alone, by collective, group and stride, each from small to large."""
    series: dict[tuple[str, int, int], list[tuple[CollectivePoint, dict[str, float]]]] = {}
    for point, record in readings.good("collective"):
        if point.beside == "nothing":
            series.setdefault((point.collective, point.group, point.stride), []).append((point, record))
    return {key: sorted(points, key=lambda p: p[0].size_bytes) for key, points in series.items()}


def fit_links(readings: Readings) -> list[LinkFit]:
    """A line for every collective and axis with enough sizes."""
    fits = []
    for points in series_of(readings).values():
        if len(points) < FEWEST_SIZES:
            continue
        moved, seconds = columns(points)
        line = fit_line(moved, seconds)
        first, last = points[0][0], points[-1][0]
        fits.append(
            LinkFit(
                collective=first.collective,
                axis=first.axis,
                group=first.group,
                stride=first.stride,
                groups=first.groups,
                nodes=first.nodes,
                sizes=len(points),
                smallest_bytes=first.size_bytes,
                largest_bytes=last.size_bytes,
                latency_s=line.latency_s,
                hop_s=line.latency_s / hops(first.collective, first.group),
                bus_bytes_per_s=line.bytes_per_s,
                spread_frac=float(np.median([r["spread_frac"] for _, r in points])),
                residuals=Residuals.of(line.predict(moved), seconds),
                held_out=Residuals.of(predict_held_out(moved, seconds), seconds[1:-1]),
            )
        )
    return fits


def contention(readings: Readings) -> list[Contention]:
    """Slowdowns both ways, as they were measured.

    Formula: kappa = product beside all-gathers / product alone - 1; gamma = all-gather beside products / alone
    Valid:   not below no slowdown: what is faster in company is noise
    """
    return [
        Contention(
            axis=point.axis,
            group=point.group,
            nodes=point.nodes,
            size_bytes=point.size_bytes,
            compute_slowdown_frac=max(record["gemm_beside_s"] / record["gemm_s"] - 1.0, 0.0),
            comm_slowdown=max(record["gather_beside_s"] / record["gather_s"], 1.0),
            spread_frac=record["spread_frac"],
        )
        for point, record in readings.good("collective")
        if point.beside == "gemm"
    ]
