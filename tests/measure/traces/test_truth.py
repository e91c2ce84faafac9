"""Equal to the nanosecond: an independent reading of the same traces, in plain Python and whole numbers.

Traces are those that the simulator writes, and those that others recorded where they lie beside the checkout.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from knee.engine.one_job import events_of
from knee.measure.kineto.kineto_writer import write_kineto
from knee.measure.traces import Analysis, analyse
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from small_traces import job
from trace_truth import true_times

SHARED = Path(__file__).parents[4] / "shared" / "traces"
RECORDED = sorted((*SHARED.glob("*.json.gz"), *SHARED.glob("*/*.json")))
PLANS = {"tensors": {"tp": 2}, "pipelines": {"pp": 2}}
OWN = ["steps", *PLANS]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Steps with copies, and the last rank of simulated jobs."""
    folder = tmp_path_factory.mktemp("own")
    specs = load_model("llama-1b").spec, load_cluster("dgx-h100").spec, load_profile("paper").spec
    jobs = {name: make_job(*specs, gpus=16, local_batch=2, plan_options=plan)[0] for name, plan in PLANS.items()}
    simulated = {name: write_kineto(events_of(made), folder / f"{name}.json.gz")[-1] for name, made in jobs.items()}
    return {"steps": job(folder / "steps.json")} | simulated


@cache
def analysed(path: Path) -> Analysis:
    return analyse(path, cache=False)


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@pytest.mark.parametrize("name", OWN)
def test_of_our_own_traces_every_time_is_the_truth(own: dict[str, Path], name: str) -> None:
    check_truth(own[name])
    check_steps(own[name])


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED, reason="traces that others recorded are not here: put them into ../shared/traces")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_of_recorded_traces_every_time_is_the_truth(path: Path) -> None:
    check_truth(path)
    check_steps(path)


def check_truth(path: Path) -> None:
    found = analysed(path)
    (rank,) = found.ranks
    times, audit = rank.times, rank.audit
    true = true_times(path)
    assert found.is_whole
    assert ns(times.compute_load_s) == true["compute_load"]
    assert ns(times.compute_s) == true["compute"]
    assert ns(times.comm_load_s) == true["comm_load"]
    assert ns(times.comm_s) == true["comm"]
    assert ns(times.exposed_comm_s) == true["exposed"]
    assert ns(times.overlapped_comm_s) == true["overlapped"]
    if not rank.trace.columns.is_simulated:  # a simulated step may begin before its first kernel and end after its last
        assert ns(times.window_s) == true["span"]
        assert ns(times.idle_s) == true["idle"]
    is_comm = rank.trace.classified.is_comm
    assert int(is_comm.sum()) == true["n_comm"]
    assert audit.kernels - int(is_comm.sum()) == true["n_compute"]
    assert audit.copies == true["n_copies"]
    assert sum(kernel.calls for kernel in rank.kernels) == audit.kernels
    assert sum(load.calls for load in rank.collectives) == true["n_comm"]
    assert sum(ns(load.load_s) for load in rank.collectives) == true["comm_load"]
    assert sum(ns(kernel.load_s) for kernel in rank.kernels) == true["compute_load"] + true["comm_load"]


def check_steps(path: Path) -> None:
    """They add up to the whole."""
    (rank,) = analysed(path).ranks
    if not rank.steps:
        return
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


@pytest.mark.parametrize("where", ["own", pytest.param("recorded", marks=pytest.mark.slow)])
def test_ranks_together_are_each_alone(tmp_path: Path, where: str) -> None:
    folder = tmp_path if where == "own" else SHARED / "param_v100_8rank_dlrm"
    if not folder.exists():
        pytest.skip("traces that others recorded are not here: put them into ../shared/traces")
    for rank in range(8 if where == "own" else 0):
        job(folder / f"rank{rank}.json", rank=rank, gather=300_001 + rank)
    together = analyse(folder, cache=False)
    assert [rank.rank for rank in together.ranks] == list(range(8))
    for rank in together.ranks:
        assert analysed(rank.path).ranks[0].times == rank.times
