"""The documentation site: it builds strictly, and from disk it is read and searched without any other host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanes import nightly

from .conftest import PHONE, Open

pytestmark = nightly

ROOT = Path(__file__).parents[3]
PAGES = (
    "index",
    "tutorial",
    "how-to/cluster",
    "reference/python",
    "reference/claims",
    "explanation/step",
    "explanation/trust",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs mkdocs-material: pip install 'knee[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_sources_is_there(site: Path) -> None:
    docs = ROOT / "docs"
    assert {p.relative_to(docs).with_suffix("") for p in docs.rglob("*.md")} <= {
        p.relative_to(site).with_suffix("") for p in site.rglob("*.html")
    }
    text = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    assert "made: " not in text.replace("made: NAME", ""), "a table was not put in its place"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_no_other_host_and_fits_a_phone(site: Path, open_page: Open, name: str) -> None:
    opened = open_page(site / f"{name}.html", viewport=PHONE)
    opened.page.wait_for_function("document.readyState === 'complete'")
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_search_works_from_disk(site: Path, open_page: Open) -> None:
    page = open_page(site / "index.html").page
    page.locator("[data-md-component=search-query]").fill("oversubscription")
    found = page.locator(".md-search-result__link").first
    found.wait_for(state="attached")
    assert "cluster" in page.locator(".md-search-result__list").inner_text().lower()
