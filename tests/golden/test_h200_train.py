"""knee's own trainer on one H200 (data/h200/train), beside the simulator: throughput, power and memory."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from knee import simulate
from knee.engine.cost.compute_costs import product_column, shapes_of
from knee.engine.cost.kernel_cost import operation_s
from knee.engine.simulator import evaluate
from knee.engine.workload.operations import (
    Attention,
    Gemm,
    embedding_backward,
    embedding_forward,
    head_backward,
    head_forward,
    layer_backward_input,
    layer_backward_weight,
    layer_forward,
)
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan_table import table_of

HIGHEST_HZ = 1.98e9

RECORDS = sorted((Path(__file__).parents[2] / "data" / "h200" / "train").glob("llama*.json"))


HOST_BOUND = sorted((Path(__file__).parents[2] / "data" / "h200" / "host_bound").glob("llama*.json"))
CLASSES = {"nvjet": "products", "sdpa": "attention", "cudnn::fusion": "attention"}
"""Words of a kernel's name; what has none is memory-bound."""


def job_of(record: dict[str, Any]) -> Job:
    job, _ = make_job(
        load_model(record["model"]).spec,
        load_cluster("dgx-h200").spec,
        load_profile("knee-compiled" if record["job"]["compile"] else "knee").spec,
        gpus=1,
        global_batch=record["job"]["global_batch"],
        seq_len=record["job"]["seq_len"],
        plan_options={name: record["plan"][name] for name in ("state_dtype", "micro_batch")},
    )
    return job


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_the_simulation_of_a_real_run(path: Path) -> None:
    record = json.loads(path.read_text())
    found = simulate(job_of(record))
    for name in ("tokens_per_s", "power_w_per_gpu", "memory_bytes"):
        assert getattr(found, name) == pytest.approx(record[name], rel=0.08), name


@pytest.mark.parametrize("path", HOST_BOUND, ids=lambda p: p.stem)
def test_a_step_that_waits_for_the_host(path: Path) -> None:
    record = json.loads(path.read_text())
    assert simulate(job_of(record)).step_s == pytest.approx(record["step_p10_s"], rel=0.1)


def traced_s(record: dict[str, Any]) -> dict[str, float]:
    found = dict.fromkeys(("products", "attention"), 0.0)
    for kernel in record["trace"]["kernels"]:
        kind = next((kind for word, kind in CLASSES.items() if word in kernel["name"]), None)
        if kind is not None:
            found[kind] += kernel["load_s"]
    return found | {"memory-bound": record["compute_load_s"] - sum(found.values())}


def simulated_s(job: Job) -> dict[str, float]:
    w = evaluate(job.model, job.cluster, job.profile, table_of([job]))
    s, kernels = shapes_of(w.model, w.table, job.profile), job.profile.kernels
    passes = [build(job.model, s, kernels) for build in (layer_forward, layer_backward_input, layer_backward_weight)]
    ends = [*head_forward(job.model, s, kernels), *head_backward(job.model, s, kernels)]
    ends += [*embedding_forward(job.model, s), *embedding_backward(job.model, s)]
    found = {"products": 0.0, "attention": 0.0, "memory-bound": float(w.optimizer.time_s[0])}
    for times, operations in ((job.model.layers, [o for ops in passes for o in ops]), (1, ends)):
        for o in operations:
            kind = {Gemm: "products", Attention: "attention"}.get(type(o), "memory-bound")
            types, clock = product_column(w.table), float(w.compute.clock_frac[0])
            seconds = float(operation_s(job.cluster.gpu, job.profile, types, o, clock)[0])
            found[kind] += times * int(w.table.microbatches[0]) * seconds
    return found


def test_products_attention_and_memory_bound_kernels_each() -> None:
    """No error of the one hides one of the other: a single record within 10%, the median within 6%."""
    records = [json.loads(path.read_text()) for path in RECORDS]
    errors = [
        {kind: simulated_s(job_of(r))[kind] / seconds - 1.0 for kind, seconds in traced_s(r).items()} for r in records
    ]
    for kind in errors[0]:
        assert max(abs(error[kind]) for error in errors) < 0.1, kind
        assert abs(median(error[kind] for error in errors)) < 0.06, kind


def test_clocks_under_the_limit_are_those_that_were_read() -> None:
    for path in RECORDS:
        record = json.loads(path.read_text())
        job = job_of(record)
        clock = evaluate(job.model, job.cluster, job.profile, table_of([job])).compute.clock_frac[0]
        assert clock == pytest.approx(record["sm_hz"] / HIGHEST_HZ, rel=0.08), path.stem


def test_the_bars_of_a_real_step() -> None:
    by_name = {path.stem: json.loads(path.read_text()) for path in RECORDS}
    others = json.loads(RECORDS[0].with_name("transformers.json").read_text())["tokens_per_s"]
    compiled, eager = (by_name[f"llama2-7b-batch2-{how}"]["tokens_per_s"] for how in ("compiled", "eager"))
    assert compiled > 13_300
    assert compiled > 1.2 * others["compiled"]
    assert eager > 11_700
    assert eager > 1.05 * others["eager"]
