"""What is said of a sweep's runs: nodes that are at fault, and the energy that was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from knee.base.errors import Incomplete, as_flags
from knee.commands.sweep.result import SweepStatus
from knee.commands.sweep.text import print_status
from knee.training.launch.run_status import Status
from knee.training.launch.sweep_folder import Sweep, SweepRun
from refusals import numbers


def swept(launcher: str, *statuses: Status) -> SweepStatus:
    entries = tuple(
        SweepRun(id=f"{i:04d}", name="n", series="s", gpus=1, nodes=1, per_node=1) for i in range(len(statuses))
    )
    sweep = Sweep(folder=Path("out"), name="s", entries=entries, launcher=launcher)
    return SweepStatus(
        sweep=sweep, statuses={entry.id: status for entry, status in zip(entries, statuses, strict=True)}
    )


def test_only_a_nodes_own_faults_are_held_against_it() -> None:
    bad = [Status(state="failed", cause=cause, node="bad") for cause in ("lost_node", "bad_node")]
    others = [Status(state="failed", cause=cause, node="good") for cause in ("error", "comm", "software", "disk")]
    answer = swept(
        "slurm",
        *bad,
        *others,
        Status(state="timeout", cause="hang", node="bad"),
        Status(state="oom", cause="memory", node="good"),
    )
    assert answer.totals.bad_nodes == {"bad": 3}


def test_failed_runs_are_said_with_how_to_start_them_again() -> None:
    swept("local", Status(state="done"), Status(state="skipped", cause="knee")).check_done()
    answer = swept("local", Status(state="done"), Status(state="oom"), Status(state="failed", cause="error"))
    with pytest.raises(Incomplete) as caught:
        answer.check_done()
    assert numbers(caught.value.message)[:2] == [2, 3]
    assert "retry_sweep('out', states=['failed', 'oom'])" in str(caught.value.hint)
    with as_flags(), pytest.raises(Incomplete) as caught:
        answer.check_done()
    assert "`knee sweep retry out --status failed,oom`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("launcher", "advice"),
    [
        ("slurm", "1 run failed because of n1: check that node, or exclude it (--exclude)\n"),
        ("torchrun", "1 run failed because of n1: check that node, or remove it from --hosts\n"),
        ("local", "1 run failed because of n1: check that node\n"),
    ],
)
def test_a_node_is_left_out_as_its_launcher_can(launcher: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_status(swept(launcher, Status(state="failed", cause="bad_node", node="n1")))
    assert capsys.readouterr().out.endswith(advice)


def test_energy_says_of_how_many_runs_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    measured, not_measured = Status(state="done", attempts=1, energy_j=3.6e6), Status(state="failed", attempts=1)
    print_status(swept("local", measured, not_measured, Status()))  # one has not begun
    assert "energy: 1.000 kWh (measured in 1 of 2 runs)" in capsys.readouterr().out
    print_status(swept("local", measured, measured, Status()))
    assert "energy: 2.000 kWh\n" in capsys.readouterr().out
    print_status(swept("local", not_measured))
    assert "energy: not measured" in capsys.readouterr().out
