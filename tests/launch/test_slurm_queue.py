"""A controller of Slurm that is away for a while: what runs is not taken for lost, and nothing is submitted twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from knee.launch.folder import Entry, Sweep
from knee.launch.now import statuses_now
from knee.launch.site import Site
from knee.launch.slurm import go_on_slurm
from knee.launch.slurm_queue import NoAnswer
from knee.launch.status import Status, read_status, write_status

AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
Commands = Callable[..., None]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Stand-ins for Slurm's commands, each a line of shell; those not named print nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**lines: str) -> None:
        for name in ("squeue", "sbatch", "scancel", "scontrol", "sacct", "sinfo"):
            path = folder / name
            path.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/called\n{lines.get(name, ':')}\n", encoding="utf-8")
            path.chmod(0o755)

    return make


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    entries = tuple(Entry(id=name, name=name, series="", gpus=2, nodes=1, per_node=2) for name in ("0001-a", "0002-b"))
    made = Sweep(folder=tmp_path / "out", name="grid", entries=entries, launcher="slurm",
                 options={"until_knee": False, "pack": 1, "timeout_s": 60.0, "program": ["true"]})
    for entry in entries:
        made.run(entry).mkdir(parents=True)
    made.write()
    return made


def submitted(sweep: Sweep) -> None:
    folder = sweep.folder / "slurm"
    folder.mkdir()
    for name, text in (("0001.sbatch", ""), ("0001.runs.json", '[["0001-a"]]'), ("0001.job.json", '{"job": "7"}')):
        (folder / name).write_text(text, encoding="utf-8")
    write_status(sweep.run("0001-a"), Status(state="running", attempts=1, job="7_0"))


def test_what_runs_is_not_lost_while_slurm_does_not_answer(commands: Commands, sweep: Sweep, tmp_path: Path) -> None:
    submitted(sweep)
    commands(squeue=AWAY, sbatch="echo 8")
    found = statuses_now(sweep)["0001-a"]
    assert (found.state, found.words) == ("running", "Slurm does not answer; this is what was last written down")
    with pytest.raises(NoAnswer, match="Slurm does not answer"):
        go_on_slurm(sweep, Site(), wait=False, tell=print)
    assert read_status(sweep.run("0001-a")).state == "running"
    assert "sbatch" not in (tmp_path / "called").read_text(encoding="utf-8")
    # it answers again, and the job is gone
    commands()
    assert statuses_now(sweep)["0001-a"].cause == "lost_node"


def test_a_job_that_was_taken_though_sbatch_heard_nothing_is_found_by_its_name(
    commands: Commands, sweep: Sweep, tmp_path: Path
) -> None:
    commands(sbatch="echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; "
                    "exit 1")
    with pytest.raises(NoAnswer):
        go_on_slurm(sweep, Site(), wait=False, tell=print)
    commands(squeue='case "$*" in *%K*) echo "9_0|PENDING|Priority|"; echo "9_1|PENDING|Priority|";; *) echo 9;; esac')
    (tmp_path / "called").unlink()
    go_on_slurm(sweep, Site(), wait=False, tell=print)
    assert "sbatch" not in (tmp_path / "called").read_text(encoding="utf-8")
    assert {status.job for status in statuses_now(sweep).values()} == {"9_0", "9_1"}
