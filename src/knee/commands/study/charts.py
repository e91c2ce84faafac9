"""A study's charts, as its file says: rows in, Vega-Lite out, with the columns of the table behind each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from knee.commands.study.quantities import NotTestable, Row, chosen
from knee.commands.study.rows import preferred
from knee.commands.study.run_study import Ran
from knee.commands.study.study_file import Draw, Published
from knee.show.figures.axes import is_number
from knee.show.figures.bars import PART_COLUMNS, Parts, bars, parts
from knee.show.figures.heat_map import HeatCell, heat_map
from knee.show.figures.labels import label, name_of
from knee.show.figures.lines import ChartPoint, lines, run_strip
from knee.show.figures.vega import Figure, Spec, standalone

GROWN = ("peak_flop_per_s", "nic_bytes_per_s", "hbm_bytes_per_s", "link_bytes_per_s", "hbm_bytes", "tdp_w")
"""Figures of a data sheet whose growth is drawn."""
PUBLISHED = "published_"
"""Beginning of the columns that have a published reading beside knee's value."""
MOST_DRAWN = 5_000
"""Runs of a chart and of the table behind it: 3 MB of the page."""


def figures(ran: Ran) -> list[Figure]:
    """All charts of a study, in its order."""
    study = ran.study
    return figures_of_rows(study.name, study.draw, ran.rows, ran.impossible, study.published)


def figures_of_rows(
    name: str,
    draws: Sequence[Draw],
    rows: Sequence[Row],
    impossible: Sequence[Row] = (),
    published: Sequence[Published] = (),
) -> list[Figure]:
    """Charts of any rows; their ids begin with the name."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", draw.title.lower()).strip("-") for draw in draws]
    return [
        _figure(f"{name}-{number}-{slug}", draw, rows, impossible, published)
        for number, (slug, draw) in enumerate(zip(slugs, draws, strict=True), start=1)
    ]


def figure_files(ran: Ran) -> Iterator[tuple[str, Spec]]:
    """Name and spec of each chart that has something to draw, on white and with its title: for files of their own."""
    for figure in figures(ran):
        if figure.spec is not None:
            yield figure.id, standalone(figure.spec, figure.title)


def _figure(
    id: str, draw: Draw, every: Sequence[Row], impossible: Sequence[Row], published: Sequence[Published]
) -> Figure:
    rows, impossible = matching(every, draw.at), matching(impossible, draw.at)
    if len(rows) + len(impossible) > MOST_DRAWN:
        # nobody could read the chart, and no browser would scroll its table
        count = len(rows) + len(impossible)
        said = f"{count:,} runs are too many to draw: choose some with `at`, up to {MOST_DRAWN:,}. All are in runs.csv."
        caption = _sentences(draw.caption, said)
        return Figure(id=id, title=draw.title, caption=caption, spec=None, columns=("series",), rows=())
    stated = [one for one in published if one.metric == draw.y] if draw.mark in ("line", "bar") else []
    beside = _beside(draw, stated, every, rows)
    empty = Figure(
        id=id,
        title=draw.title,
        caption=draw.caption,
        spec=None,
        columns=table_columns(draw, rows),
        rows=(*rows, *impossible),
        published=tuple(row for _, row in beside),
    )
    # times of plans that do not fit are nobody's: only their memory is drawn, and a heat map hatches them
    whole = draw.mark == "heat" or draw.y.startswith("memory")
    shown = [row for row in rows if whole or row.get("fits") is not False]
    left_out = len(rows) - len(shown)
    spec = _spec(draw, shown, [point for point, _ in beside], impossible)
    if spec is None:
        return replace(empty, caption=_sentences(draw.caption, "None of these runs can be drawn."))
    frame = "The frame is around the best." if draw.mark == "heat" else ""
    if draw.mark == "heat" and any(row["kind"] == "measured" for row in shown):
        frame += " ● measured; the others are simulated."
    note = f"Left out, because they do not fit in memory: {left_out:,}; the table has them." if left_out else ""
    return replace(empty, spec=spec, caption=_sentences(draw.caption, frame, note))


def matching(rows: Sequence[Row], where: Mapping[str, Any]) -> list[Row]:
    """Rows that a chart is about; none is no error. What a row does not have does not exclude it where it cannot be."""
    found = {key: value if isinstance(value, tuple) else (value,) for key, value in where.items()}
    return [
        row
        for row in rows
        if all(row.get(k) in values or (row["kind"] == "impossible" and k not in row) for k, values in found.items())
    ]


def _sentences(*said: str) -> str:
    return " ".join(part for part in said if part)


def table_columns(draw: Draw, rows: Sequence[Row]) -> tuple[str, ...]:
    """What a chart shows, then what was run and how far it can be trusted; columns that say nothing are left out."""
    if draw.mark == "growth":
        return (draw.x, *GROWN)
    wanted = {
        "line": (draw.color, draw.x, draw.y, PUBLISHED + draw.y),
        "bar": (draw.color, draw.x, draw.y),
        "heat": (draw.x, draw.y, draw.shows, "memory_bytes", "fits"),
        "strip": ("span", "cause", draw.x, draw.y),
    }.get(draw.mark, (draw.color, draw.x, "step_s", *PART_COLUMNS.values()))
    every = dict.fromkeys((*wanted, "plan", "kind", "trust", "why"))
    needed = {draw.x, draw.y, draw.shows}
    return tuple(name for name in every if name in needed or any(row.get(name) is not None for row in rows))


def _points(draw: Draw, rows: Sequence[Row]) -> Iterator[ChartPoint]:
    """A point for each row, and one for a reading that was published beside it."""
    for row in rows:
        place, value, reading = row.get(draw.x), row.get(draw.y), row.get(PUBLISHED + draw.y)
        series = label(draw.color, row.get(draw.color))
        if place is None:
            continue
        if value is not None and is_number(value):
            yield ChartPoint(series=series, x=place, y=float(value), kind=str(row["kind"]))
        if reading is not None and is_number(reading):
            yield ChartPoint(series=series, x=place, y=float(reading), kind="published")


def _spec(draw: Draw, rows: Sequence[Row], beside: Sequence[ChartPoint], impossible: Sequence[Row]) -> Spec | None:
    """The chart of a kind; None where there is nothing to draw."""
    if draw.mark in ("line", "bar"):
        points = list(_points(draw, rows))
        if not points:
            return None
        if draw.mark == "line":
            return lines([*points, *beside], x=draw.x, y=draw.y, ideal=draw.ideal, zero=draw.zero, log=draw.log)
        groups = {point.series for point in points}
        return bars([*points, *(p for p in beside if p.series in groups)], x=draw.x, y=draw.y, zero=draw.zero)
    if draw.mark == "heat":
        return _heat(draw, (*preferred(rows), *impossible))
    if draw.mark == "strip":
        spans = [row for row in rows if row.get("span")]
        return run_strip(spans) if spans else None
    if draw.mark == "growth":  # each figure of the data sheets over the first row's
        grown = [
            ChartPoint(
                series=name_of(column), x=row[draw.x], y=float(row[column]) / float(rows[0][column]), kind="catalogue"
            )
            for column in GROWN
            if rows and is_number(rows[0].get(column))
            for row in rows
            if is_number(row.get(column))
        ]
        return lines(grown, x=draw.x, y=f"times the {rows[0][draw.x]}") if grown else None
    steps: list[Parts] = [
        (label(draw.color, row.get(draw.color)), row[draw.x], {part: float(row[c]) for part, c in PART_COLUMNS.items()})
        for row in (preferred(rows) if draw.color == "series" else rows)
        if row.get(draw.x) is not None and all(is_number(row.get(column)) for column in PART_COLUMNS.values())
    ]
    if draw.x in (draw.color, "series"):
        steps = [("", place, of) for _, place, of in steps]
    return parts(steps, x=draw.x, shares=draw.mark == "shares") if steps else None


def _heat(draw: Draw, rows: Sequence[Row]) -> Spec | None:
    cells: dict[tuple[Any, Any], HeatCell] = {}
    for row in rows:
        x, y, value = row.get(draw.x), row.get(draw.y), row.get(draw.shows)
        if x is None or y is None:
            continue
        fits = row["kind"] != "impossible" and row.get("fits") is not False and is_number(value)
        why = row.get("why") or ("does not fit in memory" if row.get("fits") is False else "unknown")
        shown = float(value) if fits and value is not None else None
        measured = row["kind"] == "measured"
        cells.setdefault((x, y), HeatCell(x=x, y=y, value=shown, why="" if fits else str(why), measured=measured))
    return heat_map(list(cells.values()), x=draw.x, y=draw.y, shows=draw.shows) if cells else None


def _beside(
    draw: Draw, published: Sequence[Published], every: Sequence[Row], rows: Sequence[Row]
) -> list[tuple[ChartPoint, Row]]:
    """What the paper states of a chart's metric, as points and as rows of a table."""
    found: list[tuple[ChartPoint, Row]] = []
    names = {label(draw.color, row.get(draw.color)) for row in rows}
    for stated in published:
        value = published_value(stated, every)
        if value is None:
            continue
        point = ChartPoint(
            series=stated.series,
            x=stated.x,
            y=value,
            kind="published",
            note=stated.how,
            named=stated.series not in names,
        )
        row = {"series": stated.series, draw.x: stated.x, draw.y: value, "how": stated.how, "kind": "published"}
        found.append((point, row))
    return found


def published_value(stated: Published, rows: Sequence[Row]) -> float | None:
    """Stated as it is, or as a change of a run; None where that run is not there."""
    if stated.value is not None:
        return stated.value
    try:
        base = chosen({"": preferred(rows)}, "", stated.of)
    except NotTestable:
        return None
    value = base[0].get(stated.metric)
    return None if value is None or stated.times is None else stated.times * float(value)
