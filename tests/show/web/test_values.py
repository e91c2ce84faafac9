"""What a page shows is what was recorded: every number of every table, every claim, the headline."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from knee.commands.study.api import KINDS
from knee.commands.study.study_file import load_study
from knee.show.figures.labels import heading
from lanes import NIGHTLY

from .conftest import STUDIES

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Made

FACTORS = {"": 1.0, "%": 100.0, "s": 1.0, "ms": 1e3, "µs": 1e6, "W": 1.0, "GiB": 2.0**-30, "GB/s": 1e-9,
           "Gbit/s": 8e-9, "TFLOP/s": 1e-12}  # fmt: skip
"""Unit of a heading -> what a stored value is multiplied by."""
TABLES = """(root) => [...document.querySelectorAll(root + " table")].map((table) => ({
  caption: table.caption.textContent, figure: table.closest("figure")?.id ?? "",
  heads: [...table.tHead.rows[0].cells].map((cell) => cell.textContent),
  rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) =>
    [cell.textContent, cell.querySelector("data")?.value ?? null]))}))"""
Table = dict[str, Any]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def study(shown: Callable[[str], Page]) -> Page:
    return shown("study")


@pytest.fixture(scope="module")
def tables(study: Page) -> list[Table]:
    return study.evaluate(TABLES, "main")


@pytest.fixture(scope="module")
def recorded(made: Made) -> dict[str, list[dict[str, str]]]:
    """Study -> its rows, in the tables beside the page."""
    found: dict[str, list[dict[str, str]]] = {name: [] for name in STUDIES}
    for path in filter(Path.exists, (made.folder / "study" / f"{name}.csv" for name in KINDS)):
        for row in rows_of(path):
            found[row["study"]].append(row)
    return found


def same(text: str, value: object) -> bool:
    """A cell of a CSV file against a value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return text == str(value)
    return text != "" and float(text) == value


def hold(cell: Sequence[Any], head: str, stored: str) -> None:
    """A cell holds the stored value in full, and shows it rounded in the heading's unit."""
    words, value = cell
    if value is None:
        known = {"True": ("yes",), "False": ("no",), "": ("unknown", "")}.get(stored, (stored,))
        assert words in known, (head, words, stored)
        return
    assert float(value) == float(stored), (head, value, stored)
    unit = re.search(r"\(([^()]*)\)$", head)
    if re.fullmatch(r"-?[\d,]*\.?\d*", words):
        last_digit = 10.0 ** -len(words.partition(".")[2])
        off = float(words.replace(",", "")) - float(stored) * FACTORS[unit[1] if unit else ""]
        assert abs(off) <= 0.501 * last_digit, (head, words, stored)


@pytest.mark.parametrize("name", STUDIES)
def test_tables_of_a_study_are_its_records(
    name: str, tables: list[Table], recorded: Mapping[str, list[dict[str, str]]]
) -> None:
    asked = load_study(name)
    own = [table for table in tables if table["figure"].startswith(f"{asked.name}-")]
    own = [table for table in own if not table["caption"].endswith(": published")]
    assert len(own) == len(asked.draw)
    for draw, table in zip(asked.draw, own, strict=True):
        assert table["caption"].startswith(f"{draw.title}: ")
        where = {key: value if isinstance(value, tuple) else (value,) for key, value in draw.at.items()}
        rows = [
            row
            for row in recorded[asked.name]
            if all(any(same(row[key], value) for value in values) for key, values in where.items())
        ]
        heads = table["heads"]
        kind = heads.index("kind") if "kind" in heads else -1
        shown = [row for row in table["rows"] if kind < 0 or row[kind][0] != "impossible"]
        assert len(shown) == len(rows) > 0
        for cells, row in zip(shown, rows, strict=True):
            columns = {heading(column): column for column in row if column != "message" or draw.color == "message"}
            for head, cell in zip(heads, cells, strict=True):
                hold(cell, head, "" if head == "why" else row[columns[head]])


def test_published_values_are_those_of_the_files(tables: list[Table]) -> None:
    shown = [table for table in tables if table["caption"].endswith(": published")]
    assert shown
    for table in shown:
        study = max((name for name in STUDIES if table["figure"].startswith(f"{name}-")), key=len)
        stated = load_study(study).published
        values = [cell[1] for row in table["rows"] for cell in row[2:3]]
        known = {one.value for one in stated if one.value is not None}
        of_runs = sum(one.value is None for one in stated)
        assert all(float(value) in known or of_runs for value in values)
        assert {row[0][0] for row in table["rows"]} <= {one.series for one in stated}


def test_claims_are_those_of_the_table(made: Made, tables: list[Table]) -> None:
    claims = rows_of(made.folder / "study" / "claims.csv")
    [table] = [table for table in tables if table["caption"].startswith("Every claim")]
    assert table["heads"] == ["claim", "statement", "paper", "bar", "found", "verdict", "role", "by chance"]
    assert len(table["rows"]) == len(claims) > len(STUDIES)
    for cells, claim in zip(table["rows"], claims, strict=True):
        words = [cell[0] for cell in cells]
        assert words[0] == claim["id"]
        assert words[1].startswith(f"{claim['says']} (")
        assert words[2:4] == [claim["paper"], claim["bar"]]
        assert words[4] == claim["found"] + (f"; {claim['off']}" if claim["off"] else "")
        assert words[5].split(" ", 1)[1] == claim["verdict"]
        by = f" by {claim['by']}" if claim["by"] else ""
        assert words[6] == f"{claim['role']}{by}" + (f": {claim['because']}" if claim["because"] else "")


def test_claims_of_each_study_stand_with_it(made: Made, study: Page) -> None:
    shown = study.evaluate("""[...document.querySelectorAll("article.study")].map((article) => [article.id,
        [...article.querySelectorAll(".claims.few tbody tr")].map((row) => [row.querySelector("a").textContent,
            row.querySelector(".verdict").textContent.slice(2), row.textContent])])""")
    claims = rows_of(made.folder / "study" / "claims.csv")
    assert [name for name, _ in shown] == STUDIES
    for name, rows in shown:
        own = [claim for claim in claims if claim["study"] == name]
        assert [row[:2] for row in rows] == [[claim["id"], claim["verdict"]] for claim in own]
        for (_, _, words), claim in zip(rows, own, strict=True):
            assert all(
                claim[part] in words for part in ("says", "paper", "found", "bar", "off", "why", "role", "because")
            )


def test_the_headline_is_the_commands_last_line(made: Made, study: Page, tables: list[Table]) -> None:
    assert made.last_line.startswith("independent claims: ")
    assert study.text_content("#claims strong") == made.last_line
    claims = rows_of(made.folder / "study" / "claims.csv")
    tally = [table for table in tables if table["caption"] == "Claims of the paper by role, and what came of them"]
    assert len(tally) == 2  # in the summary, and with the claims
    for table in tally:
        for name, *cells in table["rows"]:
            some = [c for c in claims if name[0] in ("all", c["role"])]
            counts = [sum(c["verdict"] == head for c in some) for head in table["heads"][1:-1]]
            assert [int(value) for _, value in cells] == [*counts, len(some)]


def test_the_knee_is_where_doublings_stop_paying(study: Page, tables: list[Table], recorded: Any) -> None:
    curve = [(int(row["gpus"]), float(row["tokens_per_s"])) for row in recorded["fig3"] if row["series"] == "FSDP"]
    gains = {n: (m, b / a) for (n, a), (m, b) in pairwise(curve)}
    knee = next(n for n, (_, gain) in gains.items() if gain < 1.5)
    assert study.text_content(".knee") == f"{knee:,} GPUs"
    [table] = [table for table in tables if table["figure"] == "doublings"]
    shown = {int(row[0][1]): (int(row[1][1]), float(row[2][1])) for row in table["rows"]}
    assert shown == gains


def test_the_summarys_numbers_are_its_claims(made: Made, study: Page) -> None:
    claims = rows_of(made.folder / "study" / "claims.csv")
    shown = study.evaluate("""[...document.querySelectorAll("#summary .keys li")].map(
        (item) => [...item.children].map((child) => child.textContent))""")
    known = {(c["found"], c["says"], f"paper: {c['paper']}") for c in claims}
    assert len(shown) == (4 if NIGHTLY else 3)
    assert {tuple(words) for words in shown} <= known


def test_fidelity_is_that_of_its_table(made: Made, tables: list[Table]) -> None:
    sources = rows_of(made.folder / "study" / "fidelity.csv")
    shown = [table for table in tables if table["caption"].startswith("Published runs against predictions")]
    assert len(shown) == 2
    for table in shown:
        assert [row[0][0].removesuffix(" (worst)") for row in table["rows"]] == [s["source"] for s in sources]
        for row, source in zip(table["rows"], sources, strict=True):
            stored = {float(value) for value in source.values() if re.fullmatch(r"-?[\d.e-]+", value)}
            assert {float(value) for _, value in row if value is not None} <= stored
            for head, cell in zip(table["heads"], row, strict=True):
                hold(cell, head, cell[1] or cell[0])


def test_a_page_of_records_shows_their_values(made: Made, shown: Callable[[str], Page]) -> None:
    rows = json.loads((made.folder / "report" / "rows.txt").read_text(encoding="utf-8"))["rows"]
    shown = shown("report").evaluate(TABLES, "#records")
    [table] = shown
    assert len(table["rows"]) == len(rows) == 4
    for cells, row in zip(table["rows"], rows, strict=True):
        columns = {heading(column): column for column in row}
        for head, cell in zip(table["heads"], cells, strict=True):
            value = row.get(columns[head])
            hold(cell, head, "" if value is None else str(value))


def test_a_page_of_a_trace_shows_its_analysis(made: Made, shown: Callable[[str], Page]) -> None:
    answer = json.loads((made.folder / "trace" / "answer.txt").read_text(encoding="utf-8"))
    page = shown("trace")
    shown = {
        float(value)
        for table in page.evaluate(TABLES, "main")
        for row in table["rows"]
        for _, value in row
        if value is not None
    }
    for rank in answer["ranks"]:
        for name in ("compute_s", "exposed_comm_s", "overlapped_comm_s", "idle_s"):
            assert rank[name] in shown, name
