"""A pool of processes: whoever made an answer or a picture, it is the same; and no process outlives its block."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.base.processes import core_count, process_pool
from knee.commands.study import api as api
from knee.show.figures import vega
from waiting import until

GRID = 'model = "llama-tiny"\ncluster = "cpu"\nprofile = "eager"\ngpus = [1, 2, 4]\nlocal_batch = 1\nseq_len = 64\n'


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["idle", "busy", "killed"])
def test_no_worker_outlives_its_block(how: str) -> None:
    with process_pool(1) as pool:
        pid = pool.submit(os.getpid).result()
        if how == "busy":
            pool.submit(signal.pause)
        if how == "killed":
            with pytest.raises(BrokenProcessPool):
                pool.submit(os.kill, pid, signal.SIGKILL).result()
    assert not is_alive(pid)


def test_a_daemonic_process_starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not let it; those of `knee serve` are."""
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert core_count() == 1


NO_GUARD = """
import os, signal, sys
from knee.base.processes import process_pool
print("started", flush=True)
with process_pool(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    if sys.argv[1] == "killed":
        signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ends", "killed"])
def test_a_script_is_not_run_again_and_its_workers_end_with_it(how: str, tmp_path: Path) -> None:
    """Also one that has no guard around its main part, and in a folder with modules of well-known names."""
    (tmp_path / "script.py").write_text(NO_GUARD, encoding="utf-8")
    (tmp_path / "pickle.py").write_text("raise SystemExit('a module of the current folder')", encoding="utf-8")
    script, sources = tmp_path / "script.py", str(Path(knee.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-P", script, how],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": sources},
        text=True,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        worker = int(process.stdout.readline())
        if how == "killed":
            process.kill()
        assert process.stdout.read() == ""
    until(lambda: not is_alive(worker))


@pytest.fixture
def grid(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(GRID, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("how", ["one core", "two cores", "no more processes", "workers die"])
def test_a_study_is_the_same_whoever_answers(
    grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(api, "cached_fidelity", lambda _: None)  # takes seconds, and is tested elsewhere
    monkeypatch.setattr(api.Studies, "write_tables", lambda *_: None)
    monkeypatch.setattr(api, "WORTH_IT", 1)
    monkeypatch.setattr(api, "core_count", lambda: 1 if how == "one core" else 2)
    asked: list[Future[Any]] = []

    class Pool:
        def submit(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
            if how == "no more processes":
                raise OSError("no more processes")
            asked.append(Future())
            if how == "workers die":
                asked[-1].set_exception(BrokenProcessPool())
            else:
                asked[-1].set_result(function(*given))
            return asked[-1]

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(api, "process_pool", lambda _: Pool())
    found = knee.study(grid, out=tmp_path / "out")
    assert (found.simulated, found.reused) == (3, 0)
    assert found.ran[0].rows == knee.study(grid).ran[0].rows
    assert len(asked) == (0 if how in ("one core", "no more processes") else 2)  # the points, and the fidelity


SPEC = {
    "$schema": vega.SCHEMA,
    "data": {"values": [{"x": 1, "y": 0.1}]},
    "mark": "point",
    "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}},
}


@pytest.mark.slow
def test_a_chart_is_the_same_whoever_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vega, "core_count", lambda: 2)
    alone = vega.to_svg(SPEC)
    with vega.drawing_beside():
        assert vega.to_svg(SPEC) == alone
        with pytest.raises(ValueError, match="conversion failed"):
            vega.to_svg({"mark": "none such"})
        assert vega.to_svg(SPEC) == alone
    assert vega.to_svg(SPEC) == alone
