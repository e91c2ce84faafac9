"""The README's picture, and the page on the paper, are what the study says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from knee.commands.study.run_study import Ran
from knee.commands.study.study_file import study_names
from shared_studies import ran_once

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/how-to/paper.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([\d,]+)( with TP 4)? \| ([\d,]+) \| ([\d.]+)% \| ([\d.]+)% \| (\d+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def weak(studied: Path) -> Ran:
    """Figure 3."""
    return ran_once(["fig3"], studied)[0]


def _row(ran: Ran, series: str, gpus: int) -> Mapping[str, Any]:
    return next(row for row in ran.rows if row["series"] == series and row["gpus"] == gpus)


def test_the_table_is_true(weak: Ran) -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == 6
    for gpus, tp, speed, mfu, exposed, watts in rows:
        row = _row(weak, "TP 4" if tp else "FSDP", int(gpus.replace(",", "")))
        assert float(speed.replace(",", "")) == pytest.approx(row["tokens_per_s_per_gpu"], abs=1)
        assert float(mfu) == pytest.approx(100 * row["mfu_frac"], abs=0.06)
        assert float(exposed) == pytest.approx(100 * row["exposed_frac"], abs=0.06)
        assert float(watts) == pytest.approx(row["power_w_per_gpu"], abs=0.6)


def test_the_finding_is_true(weak: Ran) -> None:
    assert f"  {weak.finding} [{weak.trust}]\n" in PAGE
    assert f"{weak.study.name}: {weak.study.title} ({weak.study.place})\n" in PAGE


def test_the_figure_is_true(weak: Ran) -> None:
    """Its specification lies beside it, and has the values that are simulated today."""
    spec = json.loads((ROOT / "docs/figures/scaling.vl.json").read_text(encoding="utf-8"))
    numbers = {round(float(n), 3) for n in re.findall(r"-?\d+\.\d+(?:e[+-]?\d+)?", json.dumps(spec))}
    for row in weak.rows:
        assert any(abs(n - row["tokens_per_s_per_gpu"]) < 0.01 for n in numbers), (row["series"], row["gpus"])
    assert (ROOT / "docs/figures/scaling.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "(docs/figures/scaling.svg)" in README


def test_the_number_of_studies_is_true() -> None:
    paper, every = len(study_names("paper")), len(study_names())
    assert f"# {paper} figures and tables of the paper, {every - paper} questions beyond it" in PAGE
