"""The pictures of simulated steps show the steps that are simulated today."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from step_pictures import pictures  # noqa: E402

STEP = re.compile(r"the step takes (\d+) ms")


def test_pictures_are_of_today() -> None:
    for name, text in pictures():
        kept = (ROOT / f"docs/figures/step-{name}.svg").read_text(encoding="utf-8")
        today, shown = (list(map(float, STEP.findall(one))) for one in (text, kept))
        assert shown == pytest.approx(today, abs=1.5), "run python tools/step_pictures.py"
        assert len(kept) < 30_000
