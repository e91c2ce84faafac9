"""Sweeps on a real Slurm cluster of two nodes, on this machine: every way a run ends, and everything that is killed."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from knee.launch.status import read_status

from .slurm_cluster import CannotStart, SlurmCluster
from .sweeps import FEW, TINY, record, run_folder, start, status, step_of, sweep, until

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

SEVEN = (
    TINY
    + """
[[grid]]
series = "FSDP"
gpus = 2

[[grid]]
series = "TP"
gpus = 2
plan = { tp = 2 }

[[grid]]
series = "PP"
gpus = 2
plan = { pp = 2, micro_batch = 1 }

[[grid]]
series = "CP"
gpus = 2
plan = { cp = 2 }

[[grid]]
series = "out of memory"
gpus = 2
global_batch = 2048
seq_len = 256

[[grid]]
series = "wrong"
gpus = 2
plan = { tp = 3 }

[[grid]]
series = "hangs"
gpus = 2
seq_len = 48
"""
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"), array=4)
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
def mended(cluster: SlurmCluster) -> None:
    cluster.mend()


def test_every_status_of_a_sweep_over_two_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    grid, out, setup = tmp_path / "it's a grid.toml", tmp_path / "out's $HOME; `x`", tmp_path / "set up.sh"
    grid.write_text(SEVEN, encoding="utf-8")
    setup.write_text("ulimit -v 3000000\n", encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    sweep(
        grid,
        "--launcher",
        "slurm",
        "--out",
        out,
        "--steps",
        "40",
        *FEW,
        "--gpus-per-node",
        "1",
        "--timeout",
        "40",
        "--time",
        "10",
        "--setup",
        setup,
        "--env",
        f"PYTHONPATH={Path(__file__).parent}/stopping",
        "--env",
        "STOP_RUN=0007",
        "--partition",
        "main",
        "--wait",
        more=more,
        codes=(5,),
    )
    found = status(out, more)
    assert {number: one["state"] for number, one in found.items()} == {
        "0001": "done",
        "0002": "done",
        "0003": "done",
        "0004": "done",
        "0005": "oom",
        "0006": "failed",
        "0007": "timeout",
    }
    assert (found["0006"]["cause"], found["0006"]["attempts"]) == ("spec", 0)
    assert (found["0005"]["cause"], found["0007"]["cause"]) == ("memory", "hang")
    assert found["0007"]["rank"] == 1
    assert found["0007"]["node"] == found["0007"]["nodes"][1] == "n1"
    assert all(one["nodes"] == ["n0", "n1"] for number, one in found.items() if number != "0006")
    # a run's folder: spec, a log and an environment a rank, and the record
    run = run_folder(out, "0002")
    assert "tp = 2" in (run / "job.toml").read_text(encoding="utf-8")
    assert {path.name for path in (run / "logs").iterdir()} == {"rank0.log", "rank1.log", "start0.log"}
    settings = [json.loads((run / "environment" / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert [one["node"] for one in settings] == ["n0", "n1"]
    assert all("TORCHELASTIC_RUN_ID" in one["environment"] for one in settings)
    assert record(run)["window_steps"] == 34
    # evidence for the memory model, as it is
    assert record(run_folder(out, "0005"))["fits"] is False
    # the limit on arrays is the cluster's: no index reaches MaxArraySize
    scripts = sorted((out / "slurm").glob("*.sbatch"))
    assert [
        line for path in scripts for line in path.read_text(encoding="utf-8").splitlines() if "--array" in line
    ] == ["#SBATCH --array=0-2", "#SBATCH --array=0-2"]
    # all that ended by itself stays as it is
    sweep(
        grid,
        "--launcher",
        "slurm",
        "--out",
        out,
        "--steps",
        "40",
        *FEW,
        "--gpus-per-node",
        "1",
        "--wait",
        more=more,
        codes=(5,),
    )
    assert {number: one["attempts"] for number, one in status(out, more).items()} == {
        number: one["attempts"] for number, one in found.items()
    }


LONG = (
    TINY
    + """
[[grid]]
gpus = 2
seq_len = [32, 64]
"""
)


def test_what_is_killed_in_the_middle_loses_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(LONG, encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    words = (
        grid,
        "--launcher",
        "slurm",
        "--out",
        out,
        "--steps",
        "300",
        *FEW,
        "--gpus-per-node",
        "1",
        "--timeout",
        "60",
        "--wait",
    )
    with start(*words, more=more) as launcher:
        until(lambda: list(out.glob("slurm/*.job.json")), "jobs are submitted")
        first, second = run_folder(out, "0001"), run_folder(out, "0002")
        until(lambda: step_of(first) >= 1, "the first run trains")
        launcher.send_signal(signal.SIGKILL)
        launcher.communicate()
    cluster.call("scancel", read_status(first).job)
    until(lambda: read_status(first).state == "cancelled", "scancel is seen")
    until(lambda: step_of(second) >= 1, "the second run trains")
    cluster.kill_node("n1")
    until(lambda: status(out, more)["0002"]["state"] != "running", "a lost node is seen")
    # Slurm may have put it back into its queue before its keeper has said why it ended
    lost = until(lambda: named(status(out, more)["0002"]), "n1 is named")
    assert lost["state"] == "pending" or (lost["state"], lost["cause"]) == ("failed", "lost_node"), lost
    cluster.start_node("n1")
    until(lambda: cluster.states() == {"n0": "idle", "n1": "idle"}, "both nodes are back")
    until(lambda: "BeginTime" in status(out, more)["0002"]["words"], "Slurm has put it back into its queue")
    cluster.call("scontrol", "update", f"jobid={lost['job']}", "starttime=now+8")  # Slurm itself waits for two minutes
    # started again so early, Slurm may take its second life for what was left of the first, and end it
    sweep(*words, more=more, codes=(0, 5))
    sweep(*words, more=more)
    found = status(out, more)
    assert {one["state"] for one in found.values()} == {"done"}
    assert all(one["attempts"] >= 2 for one in found.values())
    assert (first / "attempts" / "1" / "logs" / "rank0.log").exists()


def named(one: dict[str, Any]) -> dict[str, Any] | None:
    return one if "n1 failed" in one["words"] else None


def test_a_run_that_is_put_back_into_the_queue_runs_again_by_itself(cluster: SlurmCluster, tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + "[[grid]]\ngpus = 2\n", encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    sweep(grid, "--launcher", "slurm", "--out", out, "--steps", "100", *FEW, "--gpus-per-node", "1", more=more)
    run = run_folder(out, "0001")
    until(lambda: step_of(run) >= 1, "it trains")
    job = status(out, more)["0001"]["job"]
    cluster.call("scontrol", "requeue", job)
    until(lambda: json.loads((run / "status.json").read_text(encoding="utf-8"))["cause"] == "preempted", "it is told")
    until(lambda: "BeginTime" in status(out, more)["0001"]["words"], "it waits again")
    assert status(out, more)["0001"]["state"] == "pending"
    cluster.call("scontrol", "update", f"jobid={job}", "starttime=now")  # Slurm itself waits for two minutes
    until(lambda: status(out, more)["0001"]["state"] == "done", "it is done")
    assert status(out, more)["0001"]["attempts"] == 2


STUB = """#!/bin/bash
trap 'kill $!; exit 143' TERM
sleep "${STUB_S:-0}" & wait $!
echo "{\\"status\\": \\"done\\"}" > "$1/record.json"
"""


@pytest.fixture
def stub(tmp_path: Path) -> str:
    path = tmp_path / "a folder's own" / "stub.sh"  # proctrack/linuxproc loses processes with a blank in their name
    path.parent.mkdir()
    path.write_text(STUB, encoding="utf-8")
    path.chmod(0o755)
    return shlex.quote(str(path))


def test_runs_share_allocations_and_the_queue_is_not_flooded(cluster: SlurmCluster, tmp_path: Path, stub: str) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + f"[[grid]]\ngpus = 1\nseq_len = {[32 + 4 * n for n in range(9)]}\n", encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub, "--pack", "2", "--max-queued", "2")
    _, err = sweep(*words, more=more)
    assert "5 runs are not in the queue yet" in err
    assert len(json.loads((out / "slurm" / "0001.runs.json").read_text(encoding="utf-8"))) == 2
    sweep(*words, "--wait", more=more, timeout_s=120)
    found = status(out, more)
    assert {one["state"] for one in found.values()} == {"done"}
    assert {one["attempts"] for one in found.values()} == {1}
    jobs = {one["job"] for one in found.values()}
    assert len(jobs) == 5


def test_cancel_and_what_is_cancelled_can_be_started_again(cluster: SlurmCluster, tmp_path: Path, stub: str) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + "[[grid]]\ngpus = 2\nseq_len = [32, 36, 40, 44, 48]\n", encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub, "--exclusive", "--gpus-per-node", "1")
    sweep(*words, "--env", "STUB_S=300", more=more)
    until(lambda: status(out, more)["0001"]["state"] == "running", "the first run runs")
    assert "waits in Slurm's queue" in status(out, more)["0003"]["words"]
    sweep("cancel", out, more=more)
    until(lambda: {one["state"] for one in status(out, more).values()} == {"cancelled"}, "all are cancelled")
    # so does scancel, whenever it comes
    sweep(*words, "--env", "STUB_S=300", more=more)
    until(lambda: status(out, more)["0001"]["state"] == "running", "the first run runs again")
    cluster.call("scancel", "--user=root")
    until(lambda: {one["state"] for one in status(out, more).values()} == {"cancelled"}, "all are cancelled again")
    sweep(*words, "--wait", more=more, timeout_s=120)
    assert {one["state"] for one in status(out, more).values()} == {"done"}


def test_what_slurm_refuses_is_said_in_its_words(cluster: SlurmCluster, tmp_path: Path, stub: str) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + "[[grid]]\ngpus = 1\n", encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    words = (grid, "--launcher", "slurm", "--out", out, "--program", stub)
    _, err = sweep(*words, "--partition", "mian", more=more, codes=(2,))
    assert "error: sbatch refuses: " in err
    assert "partition" in err
    sweep(*words, "--wait", more=more, timeout_s=120)
    _, err = sweep(*words, "--set", "gpus=4", "--out", tmp_path / "b", "--gpus-per-node", "1", more=more, codes=(3,))
    assert "it needs 4 nodes, and Slurm has 2" in err


KNEE = """#!/bin/bash
gpus=$(grep -m1 '^gpus' "$1/job.toml" | tr -dc 0-9)
echo "{\\"status\\": \\"done\\", \\"gpus\\": $gpus, \\"tokens_per_s\\": 100, \\"window_steps\\": 3,
       \\"step_times_s\\": [1.0, 1.001, 0.999]}" > "$1/record.json"
"""


def test_a_series_ends_at_its_knee_on_slurm_too(cluster: SlurmCluster, tmp_path: Path) -> None:
    grid, out, program = tmp_path / "grid.toml", tmp_path / "out", tmp_path / "knee.sh"
    grid.write_text(
        TINY.replace("global_batch = 4", "local_batch = 2") + "[[grid]]\ngpus = [1, 2, 4]\n", encoding="utf-8"
    )
    program.write_text(KNEE, encoding="utf-8")
    program.chmod(0o755)
    more = {"SLURM_CONF": str(cluster.conf)}
    sweep(
        grid, "--out", out, "--program", str(program), "--launcher", "slurm", "--until-knee", more=more, timeout_s=120
    )
    found = status(out, more)
    assert [one["state"] for one in found.values()] == ["done", "done", "cancelled"]
    assert found["0003"]["cause"] == "knee"
