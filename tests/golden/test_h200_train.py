"""knee's own trainer on one H200 (data/h200/train), beside the simulator: throughput, power and memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knee import simulate
from knee.specs.load import load_cluster, load_model, load_profile, make_job

RECORDS = sorted((Path(__file__).parents[2] / "data" / "h200" / "train").glob("llama*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_the_simulation_of_a_real_run(path: Path) -> None:
    record = json.loads(path.read_text())
    job, _ = make_job(
        load_model(record["model"]).spec,
        load_cluster("dgx-h200").spec,
        load_profile("knee-compiled" if record["job"]["compile"] else "knee").spec,
        gpus=1,
        global_batch=record["job"]["global_batch"],
        seq_len=record["job"]["seq_len"],
        plan_options={"state_dtype": record["plan"]["state_dtype"]},
    )
    found = simulate(job)
    for name in ("tokens_per_s", "power_w_per_gpu", "memory_bytes"):
        assert getattr(found, name) == pytest.approx(record[name], rel=0.08), name


def test_the_bars_of_a_real_step() -> None:
    by_name = {path.stem: json.loads(path.read_text()) for path in RECORDS}
    others = json.loads(RECORDS[0].with_name("transformers.json").read_text())["tokens_per_s"]
    compiled, eager = (by_name[f"llama2-7b-batch2-{how}"]["tokens_per_s"] for how in ("compiled", "eager"))
    assert compiled > 13_300
    assert compiled > 1.2 * others["compiled"]
    assert eager > 11_700
    assert eager > 1.05 * others["eager"]
