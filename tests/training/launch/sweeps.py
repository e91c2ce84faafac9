"""What tests of sweeps share: the command, in this process or in one of its own, and waiting for what a run does."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner, Result

import refusals
from knee.base.errors import InputError
from knee.commands.main import main
from knee.training.launch.sweep_folder import SweepRun

SOURCES = Path(__file__).parents[3] / "src"
LIMIT_S = 1200.0
"""Against a test that never ends, and nothing else: no test takes this long on any machine."""
TINY = """
[common]
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
global_batch = 4
seq_len = 32
"""
FEW = ("--steps", "4", "--warmup", "1", "--trace-steps", "0")
STUB = """#!/bin/bash
# in place of the trainer: says in its run's folder that it has begun; where STUB_UNTIL names a file, it waits for that
trap 'kill $!; exit 143' TERM
touch "$1/begun"
until [ -z "$STUB_UNTIL" ] || [ -e "$STUB_UNTIL" ]; do sleep 0.1 & wait $!; done
echo '{"status": "done"}' > "$1/record.json"
"""
KNEE = """#!/bin/bash
# twice the GPUs, but no more tokens
gpus=$(grep -m1 '^gpus' "$1/job.toml" | tr -dc 0-9)
echo "{\\"status\\": \\"done\\", \\"gpus\\": $gpus, \\"tokens_per_s\\": 100, \\"window_steps\\": 3,
       \\"step_times_s\\": [1.0, 1.001, 0.999]}" > "$1/record.json"
"""
BEGUN = "runs/*/begun"
"""Of each run whose stub has begun, in a sweep's folder: its status says "running" a moment earlier."""
NEVER = "STUB_UNTIL=/no/such/file"


def program(path: Path, text: str = STUB) -> str:
    """Make a program, and say how a command line names it."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return shlex.quote(str(path))


def start(*words: str | Path) -> subprocess.Popen[str]:
    """The command in a process of its own: for tests that kill it, or that need two at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "knee", "sweep", *map(str, words)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def ended(process: subprocess.Popen[str], *, code: int) -> tuple[str, str]:
    """Wait for the end of a command that was started; its stdout and stderr."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, f"code {process.returncode}\n{out}\n{err}"
    return out, err


def ask(*words: str | Path) -> Result:
    """The command in this process, to its end."""
    line = ["sweep", *map(str, words)]
    with patch.object(sys, "argv", ["knee", *line]):  # a sweep writes down the command that made it
        return CliRunner().invoke(main, line)


def sweep(*words: str | Path, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
    """Run the command to its end; stdout and stderr."""
    result = ask(*words)
    assert result.exit_code in codes, f"code {result.exit_code}\n{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def refused(*words: str | Path) -> InputError:
    """The error of a mistake."""
    with patch.object(sys, "argv", ["knee", "sweep", *map(str, words)]):
        _, error = refusals.ended("sweep", *words)
    assert isinstance(error, InputError), error.message
    return error


def status(folder: Path) -> dict[str, dict[str, Any]]:
    """Run's number in the grid -> its status, with its id and folder."""
    data = json.loads(sweep("status", folder, "--json")[0])
    return {run["id"][:4]: run["status"] | {"id": run["id"], "folder": run["folder"]} for run in data["runs"]}


def states(folder: Path) -> dict[str, str]:
    """Run's number in the grid -> its state; nothing where there is no sweep yet."""
    if not (folder / "sweep.json").exists():
        return {}
    return {number: one["state"] for number, one in status(folder).items()}


def running(folder: Path) -> bool:
    """Whether some run's processes are known."""
    if not (folder / "sweep.json").exists():
        return False
    return any(one["state"] == "running" and (one["pids"] or one["job"]) for one in status(folder).values())


def over(folder: Path) -> bool:
    """Whether all runs have ended, one way or another."""
    return not {"pending", "running"} & set(states(folder).values())


def until(met: Callable[[], Any], what: str, *, by: subprocess.Popen[str] | None = None) -> Any:
    """Wait for what is to happen, as long as ``by``, the process that is to bring it about, lives."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        alive = by is None or by.poll() is None
        found = met()
        if found:
            return found
        assert alive, f"{by.args} ended, and not yet: {what}\n{by.communicate()}"  # type: ignore[union-attr]
        time.sleep(0.05)
    raise AssertionError(f"not within {LIMIT_S:g} s: {what}")


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


def an_entry(**changes: object) -> SweepRun:
    known: dict[str, object] = {"id": "0001-m-g2-0", "name": "n", "series": "s", "gpus": 2, "nodes": 2, "per_node": 1}
    return SweepRun(**(known | changes))  # type: ignore[arg-type]
