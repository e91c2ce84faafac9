"""Sweeps from Python: results that equal the command's JSON, and errors with codes."""

from __future__ import annotations

import doctest
import json
import shlex
from pathlib import Path

import pytest

from knee.base.errors import DoesNotFit, InputError
from knee.commands.sweep import api as sweep_api
from knee.commands.sweep.api import cancel_sweep, prepare_sweep, retry_sweep, run_sweep, sweep_status
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site
from knee.training.launch.sweep_folder import SweepRun

from .sweeps import ask


def test_a_plan_equals_what_a_dry_run_prints(grid: Path, tmp_path: Path) -> None:
    plan = prepare_sweep(grid, out=tmp_path / "out", steps=20, program=["true"])
    words = (grid, "--out", tmp_path / "out", "--steps", "20", "--program", "true", "--dry-run", "--json")
    assert json.loads(ask(*words).stdout) == json.loads(json.dumps(plan.to_dict()))
    assert [bool(row["refused"]) for row in plan.rows()] == [False, True, False, False]
    assert not (tmp_path / "out").exists()


def test_a_sweep_from_its_start_to_another_try(grid: Path, tmp_path: Path, stub: str) -> None:
    out, seen = tmp_path / "out", []

    def on_run(number: int, count: int, entry: SweepRun, status: Status) -> None:
        seen.append((number, count, entry.gpus, status.state))

    plan = prepare_sweep(grid, out=out, program=shlex.split(stub), site=Site(env={"TOKEN": "secret"}))
    answer = run_sweep(plan, on_run=on_run)
    assert seen[:2] == [(1, 4, 1, "running"), (1, 4, 1, "done")]
    assert (answer.over, answer.failures, answer.signal) == (True, (), None)
    assert answer.totals.counts["done"] == 3
    assert json.loads(ask("status", out, "--json").stdout) == json.loads(json.dumps(sweep_status(out).to_dict()))
    assert cancel_sweep(out) == (0, 0)
    first = answer.sweep.entries[0].id
    again = retry_sweep(out, states=["done"], runs=[first])
    assert (again.requeued, again.statuses[first].attempts) == (1, 2)
    assert retry_sweep(out).requeued == 0


def test_what_is_wrong_has_a_code_and_a_field(grid: Path, tmp_path: Path, stub: str) -> None:
    program = shlex.split(stub)

    def refused(**options: object) -> tuple[str, str | None]:
        with pytest.raises(InputError) as error:
            run_sweep(prepare_sweep(grid, out=tmp_path / "out", program=program, **options))  # type: ignore[arg-type]
        return error.value.code, error.value.field

    assert refused(timeout_s=0.0) == ("out-of-range", "timeout_s")
    assert refused(max_gpu_hours=0.0) == ("too-many-gpu-hours", "max_gpu_hours")
    assert refused(launcher="torchrun") == ("missing-argument", "hosts")
    assert refused(site=Site(container="i", container_runtime="pyxis")) == ("contradiction", "container_runtime")
    with pytest.raises(DoesNotFit) as error:
        run_sweep(prepare_sweep(grid, out=tmp_path / "out", program=program, overrides={"gpus": 3}))
    assert error.value.code == "no-run-can-start"
    run_sweep(prepare_sweep(grid, out=tmp_path / "out", program=program))
    assert refused(overrides={"gpus": 1}) == ("another-sweep", "out")
    for options, code in (({"states": ["running"]}, "not-ended"), ({"runs": ["0001"]}, "unknown-run")):
        with pytest.raises(InputError) as wrong:
            retry_sweep(tmp_path / "out", **options)  # type: ignore[arg-type]
        assert wrong.value.code == code


def test_examples_are_true() -> None:
    assert doctest.testmod(sweep_api) == (0, 3)
