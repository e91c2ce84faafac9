"""Latency and bandwidth from collectives' readings: known ones are found again, recordings hold what is promised."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from knee.measure.hardware_fit.links import (
    bus_factor,
    columns,
    contention,
    fit_line,
    fit_links,
    hops,
    link_values,
    predict_held_out,
    series_of,
)
from knee.measure.machine.collective_grid import COLLECTIVES, axes_of, plan_series, sizes
from knee.measure.machine.readings import CollectivePoint, Machine, Readings, key_of, read_readings
from knee.specs.constants import constant
from knee.specs.load import load_cluster

DATA = Path(__file__).parents[3] / "data" / "gloo"
RECORDINGS = [read_readings(DATA / f"collectives-{processes}.jsonl") for processes in (2, 4)]
AGAIN = [read_readings(DATA / f"again-{processes}.jsonl") for processes in (2, 4)]
"""A second launch, minutes later."""
HELD_OUT_FRAC = 0.25
MACHINE = Machine(
    probe="collectives",
    date="2026-01-01",
    device="NVIDIA H100",
    kind="cuda",
    devices=8,
    sms=132,
    memory_bytes=8e10,
    power_limit_w=700.0,
    host="host",
    knee="0",
    python="3",
    torch="2.13",
    cuda="13",
    driver="580",
    nccl="2.30",
)
BASE_S = constant("collectives", "base_s")


def synthetic(points: list[tuple[CollectivePoint, float]]) -> Readings:
    """A file of such times."""
    records = [{"key": key_of(p), **asdict(p), "time_s": time_s, "spread_frac": 0.01} for p, time_s in points]
    return Readings(MACHINE, tuple(records))


def ring(
    collective: str, group: int, nodes: int, stride: int, latency_s: float, rate: float
) -> list[tuple[CollectivePoint, float]]:
    axis = {"axis": "world", "group": group, "stride": stride, "groups": 1, "nodes": nodes}
    points = [CollectivePoint(collective=collective, size_bytes=size, **axis) for size in sizes(4, 1 << 30)]
    return [(p, latency_s + p.size_bytes * bus_factor(collective, group) / rate) for p in points]


@pytest.mark.parametrize(("latency_s", "rate"), [(20e-6, 370e9), (5e-4, 1.1e9), (3e-3, 5e8)])
def test_a_line_is_found_again(latency_s: float, rate: float) -> None:
    moved = np.array([float(size) for size in sizes(4, 1 << 30)])
    line = fit_line(moved, latency_s + moved / rate)
    assert line.latency_s == pytest.approx(latency_s, rel=0.02)
    assert line.bytes_per_s == pytest.approx(rate, rel=0.02)


def test_one_disturbed_size_does_not_bend_it() -> None:
    moved = np.array([float(size) for size in sizes(4, 1 << 30)])
    seconds = 20e-6 + moved / 370e9
    seconds[3] *= 5
    line = fit_line(moved, seconds)
    assert line.latency_s == pytest.approx(20e-6, rel=0.05)
    assert line.bytes_per_s == pytest.approx(370e9, rel=0.05)


def test_without_latency_none_is_made_up() -> None:
    moved = np.array([float(size) for size in sizes(4, 1 << 30)])
    assert fit_line(moved, moved / 1e9).latency_s < 1e-7


def test_noise_does_not_hurt_held_out_sizes_more_than_itself() -> None:
    rng = np.random.default_rng(3)
    exact = ring("all_gather", 8, 1, 1, 30e-6, 370e9)
    noisy = [(point, time_s * float(rng.uniform(0.95, 1.05))) for point, time_s in exact]
    (fit,) = fit_links(synthetic(noisy))
    assert fit.held_out.worst_frac < 0.12
    assert fit.hop_s == pytest.approx(30e-6 / 7, rel=0.1)


def test_too_few_sizes_are_not_fitted() -> None:
    assert fit_links(synthetic(ring("all_gather", 8, 1, 1, 30e-6, 370e9)[:3])) == []


@pytest.mark.parametrize(
    ("collective", "factor", "steps"),
    [
        ("all_reduce", 1.75, 14),
        ("all_gather", 0.875, 7),
        ("reduce_scatter", 0.875, 7),
        ("all_to_all", 0.875, 7),
        ("broadcast", 1.0, 7),
        ("send_receive", 1.0, 1),
    ],
)
def test_bytes_and_hops_count_as_nccl_tests_do(collective: str, factor: float, steps: int) -> None:
    assert bus_factor(collective, 8) == factor
    assert hops(collective, 8) == steps


def test_a_cluster_gets_back_what_its_rings_were_made_from() -> None:
    cluster = load_cluster("dgx-h100").spec
    inside = [r for c in ("all_gather", "reduce_scatter") for r in ring(c, 8, 1, 1, BASE_S + 7 * 3e-6, 360e9)]
    latency_s = BASE_S + (16 - 2) * 3e-6 + 1 * 12e-6
    across = [r for c in ("all_gather", "reduce_scatter") for r in ring(c, 16, 2, 1, latency_s, 8 * 40e9)]
    pairs = ring("send_receive", 2, 2, 8, 20e-6, 20e9)
    values = {path: value.value for path, value in link_values(synthetic(inside + across + pairs), cluster).items()}
    assert "node.gpus" not in values  # a job may use fewer than a node has
    assert values["node.link_frac"] == pytest.approx(360 / 450, rel=0.01)
    assert float(str(values["node.hop_s"]).split()[0]) == pytest.approx(3.0, rel=0.05)
    assert float(str(values["fabric.hop_s"]).split()[0]) == pytest.approx(12.0, rel=0.15)
    assert values["fabric.nic_frac"] == pytest.approx(40 / 50, rel=0.01)
    assert values["fabric.p2p_frac"] == pytest.approx(20 / 50, rel=0.01)


def test_links_faster_than_the_vendor_says_replace_its_rate() -> None:
    cluster = load_cluster("dgx-h100").spec
    values = link_values(synthetic(ring("all_gather", 8, 1, 1, 40e-6, 600e9)), cluster)
    assert values["node.link_bytes_per_s"].value == values["node.pair_bytes_per_s"].value == "600 GB/s"
    assert values["node.link_frac"].value == 1.0
    assert not any(path.startswith("fabric") for path in values)


def test_values_say_where_they_come_from() -> None:
    values = link_values(synthetic(ring("all_gather", 8, 1, 1, 40e-6, 300e9)), load_cluster("dgx-h100").spec)
    assert {value.kind for value in values.values()} == {"fitted"}
    source = values["node.hop_s"].source
    for part in ("knee probe collectives", "2026-01-01", "NVIDIA H100", "torch 2.13", "11 sizes", "residual median"):
        assert part in source


def test_axes_of_two_nodes() -> None:
    axes = {axis.name + str(axis.stride): axis for axis in axes_of(16, 8)}
    assert (axes["world1"].group, axes["world1"].nodes) == (16, 2)
    assert axes["dp8"].ranks(3) == [3, 11]
    assert {"send_receive", "all_gather"} <= set(axes["dp8"].collectives), "PP's and CP's neighbours are the same ranks"
    for axis in axes_of(16, 8):
        members = [axis.ranks(rank) for rank in range(16)]
        assert all(rank in group and len(group) == axis.group for rank, group in enumerate(members))
        assert len({tuple(group) for group in members}) == axis.groups


@pytest.mark.parametrize(("world", "per_node"), [(2, 2), (3, 3), (6, 6), (4, 1), (24, 6), (64, 8)])
def test_every_message_divides_among_its_ranks(world: int, per_node: int) -> None:
    for series in plan_series(world, per_node, "cuda", quick=False):
        for point in series.points:
            assert point.size_bytes % (4 * point.group) == 0
            assert point.group * point.groups == world


def test_sizes_end_where_they_are_told_to() -> None:
    assert sizes(4, 8 << 30)[0] == 1024
    assert sizes(4, 8 << 30)[-1] == 8 << 30
    assert sizes(4, 1 << 20)[-1] == 1 << 20


def test_contention_is_never_a_gain() -> None:
    point = replace(ring("all_gather", 8, 1, 1, 1e-5, 1e9)[0][0], beside="gemm")
    record = {
        "key": key_of(point),
        **asdict(point),
        "time_s": 1.0,
        "spread_frac": 0.1,
        "gemm_s": 1.0,
        "gemm_beside_s": 1.2,
        "gather_s": 1.0,
        "gather_beside_s": 0.9,
    }
    (one,) = contention(Readings(MACHINE, (record,)))
    assert one.compute_slowdown_frac == pytest.approx(0.2)
    assert one.comm_slowdown == 1.0


@pytest.mark.parametrize("readings", RECORDINGS, ids=lambda r: f"{r.machine.devices} processes")
class TestRecordings:
    """Two and four gloo processes."""

    def test_all_collectives_were_measured(self, readings: Readings) -> None:
        assert not readings.failed
        assert {fit.collective for fit in fit_links(readings) if fit.axis == "world"} == set(COLLECTIVES)

    def test_sizes_that_were_held_out_are_predicted(self, readings: Readings) -> None:
        for fit in fit_links(readings):
            assert fit.held_out.median_frac < HELD_OUT_FRAC, fit
        errors = []
        for points in series_of(readings).values():
            moved, seconds = columns(points)
            errors += list(np.abs(predict_held_out(moved, seconds) / seconds[1:-1] - 1))
        assert float(np.mean(np.array(errors) < HELD_OUT_FRAC)) >= 0.95, sorted(errors)[-5:]

    def test_larger_messages_never_take_less_beyond_the_spread(self, readings: Readings) -> None:
        for points in series_of(readings).values():
            for (_, small), (point, large) in pairwise(points):
                allowed = 1 + small["spread_frac"] + large["spread_frac"]
                assert large["time_s"] * allowed > small["time_s"], point

    def test_contention_slows_both(self, readings: Readings) -> None:
        found = contention(readings)
        assert found
        assert max(one.compute_slowdown_frac for one in found) > 0.05
        assert max(one.comm_slowdown for one in found) > 1.05


@pytest.mark.parametrize(("first", "second"), [*zip(RECORDINGS, AGAIN, strict=True)], ids=["2", "4"])
def test_a_second_launch_agrees_within_the_spread(first: Readings, second: Readings) -> None:
    one, two = ({r["key"]: r for r in readings.records if r["beside"] == "nothing"} for readings in (first, second))
    assert one.keys() == two.keys()
    off = np.array([abs(np.log(one[key]["time_s"] / two[key]["time_s"])) for key in one])
    stated = np.array([one[key]["spread_frac"] + two[key]["spread_frac"] for key in one])
    assert float(np.mean(off < stated)) >= 0.95
    assert float(np.median(off)) < 0.06
    for a, b in zip(fit_links(first), fit_links(second), strict=True):
        assert a.latency_s == pytest.approx(b.latency_s, rel=0.3)
        assert a.bus_bytes_per_s == pytest.approx(b.bus_bytes_per_s, rel=0.15)
