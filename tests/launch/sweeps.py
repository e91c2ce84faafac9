"""What tests of sweeps share: the command in a process of its own, and waiting for what a run does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from knee.cli import main
from knee.launch.folder import Entry

SOURCES = Path(__file__).parents[2] / "src"
TINY = """
[common]
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
global_batch = 4
seq_len = 32
"""
FEW = ("--trace-steps", "0")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    found = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"} | dict(more or {})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        found.pop(name, None)
    return found


def start(*words: str | Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "knee", "sweep", *map(str, words)],
        env=environment(more),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def sweep(
    *words: str | Path, more: Mapping[str, str] | None = None, codes: tuple[int, ...] = (0,), timeout_s: float = 400
) -> tuple[str, str]:
    """Run the command to its end; stdout and stderr."""
    with start(*words, more=more) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode in codes, f"code {process.returncode}\n{out}\n{err}"
    return out, err


def status(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Run's number in the grid -> its status, with its id and folder."""
    data = json.loads(sweep("status", folder, "--json", more=more)[0])
    return {run["id"][:4]: run["status"] | {"id": run["id"], "folder": run["folder"]} for run in data["runs"]}


def until(met: Callable[[], Any], what: str, *, seconds: float = 240.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = met()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def step_of(run: Path, rank: int = 0) -> int:
    try:
        return int(json.loads((run / "heartbeats" / f"rank{rank}.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return 0


def run_folder(folder: Path, number: str) -> Path:
    return next((folder / "runs").glob(f"{number}-*"))


def record(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "record.json").read_text(encoding="utf-8"))
    return found


def ask(*words: str | Path) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, ["sweep", *map(str, words)])


def refused(*words: str | Path) -> str:
    """What is said of a mistake."""
    result = ask(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


def an_entry(**changes: object) -> Entry:
    known: dict[str, object] = {"id": "0001-m-g2-0", "name": "n", "series": "s", "gpus": 2, "nodes": 2, "per_node": 1}
    return Entry(**(known | changes))  # type: ignore[arg-type]
