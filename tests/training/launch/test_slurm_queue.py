"""A controller of Slurm that is away for a while: what runs is not taken for lost, and nothing is submitted twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from knee.training.launch.run_status import Status, read_status, write_status
from knee.training.launch.site import Site
from knee.training.launch.slurm_job import supervised_run
from knee.training.launch.sweep_folder import Sweep, SweepRun
from knee.training.sweeps.control import current_statuses, requeue
from knee.training.sweeps.slurm import (
    NoAnswer,
    QueuedJob,
    _room,
    final_states,
    job_name,
    refuse_while_queued,
    submit_missing,
)
from refusals import caught, kind, numbers

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
    entries = tuple(
        SweepRun(id=name, name=name, series="", gpus=2, nodes=1, per_node=2) for name in ("0001-a", "0002-b")
    )
    made = Sweep(
        folder=tmp_path / "out",
        name="grid",
        entries=entries,
        launcher="slurm",
        options={"until_knee": False, "pack": 1, "timeout_s": 60.0, "program": ["true"]},
    )
    for entry in entries:
        made.run(entry).mkdir(parents=True)
    made.write()
    return made


def submitted(sweep: Sweep) -> None:
    folder = sweep.folder / "slurm"
    folder.mkdir()
    for name, text in (
        ("0001.sbatch", ""),
        ("0001.runs.json", '[["0001-a"]]'),
        ("0001.job.json", '{"job": "7", "submitted_s": 1}'),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    write_status(sweep.run("0001-a"), Status(state="running", attempts=1, job="7_0"))


def test_what_runs_is_not_lost_while_slurm_does_not_answer(commands: Commands, sweep: Sweep, tmp_path: Path) -> None:
    submitted(sweep)
    commands(squeue=AWAY, sbatch="echo 8")
    found = current_statuses(sweep)["0001-a"]
    assert (found.state, found.words) == ("running", "Slurm does not respond; this is the last known state")
    with pytest.raises(NoAnswer):
        submit_missing(sweep, Site(), wait=False, say=print)
    assert read_status(sweep.run("0001-a")).state == "running"
    assert "sbatch" not in (tmp_path / "called").read_text(encoding="utf-8")
    # it answers again, and the job is gone
    commands()
    assert current_statuses(sweep)["0001-a"].cause == "lost_node"


def test_a_job_that_was_taken_though_sbatch_heard_nothing_is_found_by_its_name(
    commands: Commands, sweep: Sweep, tmp_path: Path
) -> None:
    commands(
        sbatch="echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    )
    with pytest.raises(NoAnswer):
        submit_missing(sweep, Site(), wait=False, say=print)
    commands(squeue='case "$*" in *%K*) echo "9_0|PENDING|Priority|"; echo "9_1|PENDING|Priority|";; *) echo 9;; esac')
    (tmp_path / "called").unlink()
    submit_missing(sweep, Site(), wait=False, say=print)
    assert "sbatch" not in (tmp_path / "called").read_text(encoding="utf-8")
    assert {status.job for status in current_statuses(sweep).values()} == {"9_0", "9_1"}


def test_a_job_that_ends_before_its_run_begins_is_read_from_its_own_log(commands: Commands, sweep: Sweep) -> None:
    submitted(sweep)
    write_status(sweep.run("0001-a"), Status())
    commands(scontrol="echo JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode")
    (sweep.folder / "slurm" / "7_0.log").write_text("ModuleNotFoundError: No module named 'numpy'\n", encoding="utf-8")
    submit_missing(sweep, Site(), wait=False, say=print)
    found = read_status(sweep.run("0001-a"))
    assert (found.state, found.cause) == ("failed", "software")
    assert found.words == "its job 7_0 ended before the run started: ModuleNotFoundError: No module named 'numpy'"
    # it is put back by hand, and the old job does not end it again
    assert requeue(sweep, ["failed"]) == 1
    assert current_statuses(sweep)["0001-a"].state == "pending"


def test_a_requeued_job_that_fails_at_once_does_not_stay_pending(commands: Commands, sweep: Sweep) -> None:
    submitted(sweep)
    write_status(sweep.run("0001-a"), Status(state="pending", cause="preempted", attempts=1, job="7_0"))
    commands(scontrol="echo JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode")
    found = current_statuses(sweep)["0001-a"]
    assert (found.state, found.cause, found.job) == ("failed", "lost_node", "7_0")


def test_a_run_that_is_to_be_tried_again_waits_for_its_next_job(commands: Commands, sweep: Sweep) -> None:
    submitted(sweep)
    write_status(sweep.run("0001-a"), Status(state="pending", cause="comm", attempts=1, job="7_0"))
    commands(scontrol="echo JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode")
    assert current_statuses(sweep)["0001-a"].state == "pending"


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
        "and/or time limits)",
    ],
)
def test_what_slurm_would_never_take_does_not_wait_for_room(commands: Commands, sweep: Sweep, said: str) -> None:
    commands(sbatch=f'echo "{said}" >&2; exit 1')
    assert caught(lambda: submit_missing(sweep, Site(), wait=True, say=print)).code == "refused-by-slurm"


def test_a_head_node_that_is_lost_is_named(commands: Commands, sweep: Sweep) -> None:
    submitted(sweep)
    write_status(sweep.run("0001-a"), Status(state="running", attempts=1, job="7_0", nodes=("n0", "n1")))
    commands(squeue="echo '7_0|PENDING|BeginTime|'", sinfo="echo 'n0 down*'; echo 'n1 idle'")
    found = current_statuses(sweep)["0001-a"]
    assert (found.state, found.cause, found.node) == ("pending", "lost_node", "n0")
    assert found.words == "waits in Slurm's queue: BeginTime; put back into the queue after: n0 failed"


def test_final_words_on_many_tasks_are_asked_for_at_once(commands: Commands, tmp_path: Path) -> None:
    commands(
        sacct="echo '7_0|COMPLETED'; echo '7_1|CANCELLED by 0'",
        scontrol="echo JobId=8 ArrayJobId=7 ArrayTaskId=2-998,1000%4 JobState=CANCELLED",
    )
    found = final_states(f"7_{task}" for task in range(1001))
    assert (found["7_0"], found["7_1"], found["7_998"], found.get("7_999")) == (
        "COMPLETED",
        "CANCELLED",
        "CANCELLED",
        None,
    )
    assert (tmp_path / "called").read_text(encoding="utf-8").split() == ["sacct", "scontrol"]
    commands(
        scontrol="echo JobId=7 ArrayJobId=7 ArrayTaskId=4294967294 JobState=CANCELLED; "
        "echo JobId=8 ArrayJobId=7 ArrayTaskId=0 JobState=FAILED"
    )
    assert final_states(["7_0", "7_1", "7_2"]) == {"7_0": "FAILED", "7_1": "CANCELLED", "7_2": "CANCELLED"}


def test_a_folder_that_is_moved_keeps_its_jobs(commands: Commands, sweep: Sweep, tmp_path: Path) -> None:
    commands(sbatch="echo 7")
    submit_missing(sweep, Site(), wait=False, say=print)
    before = job_name(sweep, 1)
    sweep.folder.rename(tmp_path / "moved")
    moved = replace(sweep, folder=tmp_path / "moved")
    assert job_name(moved, 1) == before
    commands(squeue=f"case \"$*\" in *{before}*) echo '7_0|RUNNING|None|n0'; echo '7_1|PENDING|Priority|';; esac")
    assert [status.words for status in current_statuses(moved).values()] == ["", "waits in Slurm's queue: Priority"]
    error = caught(lambda: refuse_while_queued(moved))
    assert kind(error) == ("folder-in-use", "launcher")
    assert numbers(error.message)[0] == 2


def test_no_more_jobs_than_may_run_where_arrays_cannot_say_so() -> None:
    entries = [SweepRun(id=str(n), name="", series="", gpus=n, nodes=n, per_node=1) for n in (1, 2)]
    assert _room(Site(max_running=1), {}, entries[:1]) is None
    assert _room(Site(max_running=1), {}, entries) == 1
    running = {"a": QueuedJob(name="7_0", submitted_s=0.0, state="RUNNING")}
    assert _room(Site(max_running=1), running, entries[:1]) == 0
    assert _room(Site(max_running=3, max_queued=2), running, entries) == 1


def test_a_cancelled_run_of_a_pack_says_so(sweep: Sweep, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    commands()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (sweep.run("0002-b") / "cancel").write_text("", encoding="utf-8")
    assert supervised_run(sweep.run("0002-b"), ["true"]) is None
    assert read_status(sweep.run("0002-b")).state == "cancelled"
