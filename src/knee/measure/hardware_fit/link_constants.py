"""Collectives' readings -> the fields of a cluster file that describe its links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.measure.hardware_fit.links import FEWEST_SIZES, columns, fit_line, series_of
from knee.measure.hardware_fit.residuals import Residuals
from knee.measure.machine.readings import CollectivePoint, Readings
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.write import Value, four_digits

RINGS = ("all_gather",)
"""What a cluster's latency and bandwidth are fitted on: a ring that nothing is added in. gloo's reduce-scatter is an
all-reduce, and a line through both would fit neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """A line through collectives over one axis."""

    point: CollectivePoint
    latency_s: float
    bytes_per_s: float
    sizes: int
    spread_frac: float
    """Median of the readings' own."""
    residuals: Residuals


def link_values(readings: Readings, cluster: Cluster) -> dict[str, Value]:
    """Dotted cluster fields that were measured; those of links that no group crossed are left to the base."""
    per_node = readings.machine.devices
    # how many GPUs a node has is the base's to say: a job may use fewer
    values: dict[str, Value] = {}
    if readings.machine.kind == "cpu":
        values["node.gpus"] = _value(per_node, readings, "processes on a node")
    inside = _widest(readings, RINGS, lambda p: p.nodes == 1)
    if inside is not None:
        values |= _node(readings, inside, cluster)
    across = _across(readings, inside, per_node)
    if across is not None:
        hop_s = inside_hop_s(inside) if inside is not None else 0.0
        values |= _fabric(readings, across, hop_s, cluster)
    return values


def inside_hop_s(ring: _Ring) -> float:
    """Latency of one step inside a node.

    Formula: (latency - base) / (N - 1), base being what the cost model adds to every ring
    """
    return max(ring.latency_s - constant("collectives", "base_s"), 0.0) / (ring.point.group - 1)


def _node(readings: Readings, ring: _Ring, cluster: Cluster) -> dict[str, Value]:
    node = cluster.node
    wire = min(node.link_bytes_per_s, node.pair_bytes_per_s * (ring.point.group - 1))
    values = {"node.hop_s": _value(f"{inside_hop_s(ring) * 1e6:.4g} us", readings, ring)}
    if _stated(readings) and ring.bytes_per_s <= wire:
        return values | {"node.link_frac": _value(four_digits(ring.bytes_per_s / wire), readings, ring)}
    rate = _value(_rate(ring.bytes_per_s), readings, ring)
    whole = _value(1.0, readings, "the measured rate is the rate that a collective reaches")
    return values | {"node.link_bytes_per_s": rate, "node.pair_bytes_per_s": rate, "node.link_frac": whole}


def _across(readings: Readings, inside: _Ring | None, per_node: int) -> _Ring | None:
    """The ring that tells most of the network: all ranks where that is slower than a node, else one of each node."""
    world = _widest(readings, RINGS, lambda p: p.nodes > 1 and p.stride == 1)
    rails = _widest(readings, RINGS, lambda p: p.nodes > 1 and p.stride == per_node)
    bound_by_network = world is not None and (inside is None or world.bytes_per_s < 0.95 * inside.bytes_per_s)
    return world if bound_by_network or rails is None else rails


def _fabric(readings: Readings, ring: _Ring, node_hop_s: float, cluster: Cluster) -> dict[str, Value]:
    """Formula: latency = base + (N - n) node hops + (n - 1) network hops; bandwidth = ranks of a node x NIC."""
    point, nic = ring.point, cluster.fabric.nic_bytes_per_s
    left_s = ring.latency_s - constant("collectives", "base_s") - (point.group - point.nodes) * node_hop_s
    values = {"fabric.hop_s": _value(f"{max(left_s, 0.0) / (point.nodes - 1) * 1e6:.4g} us", readings, ring)}
    rate = ring.bytes_per_s / (point.group / point.nodes)
    if _stated(readings) and rate <= nic:
        values["fabric.nic_frac"] = _value(four_digits(rate / nic), readings, ring)
    else:
        nic = rate
        values["fabric.nic_bytes_per_s"] = _value(_rate(rate), readings, ring)
        values["fabric.nic_frac"] = _value(1.0, readings, "the measured rate is the rate that a collective reaches")
    pair = _widest(readings, ("send_receive",), lambda p: p.nodes == p.group)  # every rank sends over the network
    if pair is not None:
        values["fabric.p2p_frac"] = _value(four_digits(min(pair.bytes_per_s / nic, 1.0)), readings, pair)
        values["fabric.p2p_bytes_per_s"] = _value(_rate(pair.bytes_per_s), readings, pair)
    return values


def _widest(readings: Readings, collectives: Sequence[str], fits: Callable[[CollectivePoint], bool]) -> _Ring | None:
    """One line through those collectives over the widest axis that ``fits``."""
    found = {
        key: points
        for key, points in series_of(readings).items()
        if key[0] in collectives and len(points) >= FEWEST_SIZES and fits(points[0][0])
    }
    if not found:
        return None
    widest = max(key[1:] for key in found)
    points = [pair for key, series in found.items() if key[1:] == widest for pair in series]
    moved, seconds = columns(points)
    line = fit_line(moved, seconds)
    return _Ring(
        point=points[0][0],
        latency_s=line.latency_s,
        bytes_per_s=line.bytes_per_s,
        sizes=len(np.unique(moved)),
        spread_frac=float(np.median([r["spread_frac"] for _, r in points])),
        residuals=Residuals.of(line.predict(moved), seconds),
    )


def _stated(readings: Readings) -> bool:
    """Whether a vendor states the rates of such links; a share of an assumed one would say nothing."""
    return readings.machine.kind == "cuda"


def _value(value: str | float, readings: Readings, by: _Ring | str) -> Value:
    machine = readings.machine
    how = (
        by
        if isinstance(by, str)
        else (f"{by.sizes} sizes, spread {by.spread_frac:.0%}, residual median {by.residuals.median_frac:.1%}")
    )
    source = f"knee probe collectives, {machine.date}, {machine.device}, {machine.software}, {how}"
    return Value(value=value, kind="measured" if isinstance(by, str) else "fitted", source=source)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"
