"""A thousand runs of a stub program: planning, status and going on each take seconds, also while runs are written."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from .sweeps import start, status, sweep, until

GRID = """
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
gpus = [1, 2, 4, 8]
local_batch = 2
seq_len = {lengths}
plan = {{ recompute = ["none", "full"], prefetch = [0, 1, 2, 3, 4] }}
"""
STUB = """#!/bin/sh
# a record as short as `knee sweep` needs it
echo "{\\"status\\": \\"done\\", \\"kind\\": \\"measured\\"}" > "$1/record.json"
"""
SECONDS = 30.0
"""What planning, status and going on may take where many other things run beside; alone each takes 1 to 3."""


def test_a_thousand_runs(tmp_path: Path) -> None:
    grid, out, stub = tmp_path / "grid.toml", tmp_path / "out", tmp_path / "a stub.sh"
    grid.write_text(GRID.format(lengths=[4 * n for n in range(8, 33)]), encoding="utf-8")
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    words = (grid, "--out", out, "--program", f"'{stub}'", *("--steps", "6"))
    began_s = time.monotonic()
    planned, _ = sweep(*words, "--dry-run", "--json")
    assert json.loads(planned)["runs_to_start"] == 1000
    assert time.monotonic() - began_s < SECONDS
    with start(*words) as process:
        until(lambda: len(list(out.glob("runs/*/record.json"))) > 20, "some runs have ended")
        for _ in range(3):  # while it is written
            began_s = time.monotonic()
            states = {one["state"] for one in status(out).values()}
            assert time.monotonic() - began_s < SECONDS
            assert states <= {"pending", "running", "done"}
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = list(status(out).values())
    done = sum(one["state"] == "done" for one in before)
    assert 20 < done < 1000
    began_s = time.monotonic()
    with start(*words) as process:
        until(lambda: sum(1 for _ in out.glob("runs/*/record.json")) > done + 1, "it goes on", seconds=SECONDS)
        assert time.monotonic() - began_s < SECONDS
        process.communicate(timeout=300)
    assert process.returncode == 0
    after = list(status(out).values())
    assert {one["state"] for one in after} == {"done"}
    # what was done was not done again, and what was under way when the launcher was killed lost nothing
    assert sum(one["attempts"] for one in after) <= 1001
    began_s = time.monotonic()
    sweep(*words)
    assert time.monotonic() - began_s < SECONDS
