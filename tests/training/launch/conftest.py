"""What tests of sweeps start in place of the trainer, a grid of four points, and that nothing outlives the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import left_over
from .sweeps import LIMIT_S, SOURCES, TINY, program


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_over() -> Iterator[str]:
    """What tests start is ended with them, also where they are killed; the word by which it is known."""
    token = str(os.getpid())
    os.environ[left_over.VARIABLE] = token
    quiet = {name: value for name, value in os.environ.items() if name != left_over.VARIABLE}
    with subprocess.Popen(
        [sys.executable, left_over.__file__, token], stdin=subprocess.PIPE, env=quiet, start_new_session=True
    ) as guard:
        assert guard.stdin is not None
        yield token
        del os.environ[left_over.VARIABLE]
        guard.stdin.close()
        guard.wait(timeout=LIMIT_S)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that tests start: these sources, one thread, and no rank of another run."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stub(tmp_path: Path) -> str:
    """A program with a name that shells trip over."""
    return program(tmp_path / "it's a stub; $HOME.sh")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / 'grid\'s "own".toml'
    path.write_text(TINY + "[[grid]]\ngpus = [1, 2]\nplan = { tp = [1, 2] }\n", encoding="utf-8")
    return path
