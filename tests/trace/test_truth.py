"""Equal to the nanosecond: an independent reading of the same traces, in plain Python and whole numbers."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest

from knee.trace import analyse

SHARED = Path(__file__).parents[3] / "shared"
TRUTH = SHARED / "prototypes" / "trace_truth.py"
TRACES = sorted((*(SHARED / "traces").glob("*.json.gz"), *(SHARED / "traces").glob("*/*.json")))

pytestmark = pytest.mark.skipif(not TRUTH.exists() or not TRACES, reason="the shared traces are not here")


@pytest.fixture(scope="module")
def truth() -> Any:
    spec = importlib.util.spec_from_file_location("trace_truth", TRUTH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["open"] = lambda path, _: io.BytesIO(Path(path).read_bytes())  # it leaves its files open
    return module


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])
def test_every_time_and_count_is_the_truth(truth: Any, path: Path) -> None:
    found = analyse(path, cache=False)
    (rank,) = found.ranks
    times, audit = rank.times, rank.audit
    true = truth.analyse(path)
    us = {name: round(value * 1000) for name, value in true.items() if not name.startswith("n_")}
    assert found.is_whole
    assert ns(times.compute_load_s) == us["comp_sum"]
    assert ns(times.compute_s) == us["comp_union"]
    assert ns(times.comm_load_s) == us["comm_sum"]
    assert ns(times.comm_s) == us["comm_union"]
    assert ns(times.exposed_comm_s) == us["exposed"]
    assert ns(times.overlapped_comm_s) == us["overlap"]
    assert ns(times.window_s) == us["span"]
    assert ns(times.idle_s) == us["idle"]
    assert ns(times.window_s) - ns(times.idle_s) == us["busy"]
    is_comm = rank.trace.classified.is_comm
    assert int(is_comm.sum()) == true["n_comm"]
    assert audit.kernels - int(is_comm.sum()) == true["n_comp"]
    assert audit.copies == true["n_mem"]
    assert sum(kernel.calls for kernel in rank.kernels) == audit.kernels
    assert sum(load.calls for load in rank.collectives) == true["n_comm"]
    assert sum(ns(load.load_s) for load in rank.collectives) == us["comm_sum"]
    assert sum(ns(kernel.load_s) for kernel in rank.kernels) == us["comp_sum"] + us["comm_sum"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])
def test_steps_add_up_to_the_whole(path: Path) -> None:
    (rank,) = analyse(path, cache=False).ranks
    if not rank.steps:
        pytest.skip("no profiler steps")
    assert rank.steps[0].window.start_ns == rank.window.start_ns
    assert rank.steps[-1].window.end_ns == rank.window.end_ns
    for name in (
        "window_s",
        "compute_load_s",
        "comm_load_s",
        "copy_load_s",
        "fill_load_s",
        "compute_s",
        "comm_s",
        "exposed_comm_s",
        "overlapped_comm_s",
        "exposed_copies_s",
        "idle_s",
    ):
        assert sum(ns(getattr(part.times, name)) for part in rank.steps) == ns(getattr(rank.times, name)), name


def test_eight_ranks_together_are_each_alone() -> None:
    folder = SHARED / "traces" / "param_v100_8rank_dlrm"
    together = analyse(folder, cache=False)
    assert [rank.rank for rank in together.ranks] == list(range(8))
    for rank in together.ranks:
        assert analyse(rank.path, cache=False).ranks[0].times == rank.times
