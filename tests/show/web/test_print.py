"""On paper: every fold is open, no picture is cut, and the text of the print has all there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from knee.commands.study.study_file import load_study
from lanes import with_nightly

from .conftest import STUDIES

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Made, Open

PAPER = {"width": 688, "height": 1017}
"""A4 at 96 pixels an inch, less the margins."""
PRINTED = """() => {
  const wide = document.documentElement.clientWidth, folds = [...document.querySelectorAll("details")];
  const shown = (one) => one.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })
    && one.getBoundingClientRect().height > 0;
  const pictures = [...document.querySelectorAll("figure svg")].map((svg) => svg.getBoundingClientRect());
  return {
    folds: folds.length,
    closed: folds.filter((fold) => ![...fold.children].every((one) => one.matches("summary") || shown(one))).length,
    tables: [...document.querySelectorAll("table")].filter((table) => !shown(table)).length,
    cut: [...document.querySelectorAll("table, figure, .timeline, p")].filter((one) =>
      one.getBoundingClientRect().right > wide + 1).map((one) => one.textContent.slice(0, 60)),
    pictures: pictures.filter((box) => box.width < 80 || box.height < 60 || box.right > wide + 1
      || box.height > 900).length,
    paper: getComputedStyle(document.body).backgroundColor,
    tools: [...document.querySelectorAll("nav, .skip, button, summary")].filter(shown).length,
  };
}"""


@pytest.mark.parametrize(
    ("name", "scripts"),
    with_nightly([("study", True), ("report", False)], [("study", False), ("report", True), ("trace", True)]),
)
def test_all_is_open_and_nothing_cut(name: str, scripts: bool, made: Made, open_page: Open) -> None:
    page = open_page(made.page(name), viewport=PAPER, color_scheme="dark", java_script_enabled=scripts).page
    page.emulate_media(media="print", color_scheme="dark")
    found = page.evaluate(PRINTED)
    assert found["folds"] > 3
    assert (found["closed"], found["tables"], found["pictures"], found["tools"]) == (0, 0, 0, 0)
    assert found["cut"] == []
    assert found["paper"] == "rgb(255, 255, 255)"  # paper is white, also at night


def words_of(page: Page, path: Path) -> str:
    """Of the print, without the ends of lines."""
    page.pdf(path=path, format="A4")
    said = subprocess.run(["pdftotext", "-raw", str(path), "-"], capture_output=True, text=True, check=True, timeout=60)
    return re.sub(r"\s+", "", said.stdout)


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext: apt-get install poppler-utils")
def test_the_print_has_every_study_claim_and_table(made: Made, open_page: Open, tmp_path: Path) -> None:
    page = open_page(made.page("study")).page
    captions = page.locator("caption").all_text_contents()
    ids = page.locator(".claims.all tbody th").all_text_contents()
    values = page.locator("#fig3 figure td data").all_text_contents()
    printed = words_of(page, tmp_path / "print.pdf")
    titles = [load_study(name).title for name in STUDIES]
    assert len(captions) > 2 * len(STUDIES)
    assert len(ids) > len(STUDIES)
    for words in (*titles, *captions, *ids, *values):
        assert "".join(words.split()) in printed, words


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext: apt-get install poppler-utils")
@pytest.mark.parametrize("name", ["report", "trace"])
def test_the_print_of_ones_own_has_every_table(name: str, made: Made, open_page: Open, tmp_path: Path) -> None:
    page = open_page(made.page(name)).page
    printed = words_of(page, tmp_path / "print.pdf")
    for words in (*page.locator("caption").all_text_contents(), *page.locator("td data").all_text_contents()):
        assert "".join(words.split()) in printed, words
