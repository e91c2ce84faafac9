"""``python tests/golden/answers_file.py`` writes ``tests/data/answers.csv``: random jobs and their answers.

Run it after a change that is meant to move predictions, and read the difference before you commit it.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import knee

PATH = Path(__file__).parents[1] / "data" / "answers.csv"
JOBS = 240
NUMBERS = ("step_s", "compute_load_s", "comm_load_s", "exposed_comm_s", "bubble_s", "idle_s", "straggler_s")
NUMBERS += ("memory_bytes", "power_w_per_gpu")
RARE: dict[str, tuple[Any, ...]] = {
    "cp_method": ("ring",),
    "precision": ("fp8", "fp8", "nvfp4"),
    "fp8_recipe": ("rowwise",),
    "prefetch": (0, 2),
    "reduce_dtype": ("bf16",),
    "state_dtype": ("bf16",),
    "collectives": ("hierarchical",),
    "sequence_parallel": (False,),
    "tp_overlap_frac": (0.5,),
}
"""Knobs that are seldom off their default, and their other values."""
ROUTED: dict[str, tuple[Any, ...]] = {
    "ep": (2, 4, 8, 16),
    "etp": (1, 1, 2),
    "dispatcher": ("alltoall", "deepep", "hybridep"),
    "ep_overlap": (False, True),
    "routing": ("balanced", "dropless", "power_law:1.2"),
}
PIPELINES: tuple[dict[str, Any], ...] = (
    {"schedule": "1f1b"},
    {"schedule": "gpipe"},
    {"schedule": "interleaved", "virtual_stages": 2},
    {"schedule": "zero_bubble"},
    {"schedule": "dualpipe"},
)
RECOMPUTES: tuple[dict[str, Any], ...] = (
    {"recompute": "none"},
    {"recompute": "attention"},
    {"recompute": "ops"},
    {"recompute": "full"},
    {"recompute": "blocks", "recompute_frac": 0.5},
    {"recompute": "modules", "recompute_modules": ["core_attn", "mlp"]},
)


def random_jobs(seed: int) -> Iterator[dict[str, Any]]:
    """Arguments of ``knee.simulate`` without end; many of them are refused."""
    draw, entries = random.Random(seed), knee.catalog_entries().to_dict()
    while True:
        gpus = draw.choice((1, 8, 16, 64, 512, 4096))
        job: dict[str, Any] = {"model": draw.choice(entries["models"]), "cluster": draw.choice(entries["clusters"])}
        job |= {
            "gpus": gpus,
            "profile": draw.choice(entries["profiles"]),
            "global_batch": gpus * draw.choice((1, 4, 8)),
        }
        job |= {"tp": draw.choice((1, 1, 2, 8)), "pp": draw.choice((1, 1, 2, 4)), "cp": draw.choice((1, 1, 1, 2))}
        job |= {"micro_batch": draw.choice((1, 1, 2)), "seq_len": draw.choice((2048, 4096, 8192))}
        job |= draw.choice(RECOMPUTES) | (draw.choice(PIPELINES) if job["pp"] > 1 else {})
        job["sharding"] = draw.choice(("ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard", "hsdp"))
        if job["sharding"] in ("hsdp", "fsdp_no_reshard") and draw.random() < 0.7:
            job |= {"dp_replicate": 2} | ({"sync_every": 8} if draw.random() < 0.3 else {})
        job |= {name: draw.choice(values) for name, values in RARE.items() if draw.random() < 0.12}
        if draw.random() < 0.5:
            job |= {name: draw.choice(values) for name, values in ROUTED.items()}
        yield job


def numbers_of(job: dict[str, Any]) -> dict[str, float]:
    """The answer's numbers, with its communication by collective and group."""
    answer = knee.simulate(**job)
    found = {name: float(getattr(answer, name) or 0.0) for name in NUMBERS}
    found["calls"] = sum(load.calls for load in answer.comm_loads)
    found["message_bytes"] = sum(load.calls * load.message_bytes for load in answer.comm_loads)
    return found


def main() -> None:
    """Write the file."""
    rows: list[dict[str, Any]] = []
    for job in random_jobs(seed=36):
        try:
            rows.append({"job": json.dumps(job), **{name: repr(value) for name, value in numbers_of(job).items()}})
        except knee.KneeError:
            continue
        if len(rows) == JOBS:
            break
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
