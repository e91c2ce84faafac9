"""Every command and block of code of the how-to pages runs, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_blocks import PAGES, blocks_of, run_page

WITH_BLOCKS = [p for p in PAGES if p.parent.name == "how-to" and blocks_of(p.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", WITH_BLOCKS, ids=lambda path: path.stem)
def test_a_page_is_true(path: Path, tmp_path: Path) -> None:
    assert list(run_page(path, tmp_path)) == [], "python tests/docs/page_blocks.py brings the page up to date"
