"""``knee tune`` on the settings of a 7B model that were all measured on one H200 (data/h200, tune.csv)."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.commands.tune import api as tune
from knee.training.launch.run_status import Status, write_status
from knee.training.launch.sweep_folder import Sweep

MEASURED = Path(__file__).parents[2] / "data" / "h200" / "2026-11-17" / "tune.csv"


def test_the_best_of_all_settings_in_at_most_five_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MEASURED.open() as file:
        rows = list(csv.DictReader(file))
    known = {(int(r["micro_batch"]), r["recompute"], r["compile"] == "True", r["precision"]): r for r in rows}
    best = max(float(row["tokens_per_s"]) for row in rows)

    def start(sweep: Sweep, _: Any, ids: Collection[str], **__: Any) -> None:
        for entry in sweep.entries:
            if entry.id in ids:
                run = sweep.run(entry)
                job = json.loads((run / "job.json").read_text())
                plan = job["plan"]
                row = known[plan["micro_batch"], plan["recompute"], job["compile"], plan["precision"]]
                record = {"tokens_per_s_per_gpu": float(row["tokens_per_s"]), "memory_bytes": None}
                (run / "record.json").write_text(json.dumps(record))
                write_status(run, Status(state="done", attempts=1))

    monkeypatch.setattr(tune, "start_runs", start)
    found = knee.tune(
        "llama2-7b",
        cluster="dgx-h200",
        gpus=1,
        global_batch=4,
        profile="knee",
        state_dtype="bf16",
        sharding=("ddp",),
        micro_batch=(1, 2, 4),
        recompute=("none", "full"),
        knobs=("micro_batch", "recompute", "compile", "precision"),
        program=["true"],
        out=tmp_path / "tuned",
    )
    assert len(found.rows()) <= 5
    assert found.state.best_tokens_per_s_per_gpu == pytest.approx(best)
    assert found.state.train_words == ("--compile",)
    assert found.bound_frac is not None
    assert found.bound_frac < 0.1
