"""Sweeps on a real Slurm cluster of two nodes, on this machine: every way a run ends, and everything that is killed."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.training.launch.run_status import read_status
from knee.training.launch.site import Site
from knee.training.sweeps import slurm

from .slurm_cluster import CannotStart, SlurmCluster
from .sweeps import (
    BEGUN,
    FEW,
    KNEE,
    NEVER,
    TINY,
    ended,
    over,
    program,
    record,
    run_folder,
    start,
    states,
    status,
    sweep,
    until,
)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"), array=3)
    try:
        found.start()
    except CannotStart as error:
        found.stop()
        pytest.skip(str(error))
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(autouse=True)
def cluster(started: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """As if no other test had been before; what is started finds it, and does not look for seconds between looks."""
    monkeypatch.setenv("SLURM_CONF", str(started.conf))
    monkeypatch.setattr(slurm, "WAIT_S", 0.5)
    started.mend()
    return started


@pytest.fixture
def stub(tmp_path: Path) -> str:
    # proctrack/linuxproc loses processes with a blank in their name
    return program(tmp_path / "a folder's own" / "stub.sh")


def grid_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "it's a grid.toml"
    path.write_text(TINY + text, encoding="utf-8")
    return path


THREE = """
[[grid]]
series = "TP"
gpus = 2
plan = { tp = 2 }

[[grid]]
series = "hangs"
gpus = 2

[[grid]]
series = "wrong"
gpus = 2
plan = { tp = 3 }
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_trainer_over_two_nodes(tmp_path: Path) -> None:
    grid, out, setup = grid_of(tmp_path, THREE), tmp_path / "out's $HOME; `x`", tmp_path / "set up.sh"
    setup.write_text("export STUCK_RANK=1\n", encoding="utf-8")
    words = [grid, "--launcher", "slurm", "--out", out, *FEW, "--gpus-per-node", "1", "--time", "60", "--wait"]
    words += ["--setup", setup, "--partition", "main"]
    words += ["--env", f"PYTHONPATH={Path(__file__).parent}/stuck", "--env", "STUCK_RUN=0002"]
    sweep(*words, codes=(5,))
    found = status(out)
    assert [one["state"] for one in found.values()] == ["done", "timeout", "failed"]
    assert (found["0003"]["cause"], found["0003"]["attempts"]) == ("spec", 0)
    assert (found["0002"]["cause"], found["0002"]["rank"]) == ("hang", 1)
    assert found["0002"]["node"] == found["0002"]["nodes"][1] == "n1"
    assert found["0001"]["nodes"] == ["n0", "n1"]
    # a run's folder: spec, a log and an environment a rank, and the record
    run = run_folder(out, "0001")
    assert "tp = 2" in (run / "job.toml").read_text(encoding="utf-8")
    assert {path.name for path in (run / "logs").iterdir()} == {"rank0.log", "rank1.log", "start0.log"}
    settings = [json.loads((run / "environment" / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert [one["node"] for one in settings] == ["n0", "n1"]
    assert all("TORCHELASTIC_RUN_ID" in one["environment"] for one in settings)
    assert record(run)["window_steps"] == 3
    # all that ended by itself stays as it is
    sweep(*words, codes=(5,))
    assert [one["attempts"] for one in status(out).values()] == [1, 1, 0]


OOM = """#!/bin/bash
echo "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory" >&2
exit 1
"""


def test_a_run_out_of_memory_is_evidence(tmp_path: Path) -> None:
    grid, out = grid_of(tmp_path, "[[grid]]\ngpus = 1\n"), tmp_path / "out"
    words = (grid, "--launcher", "slurm", "--out", out, "--program", program(tmp_path / "oom.sh", OOM))
    sweep(*words, "--wait", codes=(5,))
    assert (status(out)["0001"]["state"], status(out)["0001"]["cause"]) == ("oom", "memory")
    assert record(run_folder(out, "0001"))["fits"] is False


def test_what_is_killed_in_the_middle_loses_nothing(cluster: SlurmCluster, tmp_path: Path, stub: str) -> None:
    grid, out, go = grid_of(tmp_path, "[[grid]]\ngpus = 2\nseq_len = [32, 64]\n"), tmp_path / "out", tmp_path / "go"
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub, "--gpus-per-node", "1", "--wait")
    words += ("--env", f"STUB_UNTIL={go}")
    with start(*words) as launcher:
        until(lambda: len(list(out.glob(BEGUN))) == 2, "both run", by=launcher)
        launcher.kill()
        ended(launcher, code=-signal.SIGKILL)
    first = run_folder(out, "0001")
    cluster.call("scancel", read_status(first).job)
    until(lambda: read_status(first).state == "cancelled", "scancel is seen")
    until(lambda: cluster.pids_on("n1"), "the second run is on both nodes")
    cluster.kill_node("n1")
    until(lambda: states(out)["0002"] != "running", "a lost node is seen")
    # Slurm may have put it back into its queue before its supervisor has said why it ended
    lost = until(lambda: named(status(out)["0002"]), "n1 is named")
    assert lost["state"] == "pending" or (lost["state"], lost["cause"]) == ("failed", "lost_node"), lost
    cluster.start_node("n1")
    # Slurm would start it again after two minutes; hurried, it may take the second life for what was left of the first
    cluster.call("scancel", "--user=root")
    cluster.until_idle()
    go.touch()
    assert (first / "logs" / "start0.log").exists()


def named(one: dict[str, Any]) -> dict[str, Any] | None:
    return one if "n1 failed" in one["words"] else None


def test_a_run_that_is_put_back_into_the_queue_runs_again_by_itself(
    cluster: SlurmCluster, tmp_path: Path, stub: str
) -> None:
    grid, out, go = grid_of(tmp_path, "[[grid]]\ngpus = 2\n"), tmp_path / "out", tmp_path / "go"
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub, "--gpus-per-node", "1")
    sweep(*words, "--env", f"STUB_UNTIL={go}")
    until(lambda: list(out.glob(BEGUN)), "it runs")
    job = status(out)["0001"]["job"]
    cluster.call("scontrol", "requeue", job)
    until(lambda: read_status(run_folder(out, "0001")).cause == "preempted", "it is told")
    until(lambda: "BeginTime" in status(out)["0001"]["words"], "it waits again")
    assert states(out) == {"0001": "pending"}
    go.touch()
    cluster.until_idle()  # a node that still ends the first life may take the second one for it
    # Slurm itself waits for two minutes. A node refuses what was put into the queue in the second in which it ended the
    # first life, so that the second life begins in a later one.
    cluster.call("scontrol", "update", f"jobid={job}", "starttime=now+2")
    until(lambda: over(out), "it has ended")
    assert states(out) == {"0001": "done"}
    assert status(out)["0001"]["attempts"] == 2


def test_runs_share_allocations_and_the_queue_is_not_flooded(tmp_path: Path, stub: str) -> None:
    grid = grid_of(tmp_path, f"[[grid]]\ngpus = 1\nseq_len = {[32 + 4 * n for n in range(5)]}\n")
    out = tmp_path / "out"
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub, "--pack", "2", "--max-queued", "2")
    _, err = sweep(*words)
    assert "1 runs are not in the queue yet" in err
    assert len(json.loads((out / "slurm" / "0001.runs.json").read_text(encoding="utf-8"))) == 2
    sweep(*words, "--wait")
    found = status(out)
    assert {(one["state"], one["attempts"]) for one in found.values()} == {("done", 1)}
    assert len({one["job"] for one in found.values()}) == 3


def test_cancel_and_what_is_cancelled_can_be_started_again(cluster: SlurmCluster, tmp_path: Path, stub: str) -> None:
    grid, out = grid_of(tmp_path, "[[grid]]\ngpus = 2\nseq_len = [32, 36, 40]\n"), tmp_path / "out"
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub, "--exclusive", "--gpus-per-node", "1")
    sweep(*words, "--env", NEVER)
    begun = run_folder(out, "0001") / "begun"
    until(begun.exists, "the first run runs")
    assert "waits in Slurm's queue" in status(out)["0003"]["words"]
    # the limit on arrays is the cluster's: no index reaches MaxArraySize
    scripts = [path.read_text(encoding="utf-8") for path in sorted((out / "slurm").glob("*.sbatch"))]
    assert ["--array=0-1\n" in scripts[0], "--array=0-0\n" in scripts[1]] == [True, True]
    sweep("cancel", out)
    until(lambda: over(out), "all have ended")
    assert set(states(out).values()) == {"cancelled"}
    cluster.until_idle()  # a run whose job has not left the queue yet is not submitted again
    # so does scancel
    begun.unlink()
    sweep(*words, "--env", NEVER)
    until(begun.exists, "the first run runs again")
    cluster.call("scancel", "--user=root")
    until(lambda: over(out), "all have ended again")
    assert set(states(out).values()) == {"cancelled"}
    cluster.until_idle()
    sweep(*words, "--wait")
    assert set(states(out).values()) == {"done"}


def test_what_slurm_refuses_is_said_in_its_words(tmp_path: Path, stub: str) -> None:
    grid, out = grid_of(tmp_path, "[[grid]]\ngpus = 1\n"), tmp_path / "out"
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub)
    _, err = sweep(*words, "--partition", "mian", codes=(2,))
    assert "error: sbatch refused the job: " in err
    assert "partition" in err
    sweep(*words, "--wait")
    _, err = sweep(*words, "--set", "gpus=4", "--out", tmp_path / "b", "--gpus-per-node", "1", codes=(3,))
    assert "it needs 4 nodes, but Slurm has 2" in err


def test_a_series_ends_at_its_knee_on_slurm_too(tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(
        TINY.replace("global_batch = 4", "local_batch = 2") + "[[grid]]\ngpus = [1, 2, 4]\n", encoding="utf-8"
    )
    sweep(grid, "--out", out, "--program", program(tmp_path / "knee.sh", KNEE), "--launcher", "slurm", "--until-knee")
    assert list(states(out).values()) == ["done", "done", "cancelled"]
    assert status(out)["0003"]["cause"] == "knee"


TUNED = """
import json, sys
from pathlib import Path
run = Path(sys.argv[1])
plan = json.loads((run / "job.json").read_text())["plan"]
rate = 100.0 * plan["micro_batch"] / plan["tp"]
(run / "record.json").write_text(json.dumps({"status": "done", "tokens_per_s_per_gpu": rate, "gpus": 2}))
"""


def test_tuning_submits_runs_as_they_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TUNED, encoding="utf-8")
    said: list[str] = []
    found = knee.tune(
        "llama-tiny",
        cluster="cpu",
        gpus=2,
        global_batch=4,
        seq_len=64,
        only="cp == 1 and pp == 1 and recompute == 'none' and sharding == 'fsdp'",
        out=tmp_path / "out",
        launcher="slurm",
        site=Site(gpus_per_node=1),
        at_once=2,
        max_runs=4,
        within=1e-4,
        knobs=(),
        program=[sys.executable, str(tmp_path / "program.py")],
        say=said.append,
    )
    assert [run.state for run in found.state.runs] == ["done"] * 4
    assert found.state.best_tokens_per_s_per_gpu == 200.0
    assert len({run.plan for run in found.state.runs}) == 4
    assert any("not finished" in sentence for sentence in said)
