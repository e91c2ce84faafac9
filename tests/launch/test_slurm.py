"""Sweeps on a real Slurm cluster of two nodes, on this machine: every way a run ends, and everything that is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch.slurm_cluster import CannotStart, SlurmCluster
from tests.launch.sweeps import FEW, TINY, record, run_folder, start, status, step_of, sweep, until

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

SEVEN = TINY + """
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


@pytest.mark.xdist_group("slurm")
def test_every_status_of_a_sweep_over_two_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    grid, out, setup = tmp_path / "it's a grid.toml", tmp_path / "out's $HOME; `x`", tmp_path / "set up.sh"
    grid.write_text(SEVEN, encoding="utf-8")
    setup.write_text("ulimit -v 3000000\n", encoding="utf-8")
    more = {"SLURM_CONF": str(cluster.conf)}
    sweep(grid, "--launcher", "slurm", "--out", out, "--steps", "40", *FEW, "--gpus-per-node", "1", 
          "--timeout", "40", "--time", "10", "--setup", setup, "--env", f"PYTHONPATH={Path(__file__).parent}/stopping",
          "--env", "STOP_RUN=0007", "--partition", "main", "--wait", more=more, codes=(5,))
    found = status(out, more)
    assert {number: one["state"] for number, one in found.items()} == {
        "0001": "done", "0002": "done", "0003": "done", "0004": "done", "0005": "oom", "0006": "failed",
        "0007": "timeout"}
    assert found["0006"]["cause"] == "spec"
