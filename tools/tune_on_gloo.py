"""Tune a small model on this machine's processors with gloo, and hold the answer against all plans measured once.

    python tools/tune_on_gloo.py FOLDER [--steps N]

Needs torch. FOLDER/truth gets one run of every plan of the space (36 plans, 4 processes; about half a minute each).
FOLDER/tuned is tuned: during its first run one rank is killed, during its second the launcher is interrupted, and the
same command goes on. Both parts continue where they were. Prints the runs that were needed, and how far the chosen plan
is from the best one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOB = [
    *("llama-tiny", "--cluster", "cpu", "--gpus", "4", "--global-batch", "16", "--seq-len", "128"),
    *("--max-cp", "1", "--sharding", "ddp", "--sharding", "fsdp", "--recompute", "none", "--schedule", "1f1b"),
    *("--micro-batch", "1", "--micro-batch", "4", "--trace-steps", "0", "--knobs", "none"),
]
POLL_S = 0.5


def command(out: Path, steps: int, *more: str) -> list[str]:
    """One call of ``knee tune``."""
    return [sys.executable, "-m", "knee", "tune", "run", *JOB, "--steps", str(steps), "--out", str(out), *more]


def state_of(folder: Path) -> dict[str, Any]:
    """What the tuning last wrote."""
    try:
        found: dict[str, Any] = json.loads((folder / "standing.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"runs": []}
    return found


def running(folder: Path, number: int) -> dict[str, Any] | None:
    """The status of the n-th run once all its ranks train."""
    folders = sorted((folder / "runs").glob(f"{number:04d}-*"))
    try:
        status: dict[str, Any] = json.loads((folders[0] / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, IndexError):
        return None
    beats = len(list((folders[0] / "heartbeats").glob("*")))
    return status if status["state"] == "running" and status["pids"] and beats >= 4 else None


def ranks_of(run: Path) -> list[int]:
    """Processes that train a run: those whose command line names its folder, torchrun's own left out."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            str(run).encode() in words
            and b"knee.training.launch.rank" in words
            and b"torch.distributed.run" not in words
        ):
            found.append(int(process.name))
    return sorted(found)


def kill_a_rank(folder: Path) -> bool:
    """As a person or the kernel would."""
    if running(folder, 1) is None:
        return False
    ranks = ranks_of(sorted((folder / "runs").glob("0001-*"))[0])
    if len(ranks) < 4:
        return False
    os.kill(ranks[-1], signal.SIGKILL)
    print(f"killed rank process {ranks[-1]} of the first run")
    return True


def disturbed(out: Path, steps: int) -> None:
    """Tune with a killed rank, an interrupted launcher, and the same command again."""
    killed = (out.parent / "killed").exists()
    interrupted = (out.parent / "interrupted").exists()
    while True:
        child = subprocess.Popen(command(out, steps))
        while child.poll() is None:
            time.sleep(POLL_S)
            if not killed and kill_a_rank(out):
                killed = True
                (out.parent / "killed").write_text("")
            if not interrupted and running(out, 2) is not None:
                child.send_signal(signal.SIGINT)
                interrupted = True
                (out.parent / "interrupted").write_text("")
                print("interrupted the launcher in the second run")
        if child.returncode < 128:
            return


def rates(folder: Path) -> dict[str, float]:
    """Plan -> tokens/s per GPU."""
    runs = state_of(folder)["runs"]
    return {run["plan"]: run["tokens_per_s_per_gpu"] for run in runs if run["tokens_per_s_per_gpu"]}


def timed(part: str, work: Callable[[], object]) -> None:
    """Say how long a part took."""
    began = time.monotonic()
    work()
    print(f"{part}: {time.monotonic() - began:,.0f} s")


def main() -> None:
    """Measure, tune, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    truth, out = given.folder / "truth", given.folder / "tuned"
    timed("truth", lambda: subprocess.run(command(truth, given.steps, "--within", "0"), check=True))
    timed("tuning", lambda: disturbed(out, given.steps))
    known, state = rates(truth), state_of(out)
    best = max(known, key=lambda plan: known[plan])
    chosen = state["best_plan"]
    print(f"{len(known)} plans measured; best: {best}, {known[best]:,.0f} tokens/s per process")
    print(f"tuned in {len(state['runs'])} runs: {chosen}, {known[chosen]:,.0f} in the truth's run")
    print(f"{1 - known[chosen] / known[best]:.1%} below the best; stated bound {state['bound_frac']:.1%}")
    print(f"attempts of each run: {[run['attempts'] for run in state['runs']]}")


if __name__ == "__main__":
    main()
