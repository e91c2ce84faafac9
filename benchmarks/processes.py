"""What a whole process costs: wall clock, CPU and peak memory, its children included."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Of one process."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    printed: str


@contextmanager
def fresh_environment() -> Iterator[dict[str, str]]:
    """The environment of a new installation: knee's caches are empty, and bytecode is written once and then reused."""
    with tempfile.TemporaryDirectory() as folder:
        yield os.environ | {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(Path(folder) / "bytecode"),
            "XDG_CACHE_HOME": str(Path(folder) / "cache"),
        }


def cost(command: list[str], env: dict[str, str]) -> Cost:
    """Run a command once; one that fails ends the benchmark."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: exit {process.returncode}")
    return Cost(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, printed)


def best_cost(command: list[str], env: dict[str, str], runs: int) -> Cost:
    """The least time and the most memory of some runs; the first one writes bytecode and fills the disk's cache."""
    costs = [cost(command, env) for _ in range(runs)]
    wall_s, cpu_s = min(one.wall_s for one in costs), min(one.cpu_s for one in costs)
    return Cost(wall_s, cpu_s, max(one.peak_mb for one in costs), costs[0].printed)


def knee(*arguments: str) -> list[str]:
    """The command line of knee."""
    return [sys.executable, "-m", "knee", *arguments]
