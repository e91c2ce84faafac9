"""The state files of a sweep: what `knee sweep status`, `cancel`, `retry` and a sweep that goes on find in a folder."""

from __future__ import annotations

import json
import socket
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutate, values
from fuzz.case import Case, Kind
from fuzz.documents import encoded, json_text

DATA = Path(__file__).parents[3] / "data" / "h200" / "sweep"
STATES = ("pending", "running", "running", "done", "oom", "failed", "timeout", "cancelled")


@cache
def state() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A sweep of two runs, one run's status, and a record."""
    sweep = json.loads((DATA / "sweep.json").read_text(encoding="utf-8"))
    sweep["entries"] = sweep["entries"][:2]
    run = next(DATA.glob("runs/0004*"))
    found = [json.loads((run / name).read_text(encoding="utf-8")) for name in ("status.json", "record.json")]
    return sweep, found[0], found[1]


def _status(rng: Random) -> dict[str, Any]:
    status = mutate.copied(state()[1])
    status["state"] = rng.choice(STATES)
    if rng.random() < 0.5:
        status |= {
            "host": socket.gethostname(),
            "pids": [[rng.choice((1, 0, -1, 2**22 + 5, 2**40, 99999)), rng.choice((0, 1, 5**9))]],
        }
    if rng.random() < 0.3:
        status |= {"job": rng.choice(("5_1", "7", "x", ""))}
    return status


def _json(rng: Random, tree: Any, often: float = 0.5) -> bytes:
    return encoded(
        rng, json_text(mutate.change_tree(rng, tree) if rng.random() < often else tree, indent=1), damage=0.08
    )


def folder(rng: Random) -> dict[str, bytes]:
    """All files of a sweep, some of them changed or missing."""
    sweep = mutate.copied(state()[0])
    sweep["launcher"] = rng.choice(("local", "local", "torchrun", "slurm"))
    files = {"s/sweep.json": _json(rng, sweep)}
    for entry in state()[0]["entries"]:
        run = f"s/runs/{entry['id']}"
        files[f"{run}/status.json"] = _json(rng, _status(rng))
        if rng.random() < 0.3:
            files[f"{run}/record.json"] = _json(rng, mutate.copied(state()[2]))
        if rng.random() < 0.4:
            beat = {"step": 5, "time_s": 1794768670.5, "rank": 0}
            files[f"{run}/heartbeats/rank{rng.choice(('0', '0', '1', 'x', '-1', '²'))}.json"] = _json(rng, beat)
        if rng.random() < 0.2:
            told = {
                "rank": 0,
                "host": socket.gethostname(),
                "node": "n",
                "pid": rng.choice((1, -1, 0, 99999)),
                "began": 5,
            }
            files[f"{run}/environment/rank0.json"] = _json(rng, told)
        if rng.random() < 0.2:
            log = rng.choice(
                (b"torch.OutOfMemoryError: CUDA out of memory", b"Traceback (most recent call last):\n", b"\xff" * 50)
            )
            files[f"{run}/logs/rank0.log"] = log + values.text(rng).encode("utf-8", "surrogatepass")
        if rng.random() < 0.1:
            files[f"{run}/{rng.choice(('cancel', 'job.toml', 'pieces/rank0.json'))}"] = b""
    return dict(list(files.items())[: rng.choice((1, 99, 99, 99, 99))])


def sweep(rng: Random) -> Case:
    """Asked how it stands, cancelled, tried again, or calibrated on."""
    chance = rng.random()
    if chance < 0.6:
        words: tuple[str, ...] = ("sweep", "status", "s", *(("--json",) if rng.random() < 0.6 else ()))
    elif chance < 0.75:
        words = ("sweep", "cancel", "s")
    elif chance < 0.95:
        states = rng.choice(("failed", "oom", "failed,oom,timeout,cancelled,done", "done"))
        words = ("sweep", "retry", "s", "--status", states, *(("--json",) if rng.random() < 0.5 else ()))
    else:
        words = (rng.choice(("validate", "compare", "report")), "s", "--json")
    return Case(words=words, files=folder(rng))


KINDS = (Kind(name="sweep-state", weight=12, make=sweep),)
