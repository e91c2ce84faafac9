"""Collectives' readings -> latency per hop and bandwidth, what they predict of sizes held back, and contention.

The time of a collective is a line in its size, as in ``cost.collective_cost``: latency of the hops, and bytes over the
slowest link. NCCL and gloo are fitted alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Floats
from knee.measure.hardware_fit.residuals import Residuals
from knee.measure.machine.readings import CollectivePoint, Readings
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.write import Value, four_digits

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
                **{name: getattr(first, name) for name in ("axis", "group", "stride", "groups", "nodes")},
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


# Collectives' readings -> the fields of a cluster file that describe its links.

RING = "all_gather"
"""What a cluster's latency and bandwidth are fitted on: a ring that nothing is added in. gloo's reduce-scatter is an
all-reduce, and a line through both would fit neither."""


def link_values(readings: Readings, cluster: Cluster) -> dict[str, Value]:
    """Dotted cluster fields that were measured; those of links that no group crossed are left to the base."""
    per_node, fits = readings.machine.devices, fit_links(readings)
    # how many GPUs a node has is the base's to say: a job may use fewer
    values: dict[str, Value] = {}
    if readings.machine.kind == "cpu":
        values["node.gpus"] = _value(per_node, readings, "processes on a node")
    inside = _widest(fits, RING, lambda fit: fit.nodes == 1)
    if inside is not None:
        values |= _node(readings, inside, cluster)
    # the ring that tells most of the network: all ranks where that is slower than a node, else one of each node
    world = _widest(fits, RING, lambda fit: fit.nodes > 1 and fit.stride == 1)
    rails = _widest(fits, RING, lambda fit: fit.nodes > 1 and fit.stride == per_node)
    bound = world is not None and (inside is None or world.bus_bytes_per_s < 0.95 * inside.bus_bytes_per_s)
    across = world if bound or rails is None else rails
    if across is not None:
        # in it every rank sends over the network
        pair = _widest(fits, "send_receive", lambda fit: fit.nodes == fit.group)
        values |= _fabric(readings, across, pair, inside_hop_s(inside) if inside is not None else 0.0, cluster)
    return values


def inside_hop_s(ring: LinkFit) -> float:
    """Latency of one step inside a node.

    Formula: (latency - base) / (N - 1), base being what the cost model adds to every ring
    """
    return max(ring.latency_s - constant("collectives", "base_s"), 0.0) / (ring.group - 1)


def _node(readings: Readings, ring: LinkFit, cluster: Cluster) -> dict[str, Value]:
    node = cluster.node
    wire = min(node.link_bytes_per_s, node.pair_bytes_per_s * (ring.group - 1))
    values = {"node.hop_s": _value(f"{inside_hop_s(ring) * 1e6:.4g} us", readings, ring)}
    if _stated(readings) and ring.bus_bytes_per_s <= wire:
        return values | {"node.link_frac": _value(four_digits(ring.bus_bytes_per_s / wire), readings, ring)}
    rate = _value(_rate(ring.bus_bytes_per_s), readings, ring)
    whole = _value(1.0, readings, "the measured rate is the rate that a collective reaches")
    return values | {"node.link_bytes_per_s": rate, "node.pair_bytes_per_s": rate, "node.link_frac": whole}


def _fabric(
    readings: Readings, ring: LinkFit, pair: LinkFit | None, node_hop_s: float, cluster: Cluster
) -> dict[str, Value]:
    """Formula: latency = base + (N - n) node hops + (n - 1) network hops; bandwidth = ranks of a node x NIC."""
    nic = cluster.fabric.nic_bytes_per_s
    left_s = ring.latency_s - constant("collectives", "base_s") - (ring.group - ring.nodes) * node_hop_s
    values = {"fabric.hop_s": _value(f"{max(left_s, 0.0) / (ring.nodes - 1) * 1e6:.4g} us", readings, ring)}
    rate = ring.bus_bytes_per_s / (ring.group / ring.nodes)
    if _stated(readings) and rate <= nic:
        values["fabric.nic_frac"] = _value(four_digits(rate / nic), readings, ring)
    else:
        nic = rate
        values["fabric.nic_bytes_per_s"] = _value(_rate(rate), readings, ring)
        values["fabric.nic_frac"] = _value(1.0, readings, "the measured rate is the rate that a collective reaches")
    if pair is not None:
        values["fabric.p2p_frac"] = _value(four_digits(min(pair.bus_bytes_per_s / nic, 1.0)), readings, pair)
        values["fabric.p2p_bytes_per_s"] = _value(_rate(pair.bus_bytes_per_s), readings, pair)
    return values


def _widest(fits: Sequence[LinkFit], collective: str, wanted: Callable[[LinkFit], bool]) -> LinkFit | None:
    """The fit of a collective over the widest axis that is ``wanted``."""
    found = (fit for fit in fits if fit.collective == collective and wanted(fit))
    return max(found, key=lambda fit: (fit.group, fit.stride), default=None)


def _stated(readings: Readings) -> bool:
    """Whether a vendor states the rates of such links; a share of an assumed one would say nothing."""
    return readings.machine.kind == "cuda"


def _value(value: str | float, readings: Readings, by: LinkFit | str) -> Value:
    machine = readings.machine
    is_fitted = isinstance(by, LinkFit)
    if isinstance(by, LinkFit):
        by = f"{by.sizes} sizes, spread {by.spread_frac:.0%}, residual median {by.residuals.median_frac:.1%}"
    source = f"knee probe collectives, {machine.date}, {machine.device}, {machine.software}, {by}"
    return Value(value=value, kind="fitted" if is_fitted else "measured", source=source)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"
