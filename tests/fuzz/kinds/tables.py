"""CSV files of training runs and of bandwidths."""

from __future__ import annotations

import csv
from functools import cache
from random import Random
from typing import Any

from fuzz import mutate, values
from fuzz.case import Case, Kind
from fuzz.documents import csv_text, encoded
from knee.specs.catalog import ROOT

RUN: dict[str, Any] = {
    "layers": 4,
    "hidden": 64,
    "heads": 8,
    "gpu": "h100-sxm",
    "n_gpus": 8,
    "seq_len": 64,
    "global_batch": 8,
    "tokens_per_s_per_gpu": 9000.0,
    "vocab": 512,
}
MORE = (
    "micro_batch",
    "tp",
    "pp",
    "cp",
    "dp",
    "virtual_pp",
    "shard_group",
    "sharding",
    "recompute",
    "precision",
    "compile",
    "status",
    "step_time_s",
    "memory_gib",
    "source",
    "model",
    "note",
    "kernel",
    "attention",
    "mlp",
    "ffn",
    "kv_heads",
    "gpus_per_node",
)


@cache
def carried(name: str) -> tuple[dict[str, Any], ...]:
    """Rows that knee carries, every so many of them."""
    with (ROOT / "validation" / name).open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))[::11]


def runs(rng: Random) -> Case:
    """Runs to be predicted, or fitted on."""
    rows = [
        dict(rng.choice(carried("runs.csv"))) if rng.random() < 0.2 else dict(RUN)
        for _ in range(rng.choice((0, 1, 1, 1, 2)))
    ]
    for row in rows:
        for name in rng.sample(MORE, rng.randrange(3)):
            row.setdefault(name, rng.choice(("1", "2", "0", "", "ok", "full", "oom", values.value(rng))))
    data = _changed(rng, rows)
    if rng.random() < 0.03:
        return Case(words=("calibrate", "r.csv", "--json"), files={"r.csv": data})
    return Case(words=("validate", "r.csv", *_output(rng)), files={"r.csv": data})


def bandwidths(rng: Random) -> Case:
    """Bandwidths of collectives."""
    rows = [dict(rng.choice(carried("collectives.csv"))) for _ in range(rng.choice((0, 1, 2, 3)))]
    return Case(words=("validate", "b.csv", *_output(rng)), files={"b.csv": _changed(rng, rows)})


def _changed(rng: Random, rows: list[dict[str, Any]]) -> bytes:
    """A table, with other values and columns than it had."""
    if rng.random() < 0.85:
        mutate.change_tree(rng, rows, rng.choice((1, 1, 2, 3, 6)))
    kept = [row for row in rows if isinstance(row, dict)]
    return encoded(rng, csv_text(kept, rng.choice((",",) * 9 + (";", "\t"))), damage=0.25)


def _output(rng: Random) -> list[str]:
    words = ["--json"] if rng.random() < 0.7 else []
    return words + (["--rows", "out.csv"] if rng.random() < 0.1 else [])


KINDS = (
    Kind(name="runs", weight=1, make=runs),
    Kind(name="bandwidths", weight=7, make=bandwidths),
)
