"""How a page is built: figures that are drawn, headings, landmarks, tables and labels that a screen reader can use."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from knee.commands.study.study_file import load_study

from .conftest import NAMES, PHONE, STUDIES

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Made, Open

STRUCTURE = """() => {
  const all = (query) => [...document.querySelectorAll(query)], ids = all("[id]").map((element) => element.id);
  const named = (element) => element.getAttribute("aria-label")
    || document.getElementById(element.getAttribute("aria-labelledby"))?.textContent;
  return {
    language: document.documentElement.lang, title: document.title, twice: ids.filter((id, i) => ids.indexOf(id) !== i),
    headings: all("h1, h2, h3, h4, h5, h6").map((heading) => [Number(heading.tagName[1]), heading.textContent.trim()]),
    landmarks: ["header", "main", "nav", "footer"].map((name) => all(`body ${name}`).length),
    dead: all('a[href^="#"]').map((link) => link.hash.slice(1)).filter((id) => !document.getElementById(id)),
    away: all("a:not([href^='#'])").map((link) => link.getAttribute("href")),
    unnamed: all("nav, section, article, [role=group]").filter((element) => !named(element)).length,
    tables: all("table").map((table) => [table.caption?.textContent.trim() ?? "",
      [...table.querySelectorAll("th")].every((th) => th.scope === (th.closest("thead") ? "col" : "row")),
      [...table.tBodies[0].rows].every((row) => row.cells[0].tagName === "TH"
        && row.cells.length === table.tHead.rows[0].cells.length)]),
    stuck: all(".scroll").filter((region) => region.tabIndex !== 0).length,
    pictures: all("svg").map((svg) => [svg.getAttribute("role"), svg.getAttribute("aria-label") ?? ""]),
    loose: all("img, iframe, object, embed, audio, video, canvas, form").length,
  };
}"""
FIGURES = """() => [...document.querySelectorAll("figure")].map((figure) => {
  const svg = figure.querySelector("svg"), place = svg.getBoundingClientRect(), room = figure.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("path, rect, circle, line")].map((mark) => mark.getBoundingClientRect());
  const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim())
    .map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
  const outside = texts.filter(([, box]) => box.left < room.left || box.right > room.right
    || box.top < place.top - 2 || box.bottom > place.bottom + 2).map(([words]) => words);
  const overlapping = texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1.5
    && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3.5).map(([b]) => `${a} / ${b}`));
  const { width, height } = svg.getBBox();
  return { id: figure.id, size: [width, height, place.width, place.height], texts: texts.length, outside, overlapping,
    marks: marks.filter((box) => box.width + box.height > 3).length, titles: svg.querySelectorAll("title").length };
})"""

FONT = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "16px Helvetica, Arial, sans-serif";
  return pen.measureText("tokens per second").width;
}"""


@pytest.fixture(scope="module")
def pages(shown: Callable[[str], Page]) -> dict[str, Page]:
    return {name: shown(name) for name in NAMES}


@pytest.fixture(scope="module", params=NAMES)
def found(request: pytest.FixtureRequest, pages: dict[str, Page]) -> dict[str, Any]:
    return pages[request.param].evaluate(STRUCTURE)


def test_the_document_has_a_language_a_title_and_landmarks(found: dict[str, Any]) -> None:
    assert found["language"] == "en"
    assert found["title"]
    assert found["landmarks"] == [1, 1, 1, 1]
    assert found["unnamed"] == 0
    assert found["loose"] == 0


def test_headings_begin_with_one_and_leave_no_level_out(found: dict[str, Any]) -> None:
    levels = [level for level, _ in found["headings"]]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(there <= here + 1 for here, there in pairwise(levels))
    assert all(words for _, words in found["headings"])


def test_names_are_unique_and_links_lead_somewhere(found: dict[str, Any]) -> None:
    assert found["twice"] == []
    assert found["dead"] == []


def test_tables_have_captions_and_headers(found: dict[str, Any]) -> None:
    assert found["tables"]
    assert found["stuck"] == 0
    for caption, scoped, headed in found["tables"]:
        assert caption
        assert scoped, caption
        assert headed, caption


def test_pictures_are_labelled(found: dict[str, Any]) -> None:
    assert found["pictures"]
    assert all(role == "img" and len(label) > 10 for role, label in found["pictures"])


def test_links_out_are_files_beside_the_page_or_the_paper(made: Made, pages: dict[str, Page]) -> None:
    away = pages["study"].evaluate(STRUCTURE)["away"]
    assert [name for name in away if name.startswith("http")] == ["https://arxiv.org/abs/2411.13055"]
    beside = [name for name in away if not name.startswith("http")]
    assert {"runs.csv", "claims.csv", "figures", "records"} <= set(beside)
    assert all((made.folder / "study" / name).exists() for name in beside)


def test_every_chart_of_every_study_is_there(pages: dict[str, Page]) -> None:
    figures = pages["study"].evaluate(FIGURES)
    asked = {name: load_study(name) for name in STUDIES}
    for name, study in asked.items():
        assert sum(one["id"].startswith(f"{name}-") for one in figures) == len(study.draw)
    # beside the studies: doublings, errors, the conflict of T10, and MLPerf's ladders
    assert len(figures) == 4 + sum(len(study.draw) for study in asked.values())
    steps = pages["study"].locator(".step-timeline").count()
    assert steps == sum(len(study.timeline) for study in asked.values())


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_and_nothing_in_them_collides(name: str, pages: dict[str, Page]) -> None:
    figures = pages[name].evaluate(FIGURES)
    assert figures
    for one in figures:
        assert min(one["size"]) > 80, one
        assert one["marks"] >= 3, one
        assert one["texts"] >= 5, one
        assert one["titles"] >= 1, one  # tooltips
    assert {one["id"]: one["outside"] for one in figures if one["outside"]} == {}
    if pages[name].evaluate(FONT) < 132:  # charts are measured for Helvetica and its kin; others may be wider
        assert {one["id"]: one["overlapping"] for one in figures if one["overlapping"]} == {}


def test_lanes_of_a_step_have_names_of_their_own(pages: dict[str, Page]) -> None:
    lanes = pages["study"].evaluate("""[...document.querySelectorAll(".timeline")].map((one) =>
        [...one.querySelectorAll(".ranks span")].map((span) => span.textContent))""")
    for names in lanes:
        assert len(names) == len(set(names)) >= 4
    assert any("stage 2: compute" in names for names in lanes)


SHORTENED = """() => {
  for (const row of document.querySelectorAll(".claims.all tbody tr:nth-child(n + 5)")) row.remove();
  for (const row of document.querySelectorAll("figure tbody tr:nth-child(n + 5)")) row.remove();
  for (const fold of document.querySelectorAll("details")) fold.open = true;
}"""


@pytest.mark.parametrize(("name", "device"), [
    ("study", {"viewport": PHONE}), ("report", {}), ("trace", {"viewport": PHONE, "color_scheme": "dark"}),
], ids=NAMES)  # fmt: skip
def test_axe_finds_nothing(name: str, device: dict[str, Any], made: Made, open_page: Open) -> None:
    """Of tables a few rows are looked at: axe reads every cell."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    rules = {
        "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
        "resultTypes": ["violations"],
    }
    if name == "study":  # contrast of all of it has a test of its own
        rules["rules"] = {"color-contrast": {"enabled": False}}
    page = open_page(made.page(name), **device).page
    page.evaluate(SHORTENED)
    violations = axe.Axe().run(page, options=rules).response["violations"]
    assert [(v["id"], v["impact"], [node["html"][:120] for node in v["nodes"]][:3]) for v in violations] == []
