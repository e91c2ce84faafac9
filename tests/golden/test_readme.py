"""The README's table is what the simulator says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from knee.study.runs import Bench

README = Path(__file__).parents[2] / "README.md"
ROW = re.compile(r"^\| ([\d,]+)( with TP 4)? \| ([\d,]+) \| ([\d.]+)% \| ([\d.]+)% \| (\d+) \|$", re.MULTILINE)


def test_the_table_is_true() -> None:
    rows = ROW.findall(README.read_text(encoding="utf-8"))
    assert len(rows) == 6
    bench = Bench()
    for gpus, tp, speed, mfu, exposed, watts in rows:
        run = bench.weak(int(gpus.replace(",", "")), **({"tp": 4} if tp else {})).result
        assert float(speed.replace(",", "")) == pytest.approx(run.tokens_per_s_per_gpu, abs=1)
        assert float(mfu) == pytest.approx(100 * run.mfu_frac, abs=0.06)
        assert float(exposed) == pytest.approx(100 * run.exposed_comm_s / run.step_s, abs=0.06)
        assert float(watts) == pytest.approx(run.power_w_per_gpu, abs=0.6)
