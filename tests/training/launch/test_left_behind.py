"""What killed launchers, copied folders and signals between runs leave behind, and who sees to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from knee.base.processes import process_key
from knee.commands.sweep import text as sweep_tables
from knee.training.launch.run_status import Status, read_status
from knee.training.launch.site import Site
from knee.training.launch.sweep_folder import SweepRun, new_attempt, with_usage
from knee.training.launch.terminate import end_ranks
from knee.training.sweeps.run_local import living_processes, signal_on_hosts

from . import left_over
from .sweeps import LIMIT_S, NEVER, TINY, ended, run_folder, running, start, states, status, sweep, until


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(TINY + "[[grid]]\ngpus = 1\nseq_len = [32, 36, 40]\n", encoding="utf-8")
    return path


def test_a_signal_between_runs_is_heard(grid: Path, tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_line = sweep_tables.run_line

    def interrupted(number: int, count: int, entry: SweepRun, status: Status) -> str:
        if status.state == "done":
            os.kill(os.getpid(), signal.SIGINT)
        return run_line(number, count, entry, status)

    monkeypatch.setattr(sweep_tables, "run_line", interrupted)
    out = tmp_path / "out"
    _, err = sweep(grid, "--out", out, "--program", stub, codes=(130,))
    assert "interrupted: the same command continues" in err
    assert list(states(out).values()) == ["done", "pending", "pending"]


def test_what_a_killed_launcher_has_started_goes_on_and_is_taken_up(grid: Path, tmp_path: Path, stub: str) -> None:
    out, go = tmp_path / "out", tmp_path / "go"
    words = (grid, "--out", out, "--program", stub, "--env", f"STUB_UNTIL={go}")
    with start(*words) as first:
        until(lambda: running(out), "a run runs", by=first)
        first.kill()
        ended(first, code=-signal.SIGKILL)
    assert list(states(out).values()) == ["running", "pending", "pending"]
    with start(*words) as second:
        go.touch()
        ended(second, code=0)
    assert {(one["state"], one["attempts"]) for one in status(out).values()} == {("done", 1)}


def test_cancel_ends_what_a_killed_launcher_has_started_and_not_what_a_copy_tells_of(
    grid: Path, tmp_path: Path, stub: str
) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with start(grid, "--out", out, "--program", stub, "--env", NEVER) as process:
        until(lambda: running(out), "a run runs", by=process)
        shutil.copytree(out, copy, symlinks=True)
        run, other = run_folder(out, "0001"), run_folder(copy, "0001")
        assert living_processes(run, read_status(run))
        assert not living_processes(other, read_status(other))
        sweep("cancel", copy)
        assert status(out)["0001"]["state"] == "running"
        process.kill()
        ended(process, code=-signal.SIGKILL)
    pid = status(out)["0001"]["pids"][0][0]
    assert process_key(pid) is not None
    sweep("cancel", out)
    assert process_key(pid) is None
    assert set(states(out).values()) == {"cancelled"}
    assert status(out)["0001"]["gpu_h"] > 0


def test_gpu_hours_of_an_attempt_end_with_its_last_sign_of_life(tmp_path: Path) -> None:
    entry = SweepRun(id="a", name="a", series="", gpus=8, nodes=1, per_node=8)
    (tmp_path / "record.json").write_text('{"power_w_per_gpu": 500}', encoding="utf-8")
    ended_s = (tmp_path / "record.json").stat().st_mtime
    begun = Status(state="running", started_s=ended_s - 360, gpu_h=0.5)
    found = with_usage(begun, entry, tmp_path)
    assert found.gpu_h == pytest.approx(0.5 + 0.8)
    assert found.energy_j == pytest.approx(500 * 8 * 360)
    assert with_usage(Status(), entry, tmp_path) == Status()


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
    found = process_key(process.pid)
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
    (tmp_path / "sweep" / "python" / "knee").symlink_to(Path(__file__).parents[3] / "src" / "knee")
    signal_on_hosts(Site(hosts=("a",), via="env HOST={host}"), run, ("a",), signal.SIGTERM)
    assert rank.wait(timeout=LIMIT_S) == -signal.SIGTERM
    assert end_ranks(run, signal.SIGTERM) == 0


def test_what_killed_tests_have_started_is_ended(tmp_path: Path) -> None:
    """Also what has left its parent's group and session, as daemons do."""
    token = f"{os.getpid()}-{tmp_path.name}"
    names = os.environ | {left_over.VARIABLE: token}
    with (
        subprocess.Popen(["sleep", "infinity"], env=names, start_new_session=True) as daemon,
        subprocess.Popen([sys.executable, left_over.__file__, token], stdin=subprocess.PIPE) as guard,
    ):
        until(lambda: daemon.pid in left_over.processes_of(token), "it has begun")
        assert guard.stdin is not None
        guard.stdin.close()  # as the kernel does, of a process that is killed
        assert daemon.wait(timeout=LIMIT_S) == -signal.SIGKILL
        assert guard.wait(timeout=LIMIT_S) == 0
