"""A second process answers from the end, and whoever made an answer, it is the same."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.base import second_process as beside
from knee.commands.study import api as api
from knee.commands.study.from_the_end import RECORDS, answer_from_the_end
from knee.show.figures import vega

GRID = 'model = "llama-tiny"\ncluster = "cpu"\nprofile = "eager"\ngpus = [1, 2, 4]\nlocal_batch = 1\nseq_len = 64\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors on published runs take seconds, and are tested elsewhere."""
    monkeypatch.setattr("knee.commands.study.from_the_end.cached_fidelity", lambda _: None)
    monkeypatch.setattr(api.Studies, "write_tables", lambda *_: None)


@pytest.fixture
def grid(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(GRID, encoding="utf-8")
    return str(path)


def test_what_the_second_made_the_first_finds(grid: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer_from_the_end(out, [grid], {})
    assert len(list((out / RECORDS).glob("*.json"))) == 3
    found = knee.study(grid, out=out)
    assert (found.simulated, found.reused) == (0, 3)
    assert found.ran[0].rows == knee.study(grid).ran[0].rows


def test_a_study_beside_a_second_process_is_the_same(
    grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[str]:
        started.append(start(command, **options))
        return started[-1]

    monkeypatch.setattr(api, "WORTH_IT", 1)
    monkeypatch.setattr(beside, "_cores", lambda: 2)
    monkeypatch.setattr(beside.subprocess, "Popen", popen)
    found = knee.study(grid, out=tmp_path / "out")
    assert (found.simulated, found.reused) == (3, 0)
    assert found.ran[0].rows == knee.study(grid).ran[0].rows
    assert [process.poll() is not None for process in started] == [True]


@pytest.mark.parametrize("how", ["none", "fails"])
def test_without_a_second_process_the_first_does_all(
    grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(api, "WORTH_IT", 1)
    monkeypatch.setattr(beside, "_cores", lambda: 1 if how == "none" else 2)
    monkeypatch.setattr(beside.subprocess, "Popen", fails)
    assert knee.study(grid, out=tmp_path / "out").simulated == 3


SPEC = {
    "$schema": vega.SCHEMA,
    "data": {"values": [{"x": 1, "y": 0.1}]},
    "mark": "point",
    "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}},
}


def test_a_chart_is_the_same_whoever_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_cores", lambda: 2)
    alone = vega.to_svg(SPEC)
    with vega.drawing_beside():
        monkeypatch.setattr(vega, "_drawn", lambda _: "drawn here")
        assert vega.to_svg(SPEC) == alone
        assert vega.to_svg({"mark": "none such"}) == "drawn here"  # which ends the second process
        assert vega.to_svg(SPEC) == "drawn here"
    assert vega.to_svg(SPEC) == "drawn here"


@pytest.mark.parametrize(("module", "cores"), [("knee.none_such", 2), ("knee.show.figures.vega", 1)])
def test_who_cannot_answer_says_nothing(monkeypatch: pytest.MonkeyPatch, module: str, cores: int) -> None:
    monkeypatch.setattr(beside, "_cores", lambda: cores)
    with beside.answering_process(module) as ask:
        assert [ask(1), ask(2)] == [None, None]
