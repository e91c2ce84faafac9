"""Real collectives between gloo processes, interrupted and gone on with. That launches agree is held by recordings
(``hardware_fit/test_links.py``): what other work on this machine does to a time says nothing about the probe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from knee.measure.hardware_fit.links import fit_links
from knee.measure.machine.collective_grid import COLLECTIVES
from knee.measure.machine.readings import Record, read_readings
from waiting import LIMIT_S, until

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

READINGS = "mine.collectives.jsonl"


def start(folder: Path, **more: str) -> subprocess.Popen[str]:
    """Two ranks."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"} | more
    command = [sys.executable, str(Path(__file__).with_name("probe_worker.py")), "--max-size", "4 MiB"]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probe")


@pytest.fixture(scope="module")
def kept(folder: Path) -> list[Record]:
    """What is left of a probe that is interrupted in the middle of its first series."""
    path = folder / READINGS
    with start(folder, HELD="yes") as process:
        until(lambda: path.exists() and len(path.read_text(encoding="utf-8").splitlines()) > 1, of=process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert "the same command continues" in err
    return list(read_readings(path).records)


@pytest.fixture(scope="module")
def rest(folder: Path, kept: list[Record]) -> tuple[str, str]:
    """What the same command says then."""
    with start(folder) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert f"has {len(kept)} readings already" in err
    return out, err


@pytest.mark.usefixtures("rest")
def test_an_interrupted_probe_goes_on(folder: Path, kept: list[Record]) -> None:
    records = read_readings(folder / READINGS).records
    assert len(kept) == 4  # the sizes of one collective
    assert list(records[:4]) == kept
    assert len({record["key"] for record in records}) == len(records) == 4 * len(COLLECTIVES) + 1  # one beside products


def test_every_collective_works_and_is_fitted(folder: Path, rest: tuple[str, str]) -> None:
    readings = read_readings(folder / READINGS)
    assert not readings.failed
    assert {fit.collective for fit in fit_links(readings)} == set(COLLECTIVES)
    assert "node.hop_s" in rest[0]
    assert "Warning" not in rest[1]
