"""The figures draw what the records say, told apart without colour."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from knee.errors import MissingExtra
from knee.figures import palette, vega
from knee.figures import weak_scaling as drawn
from knee.study.runs import Bench
from knee.study.weak_scaling import FSDP, GPUS, PLANS, Row, at, findings, paper_points, weak_scaling


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(weak_scaling(Bench()))


def _nodes(spec: Any) -> Iterator[dict[str, Any]]:
    if isinstance(spec, dict):
        yield spec
        for value in spec.values():
            yield from _nodes(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _nodes(value)


def _marks(spec: Any, kind: str) -> list[dict[str, Any]]:
    return [n for n in _nodes(spec) if isinstance(n.get("mark"), dict) and n["mark"].get("type") == kind]


def test_rows_are_the_whole_grid(rows: list[Row]) -> None:
    assert [(row.plan, row.gpus) for row in rows] == [(plan, n) for plan in PLANS for n in GPUS]
    for row in rows:
        assert row.step_s == pytest.approx(row.compute_s + row.exposed_comm_s + row.bubble_s + row.idle_s)
        assert row.global_batch == 2 * row.gpus


def test_findings_follow_from_the_rows(rows: list[Row]) -> None:
    found = findings(rows)
    ratio = at(rows, FSDP, 2048).tokens_per_s_per_gpu / at(rows, FSDP, 128).tokens_per_s_per_gpu
    assert found.large_change_frac == pytest.approx(ratio - 1)
    assert [d.to_gpus for d in found.doublings] == list(GPUS[1:])
    assert all(d.speedup >= 1.9 for d in found.doublings if d.to_gpus <= found.pays_until_gpus)


def test_the_papers_points_are_its_stated_numbers(rows: list[Row]) -> None:
    points = paper_points(rows)
    stated = {(p.plan, p.gpus): p.value for p in points if p.metric == "power_w_per_gpu"}
    assert stated == {("FSDP", 128): 658.0, ("FSDP", 2048): 620.0, ("TP", 2048): 650.0}
    base = at(rows, FSDP, 128)
    changes = {p.plan: p.value / base.tokens_per_j - 1 for p in points if p.metric == "tokens_per_j"}
    assert changes["FSDP"] == pytest.approx(-0.333, abs=0.001)
    assert all(p.how != "stated" for p in points if p.metric != "power_w_per_gpu")


def test_every_colour_is_one_thing() -> None:
    assert len({look.light for look in palette.LOOKS}) == len(palette.LOOKS)
    assert set(palette.PARTS) == {"compute", "overlapped", "exposed", "bubble", "idle"}
    parts = {(look.dash, look.light == look.fill) for look in palette.PARTS.values()}
    assert len(parts) >= 4
    assert len({look.dash for look in palette.SERIES}) == len(palette.SERIES)


def test_a_missing_extra_says_how_to_get_it(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(vega.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'knee\[report\]'"):
        drawn.figures(rows, [])


def test_specs_have_log2_axes_lines_and_diamonds(rows: list[Row]) -> None:
    pytest.importorskip("altair")
    points = paper_points(rows)
    for figure in drawn.figures(rows, points):
        if figure.id == "time-per-step":
            continue
        scales = [n["scale"] for n in _nodes(figure.spec) if n.get("field") == "gpus" and "scale" in n]
        assert scales
        assert all(s["type"] == "log" and s["base"] == 2 for s in scales)
        ticks = next(n["axis"] for n in _nodes(figure.spec) if n.get("field") == "gpus" and "axis" in n)
        assert ticks["values"] == list(GPUS)
        assert ticks["labelOverlap"] is False
        assert _marks(figure.spec, "line")
        diamonds = _marks(figure.spec, "point")
        assert [n["mark"]["filled"] for n in diamonds] == [False]
        assert diamonds[0]["encoding"]["shape"]["scale"]["range"] == ["diamond"]


def test_measured_rows_are_dots(rows: list[Row]) -> None:
    pytest.importorskip("altair")
    mixed = [*rows, replace(rows[0], kind="measured", tokens_per_s=1234.0)]
    dots = [n for n in _marks(drawn.throughput(mixed, []).spec, "point") if n["mark"]["filled"]]
    assert len(dots) == 1


def test_specs_hold_the_records_values(rows: list[Row]) -> None:
    pytest.importorskip("altair")
    spec = drawn.time_per_step(rows).spec
    values = [v for data in spec["datasets"].values() for v in data] if "datasets" in spec else spec["data"]["values"]
    drawn_values = {(v["plan"], v["gpus"], v["part"]): v["time_s"] for v in values}
    row = at(rows, "TP 2", 512)
    assert drawn_values["TP 2", 512, "exposed"] == row.exposed_comm_s
    assert drawn_values["TP 2", 512, "overlapped"] == row.overlapped_comm_s
    assert ("TP 2", 512, "bubble") not in drawn_values


def test_svg_is_made_offline_with_every_label(rows: list[Row]) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    svg = vega.to_svg(drawn.throughput_per_gpu(rows, paper_points(rows)).spec)
    words = re.findall(r">([^<>]+)</text>", svg)
    assert {f"{n:,}" for n in GPUS} <= set(words)
    assert {"FSDP", "TP 2", "TP 4", "paper", "ideal"} <= set(words)
    assert all(f'"{look.light}"' in svg for look in palette.SERIES)
