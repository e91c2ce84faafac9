"""The charts of studies: each mark draws what the rows say, and what cannot be drawn is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from knee.commands.study.charts import figure_files, figures, figures_of_rows
from knee.commands.study.run_study import results
from knee.commands.study.study_file import Draw, Published
from knee.commands.study.summary_section import doublings, doublings_of
from knee.show.figures import palette, vega
from knee.show.figures.heat_map import HATCHED
from knee.show.figures.svg import svg_for_page

LINE = Draw(title="Throughput per GPU", mark="line", x="gpus", y="tokens_per_s_per_gpu")
HEAT = Draw(title="Heat", mark="heat", x="tp", y="pp", shows="tokens_per_s_per_gpu")


def row(series: str = "FSDP", gpus: int = 8, per_gpu: float | None = 9000.0, **more: Any) -> dict[str, Any]:
    return {
        "study": "x",
        "series": series,
        "kind": "simulated",
        "model": "m",
        "gpus": gpus,
        "plan": f"{series} plan",
        "tokens_per_s_per_gpu": per_gpu,
        "fits": True,
        "compute_s": 0.8,
        "exposed_comm_s": 0.1,
        "bubble_s": 0.0,
        "idle_s": 0.1,
        "overlapped_comm_s": 0.3,
        "step_s": 1.0,
    } | more


def curve(series: str = "FSDP", **more: Any) -> list[dict[str, Any]]:
    return [row(series, n, 9000.0 - n, **more) for n in (8, 16, 32)]


def nodes(spec: Any) -> Iterator[dict[str, Any]]:
    if isinstance(spec, dict):
        yield spec
        for value in spec.values():
            yield from nodes(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from nodes(value)


def layers(spec: Any, kind: str) -> list[dict[str, Any]]:
    return [n for n in nodes(spec) if isinstance(n.get("mark"), dict) and n["mark"].get("type") == kind]


def values(layer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = layer["data"]["values"]
    return found


def one(draw: Draw, rows: list[dict[str, Any]], **more: Any) -> Any:
    figure = figures_of_rows("x", [draw], rows, **more)[0]
    assert figure.spec is not None
    return figure


def test_lines_have_a_colour_and_a_dash_each() -> None:
    figure = one(LINE, [*curve(), *curve("TP 2"), *curve("TP 4")])
    line = layers(figure.spec, "line")[0]
    assert {v["c"] for v in values(line)} == {"FSDP", "TP 2", "TP 4"}
    color, dash = line["encoding"]["color"]["scale"]["range"], line["encoding"]["strokeDash"]["scale"]["range"]
    assert len(set(color)) == 3
    assert len({tuple(d) for d in dash}) == 3
    assert line["encoding"]["x"]["scale"]["type"] == "log"
    assert figure.id == "x-1-throughput-per-gpu"
    assert figure.columns == ("series", "gpus", "tokens_per_s_per_gpu", "plan", "kind")


def test_every_point_of_a_line_says_itself() -> None:
    spec = one(LINE, curve()).spec
    seen = next(n for n in layers(spec, "point") if n["mark"]["opacity"] == 0)
    assert values(seen)[0]["say"] == "FSDP, 8 GPUs: 8,992 tokens/s per GPU, simulated"
    assert seen["encoding"]["description"] == {"field": "say"}


def test_measured_are_dots_and_published_hollow_diamonds() -> None:
    stated = Published(series="TP", metric="tokens_per_s_per_gpu", x=32, times=0.5, of={"gpus": 8}, how="half")
    rows = [*curve(), row(gpus=16, per_gpu=8000.0, kind="measured", tp=1)]
    figure = one(LINE, rows, published=[stated])
    shapes = [n["encoding"]["shape"]["scale"] for n in layers(figure.spec, "point") if "shape" in n["encoding"]]
    assert shapes[0]["domain"] == ["measured", "published"]
    assert shapes[0]["range"][0] == "circle"
    assert "L" in shapes[0]["range"][1]
    said = [v["say"] for n in layers(figure.spec, "point") for v in values(n)]
    assert "TP, 32 GPUs: 4,496 tokens/s per GPU, published (half)" in said
    assert any(v["say"].endswith("measured") for n in layers(figure.spec, "point") for v in values(n))
    assert figure.published[0]["tokens_per_s_per_gpu"] == 0.5 * 8992
    assert [v["c"] for n in layers(figure.spec, "text") for v in values(n)] == ["TP"]


def test_a_change_of_a_run_that_is_not_there_is_not_drawn() -> None:
    stated = Published(series="TP", metric="tokens_per_s_per_gpu", x=32, times=0.5, of={"gpus": 4096})
    assert one(LINE, curve(), published=[stated]).published == ()


def test_readings_beside_rows_are_diamonds_of_their_series() -> None:
    draw = Draw(title="Bus", mark="line", x="nodes", y="bus_bytes_per_s")
    rows = [
        {
            "series": "1 GiB",
            "kind": "simulated",
            "nodes": n,
            "bus_bytes_per_s": 3e11,
            "published_bus_bytes_per_s": 2.9e11 if n == 4 else None,
        }
        for n in (4, 8)
    ]
    figure = one(draw, rows)
    points = [v for n in layers(figure.spec, "point") for v in values(n) if v["k"] == "published"]
    assert [(v["c"], v["x"], v["y"]) for v in points] == [("1 GiB", 4, pytest.approx(290))]
    assert "published_bus_bytes_per_s" in figure.columns


@pytest.mark.parametrize(("ideal", "last"), [("flat", 8992.0), ("scaled", 4 * 8992.0)])
def test_the_ideal_line_goes_through_the_first_point(ideal: Any, last: float) -> None:
    draw = Draw(title="T", mark="line", x="gpus", y="tokens_per_s_per_gpu", ideal=ideal)
    line = layers(one(draw, curve()).spec, "line")[0]
    assert values(line)[-1]["y"] == last
    assert line["mark"]["color"] == palette.IDEAL.light


def test_a_line_of_one_point_is_still_seen() -> None:
    assert any(n["mark"].get("shape") == "stroke" for n in layers(one(LINE, [row()]).spec, "point"))


def test_what_does_not_fit_is_left_out_and_said() -> None:
    figure = one(LINE, [*curve(), row(gpus=64, fits=False)])
    assert 64 not in {v["x"] for v in values(layers(figure.spec, "line")[0])}
    assert "do not fit in memory: 1" in figure.caption
    assert len(figure.rows) == 4


@pytest.mark.parametrize("mark", ["line", "bar", "parts", "shares", "heat", "growth"])
def test_no_rows_is_no_picture_and_no_error(mark: Any) -> None:
    draw = Draw(title="T", mark=mark, x="gpus", y="step_s", shows="step_s", caption="C.")
    figure = figures_of_rows("x", [draw], [])[0]
    assert figure.spec is None
    assert figure.caption == "C. None of these runs can be drawn."
    assert figures_of_rows("x", [draw], [row(step_s=None, compute_s=None)])[0].spec is None or mark == "heat"


def test_bars_are_grouped_in_the_order_of_rows() -> None:
    draw = Draw(title="T", mark="bar", x="model", y="mfu_frac")
    rows = [row(s, model=m, mfu_frac=0.4) for m in ("b", "a") for s in ("one", "two")]
    spec = one(draw, rows).spec
    bar = layers(spec, "bar")[0]
    assert bar["encoding"]["x"]["scale"]["domain"] == ["b", "a"]
    assert bar["encoding"]["xOffset"]["scale"]["domain"] == ["one", "two"]
    assert values(bar)[0]["y"] == pytest.approx(40)
    alone = layers(one(Draw(title="T", mark="bar", x="series", y="mfu_frac"), rows[:2]).spec, "bar")[0]
    assert set(alone["encoding"]["color"]["scale"]["range"]) == {palette.BAR.light}


def test_long_names_make_bars_lie_down() -> None:
    rows = [row(f"tensor parallel {i}, pipeline parallel 16") for i in range(4)]
    spec = one(Draw(title="T", mark="bar", x="series", y="tokens_per_s_per_gpu"), rows).spec
    assert layers(spec, "bar")[0]["encoding"]["y"]["type"] == "ordinal"


def test_parts_are_stacked_with_overlapped_beside() -> None:
    draw = Draw(title="T", mark="parts", x="gpus")
    spec = one(draw, [row(gpus=8), row(gpus=16), row("TP 2", gpus=8)]).spec
    assert spec["facet"]["row"]["sort"] == ["FSDP", "TP 2"]
    found = {(v["c"], v["x"], v["part"]): v for v in spec["data"]["values"]}
    assert found["FSDP", "8", "compute"]["y"] == 0.8
    assert found["FSDP", "8", "overlapped"]["bar"] == "overlapped"
    assert ("FSDP", "8", "bubble") not in found
    assert found["FSDP", "8", "exposed"]["say"] == "FSDP, 8 GPUs: exposed 100 ms, 10.0% of the step"
    fills = spec["spec"]["encoding"]["fill"]["scale"]
    assert dict(zip(fills["domain"], fills["range"], strict=True))["exposed"] == palette.PARTS["exposed"].fill


def test_shares_add_up_to_the_whole() -> None:
    spec = one(Draw(title="T", mark="shares", x="gpus"), [row()]).spec
    assert sum(v["y"] for v in spec["data"]["values"]) == pytest.approx(100)
    assert "overlapped" not in {v["part"] for v in spec["data"]["values"]}


def test_cells_that_cannot_be_are_hatched_and_say_why() -> None:
    rows = [row(tp=1, pp=1), row(tp=2, pp=1, per_gpu=8000.0), row(tp=1, pp=2, fits=False)]
    impossible = [{"study": "x", "series": "s", "kind": "impossible", "why": "3 does not divide 32", "tp": 2, "pp": 2}]
    figure = one(HEAT, rows, impossible=impossible)
    rects = layers(figure.spec, "rect")
    filled, framed, empty = (values(r) for r in rects)
    assert [(v["x"], v["y"], v["words"]) for v in filled] == [("1", "1", "9,000"), ("2", "1", "8,000")]
    assert [(v["x"], v["y"]) for v in framed] == [("1", "1")]
    assert [(v["x"], v["y"], v["k"]) for v in empty] == [("1", "2", HATCHED), ("2", "2", HATCHED)]
    assert [v["say"] for v in empty] == ["TP 1, PP 2: does not fit in memory", "TP 2, PP 2: 3 does not divide 32"]
    assert layers(figure.spec, "point")[0]["mark"]["shape"].startswith("M")
    assert "The frame is around the best." in figure.caption
    assert figure.rows[-1]["why"] == "3 does not divide 32"
    assert figure.spec["resolve"]["scale"]["color"] == "independent"


def test_of_losses_the_least_is_best_and_the_hue_is_that_of_exposed() -> None:
    draw = Draw(title="Heat", mark="heat", x="tp", y="pp", shows="exposed_frac")
    rows = [row(tp=t, pp=1, exposed_frac=0.1 * t) for t in (1, 2, 4)]
    rects = layers(one(draw, rows).spec, "rect")
    assert rects[0]["encoding"]["color"]["scale"]["range"] == [look.light for look in palette.WORSE]
    assert values(rects[1])[0]["x"] == "1"


def test_a_chart_is_of_the_rows_it_names() -> None:
    draw = Draw(title="T", mark="line", x="gpus", y="tokens_per_s_per_gpu", at={"series": ("FSDP", "TP 4")})
    figure = one(draw, [*curve(), *curve("TP 2"), *curve("TP 4")])
    assert {r["series"] for r in figure.rows} == {"FSDP", "TP 4"}


def test_doublings_of_a_curve() -> None:
    rows = [row(gpus=n, tokens_per_s=t) for n, t in ((8, 100.0), (16, 190.0), (64, 400.0), (32, 270.0))]
    found = doublings_of(rows)
    assert [(d.from_gpus, d.to_gpus) for d in found] == [(8, 16), (16, 32), (32, 64)]
    assert [d.speedup for d in found] == pytest.approx([1.9, 270 / 190, 400 / 270])
    assert {v["c"] for v in doublings(found)["data"]["values"]} == {"pays", "not"}


def test_data_sheets_grow_over_the_first() -> None:
    ran = results(["table1"], [])[0]
    figure = figures(ran)[0]
    assert figure.spec is not None
    found = {(v["c"], v["x"]): v["y"] for v in values(layers(figure.spec, "line")[0])}
    assert found["NVLink", ran.rows[0]["gpu"]] == 1
    assert found["NVLink", ran.rows[-1]["gpu"]] == pytest.approx(3)


def test_files_stand_alone() -> None:
    pytest.importorskip("vl_convert")
    ((name, spec),) = figure_files(results(["table1"], [])[0])
    assert name == "table1-1-growth-over-v100"
    assert spec["background"] == "#ffffff"
    assert spec["title"]["text"] == "Growth over V100"
    assert vega.to_png(spec).startswith(b"\x89PNG")
    svg = vega.to_svg(spec)
    assert vega.svg_to_png(svg).startswith(b"\x89PNG")


def test_svg_is_made_offline_with_every_label_and_known_colours_only() -> None:
    pytest.importorskip("vl_convert")
    impossible = [{"study": "x", "series": "s", "kind": "impossible", "why": "<no>", "tp": 2, "pp": 2}]
    draws = [LINE, HEAT, Draw(title="P", mark="parts", x="gpus"), Draw(title="B", mark="bar", x="gpus", y="step_s")]
    known = {*palette.dark_of(), "none", "transparent"}
    for figure in figures_of_rows(
        "x", draws, [row(tp=1, pp=1), row(gpus=16, tp=2, pp=1), row("TP 2", gpus=16, tp=2, pp=1)], impossible
    ):
        assert figure.spec is not None
        svg = svg_for_page(vega.to_svg(figure.spec), figure.title)
        assert {f"{n:,}" for n in (8, 16)} <= set(re.findall(r">([^<>]+)</text>", svg)) or figure.title == "Heat"
        assert set(re.findall(r'(?:fill|stroke)="(#\w+|\w+)"', svg)) <= known
        assert svg.count("<title>") >= 3
        assert "<no>" not in svg
