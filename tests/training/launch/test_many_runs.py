"""A thousand runs: planning, status and going on take time in proportion to them, and nothing is done twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from knee.training.launch.run_status import Status, write_status
from knee.training.launch.sweep_folder import read_sweep
from knee.training.sweeps import run_local as here
from lanes import nightly

from .sweeps import STUB, program, status, sweep

GRID = """
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
gpus = {gpus}
local_batch = 2
seq_len = {lengths}
plan = {{ recompute = ["none", "full"], prefetch = [0, 1, 2, 3, 4] }}
"""
MOST = 3.0
"""Times as long for each run as where there are a tenth of them: linear, with room for what caches do."""


@nightly
def test_a_thousand_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (swept(tmp_path / str(len(gpus)), gpus, monkeypatch) for gpus in ([1], [1, 2, 4, 8]))
    assert (few.pop("runs"), many.pop("runs")) == (100, 1000)
    assert all(many[what] < 10 * MOST * few[what] for what in few), (few, many)


def swept(folder: Path, gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Runs, and the processor's seconds for each thing that is done with all of them."""
    folder.mkdir()
    grid, out = folder / "grid.toml", folder / "out"
    lengths = [4 * n for n in range(8, 18 if gpus == [1] else 33)]
    grid.write_text(GRID.format(gpus=gpus, lengths=lengths), encoding="utf-8")
    words = (grid, "--out", out, "--program", program(folder / "a stub.sh", STUB), "--steps", "6")
    took_s: dict[str, float] = {}
    with monkeypatch.context() as patched:
        patched.setattr(here, "start_missing", lambda *_, **__: None)  # all is written, and nothing begun
        took_s["plan"] = seconds(lambda: sweep(*words))
    for entry in read_sweep(out).entries[3:]:
        run = out / "runs" / entry.id
        (run / "record.json").write_text(json.dumps({"status": "done"}), encoding="utf-8")
        write_status(run, Status(state="done", attempts=1))
    took_s["status"] = seconds(lambda: status(out))
    took_s["go on"] = seconds(lambda: sweep(*words))
    after = list(status(out).values())
    assert {(one["state"], one["attempts"]) for one in after} == {("done", 1)}  # what was done was not done again
    return took_s | {"runs": len(after)}


def seconds(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s
