"""Plain training steps measured on one H200, which nothing was fitted on, against the simulator."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

from knee.single import simulate
from knee.specs.load import load_cluster, load_model, load_profile, make_job

STEPS = Path(__file__).parents[2] / "data" / "h200" / "steps.jsonl"


def error_frac(step: dict[str, object]) -> float:
    """Simulated over measured, less one. The measured loop has no data loading and no logging."""
    profile = load_profile("compiled" if step["compiled"] else "eager").spec
    job, _ = make_job(
        load_model(str(step["model"])).spec, load_cluster("dgx-h200").spec, replace(profile, step_overhead_s=0.0),
        gpus=1, global_batch=int(str(step["micro_batch"])), seq_len=int(str(step["seq_len"])),
        plan_options={"sharding": "ddp"},
    )
    return simulate(job).step_s / float(str(step["step_s"])) - 1.0


def test_measured_steps() -> None:
    records = [json.loads(line) for line in STEPS.read_text(encoding="utf-8").splitlines()]
    errors = {r["key"]: error_frac(r) for r in records if "error" not in r}
    assert len(errors) == 12
    assert max(map(abs, errors.values())) < 0.16, errors
    assert statistics.median(map(abs, errors.values())) < 0.06, errors
