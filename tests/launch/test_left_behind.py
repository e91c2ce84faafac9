"""What killed launchers, copied folders and signals between runs leave behind, and who sees to it."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from knee.launch.end import end_ranks
from knee.launch.folder import Entry, new_attempt
from knee.launch.here import end_on_hosts, living
from knee.launch.processes import known
from knee.launch.site import Site
from knee.launch.spent import accounted
from knee.launch.status import Status, read_status

from .sweeps import TINY, run_folder, start, status, sweep, until


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(TINY + f"[[grid]]\ngpus = 1\nseq_len = {[4 * n for n in range(8, 48)]}\n", encoding="utf-8")
    return path


def running(out: Path) -> bool:
    return (out / "sweep.json").exists() and any(
        one["state"] == "running" and one["pids"] for one in status(out).values()
    )


def test_a_signal_between_runs_is_heard(grid: Path, tmp_path: Path, stub: str) -> None:
    out = tmp_path / "out"
    with start(grid, "--out", out, "--program", stub) as process:
        until(lambda: len(list(out.glob("runs/*/record.json"))) > 2, "some runs have ended")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    states = {one["state"] for one in status(out).values()}
    assert states == {"done", "pending"}


def test_cancel_ends_what_a_killed_launcher_has_started(grid: Path, tmp_path: Path, stub: str) -> None:
    out = tmp_path / "out"
    with start(grid, "--out", out, "--program", stub, "--env", "STUB_S=300") as process:
        until(lambda: running(out), "a run runs")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    pid = status(out)["0001"]["pids"][0][0]
    time.sleep(1)
    sweep("cancel", out)
    assert known(pid) is None
    found = status(out)
    assert {one["state"] for one in found.values()} == {"cancelled"}
    assert found["0001"]["gpu_h"] > 1 / 3600


def test_a_copy_leaves_the_runs_of_the_original_alone(grid: Path, tmp_path: Path, stub: str) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with start(grid, "--out", out, "--program", stub, "--env", "STUB_S=300") as process:
        until(lambda: running(out), "a run runs")
        shutil.copytree(out, copy, symlinks=True)
        run, other = run_folder(out, "0001"), run_folder(copy, "0001")
        assert living(run, read_status(run))
        assert not living(other, read_status(other))
        sweep("cancel", copy)
        assert status(out)["0001"]["state"] == "running"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_gpu_hours_of_an_attempt_end_with_its_last_sign_of_life(tmp_path: Path) -> None:
    entry = Entry(id="a", name="a", series="", gpus=8, nodes=1, per_node=8)
    (tmp_path / "record.json").write_text('{"power_w_per_gpu": 500}', encoding="utf-8")
    ended_s = (tmp_path / "record.json").stat().st_mtime
    begun = Status(state="running", started_s=ended_s - 360, gpu_h=0.5)
    found = accounted(begun, entry, tmp_path)
    assert found.gpu_h == pytest.approx(0.5 + 0.8)
    assert found.energy_j == pytest.approx(500 * 8 * 360)
    assert accounted(Status(), entry, tmp_path) == Status()


def test_no_attempt_is_overwritten(tmp_path: Path) -> None:
    for number in range(3):
        new_attempt(tmp_path, 0)  # as after a status that could not be read
        (tmp_path / "logs" / "rank0.log").write_text(str(number), encoding="utf-8")
    new_attempt(tmp_path, 1)
    kept = {path.parts[-3]: path.read_text(encoding="utf-8") for path in tmp_path.glob("attempts/*/logs/*.log")}
    assert sorted(kept.values()) == ["0", "1", "2"]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a run's folder knows as its rank 0."""
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    (tmp_path / "sweep" / "runs" / "r" / "environment").mkdir(parents=True)
    found = known(process.pid)
    assert found is not None
    plain = {"host": socket.gethostname(), "pid": found[0], "began": found[1]}
    (tmp_path / "sweep" / "runs" / "r" / "environment" / "rank0.json").write_text(json.dumps(plain), encoding="utf-8")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_ranks_are_ended_on_their_hosts(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A signal to what leads to a host would end that alone."""
    run = tmp_path / "sweep" / "runs" / "r"
    (tmp_path / "sweep" / "python").mkdir()
    (tmp_path / "sweep" / "python" / "knee").symlink_to(Path(__file__).parents[2] / "src" / "knee")
    end_on_hosts(Site(hosts=("a",), via="env HOST={host}"), run, ("a",), signal.SIGTERM)
    assert rank.wait(timeout=20) == -signal.SIGTERM
    assert end_ranks(run, signal.SIGTERM) == 0
