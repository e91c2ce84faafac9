"""Every command and block of code in README and on the site's pages runs, and prints what the page shows.

``test_how_to_pages.py`` does the same for the folder of how-to pages, so that two processes share the work.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_blocks import PAGES, ROOT, blocks_of, run_page

HOW_TO = "how-to"
WITH_BLOCKS = [path for path in PAGES if blocks_of(path.read_text(encoding="utf-8"))]


def named(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


@pytest.mark.parametrize("path", [path for path in WITH_BLOCKS if path.parent.name != HOW_TO], ids=named)
def test_a_page_is_true(path: Path, tmp_path: Path) -> None:
    assert list(run_page(path, tmp_path)) == [], "python tests/docs/page_blocks.py brings the page up to date"


def test_pages_are_run() -> None:
    """A fence that is not read would be a block that is not run."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert 2 * len(blocks_of(text)) == sum(line.lstrip().startswith("```") for line in text.splitlines()), path


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "DESIGN.md", "CHANGELOG.md"])
def test_links_outside_of_the_site_lead_somewhere(name: str) -> None:
    """Those of the site itself are checked by its strict build."""
    links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_readme_is_one_screen() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 80
