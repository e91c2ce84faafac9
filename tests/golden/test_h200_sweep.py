"""A sweep on a real GPU, as it was left: done, out of the GPU's memory, and stopped; held against the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from knee.commands.main import main
from knee.training.launch.failures import diagnose
from knee.training.launch.run_status import Status
from knee.training.launch.sweep_folder import read_sweep

SWEEP = Path(__file__).parents[2] / "data" / "h200" / "sweep"


@pytest.fixture(scope="module")
def statuses() -> dict[str, Status]:
    return {name[:4]: status for name, status in read_sweep(SWEEP).statuses().items()}


def test_how_each_run_ended(statuses: dict[str, Status]) -> None:
    assert [(one.state, one.cause) for one in statuses.values()] == [
        ("done", ""),
        ("done", ""),
        ("done", ""),
        ("oom", "memory"),
        ("timeout", "hang"),
    ]
    assert all(one.gpu_h > 0 for one in statuses.values())
    assert all((one.energy_j or 0) > 0 for one in statuses.values() if one.state == "done")


def test_cuda_out_of_memory_is_read_from_what_the_run_left() -> None:
    run = next((SWEEP / "runs").glob("0004-*"))
    found = diagnose(run, (1,))
    assert (found.state, found.cause, found.memory, found.rank) == ("oom", "memory", "device", 0)
    assert "CUDA out of memory" in found.words


def test_the_simulator_expects_what_was_measured() -> None:
    result = CliRunner().invoke(main, ["validate", str(SWEEP), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["all"]
    assert found["throughput"]["points"] == 3
    assert found["throughput"]["worst_frac"] < 0.05
    assert found["memory"]["worst_frac"] < 0.15
    assert found["fitting"]["ok"] == {"fits": 3, "does_not": 0}
    assert found["fitting"]["oom"] == {"fits": 0, "does_not": 1}
