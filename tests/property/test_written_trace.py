"""The trace that ``knee simulate --trace`` writes says what the simulator said, read as anyone's trace is."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from knee.engine.one_job import events_of
from knee.engine.simulator import evaluate
from knee.measure.kineto.kineto_writer import write_kineto
from knee.measure.traces.analyse import analyse
from knee.specs import Job, Plan
from knee.specs.plan_table import table_of

from .strategies import cluster, job_of, jobs, model, profile


def of(plan: Plan, microbatches: int = 1, seq_len: int = 512, gpus: str = "dgx-h100") -> Job:
    return job_of(model("llama-1b"), cluster(gpus), profile("paper"), (plan, microbatches, seq_len))


@pytest.mark.slow
@given(job=jobs(most_microbatches=2))
@example(job=of(Plan(dp_shard=8, sharding="fsdp")))
@example(job=of(Plan(dp_shard=4, pp=4, sharding="zero1"), microbatches=6))
@example(job=of(Plan(dp_shard=8, dp_replicate=4, sharding="hsdp", sync_every=16)))
@example(job=of(Plan(tp=8), seq_len=64))
@settings(deadline=None, derandomize=True, max_examples=8)
def test_a_written_trace_agrees_with_the_simulation(job: Job) -> None:
    """Step, compute, exposed communication and what is left of the step, to the nanosecond of each kernel."""
    layers = min(job.model.layers, job.plan.pp * job.plan.virtual_stages)
    plan = replace(job.plan, prefetch=min(job.plan.prefetch, layers))
    experts = None if job.model.experts is None else replace(job.model.experts, dense_layers=0, every=1)
    cut = replace(job.model, layers=layers, layer_pattern=job.model.layer_pattern[:layers], experts=experts)
    job = replace(job, model=cut, plan=plan)
    told = evaluate(job.model, job.cluster, job.profile, table_of([job]), fold=False).results
    events = events_of(job)
    with tempfile.TemporaryDirectory() as folder:
        read = analyse(write_kineto(events, Path(folder) / "step.json"), cache=False)
    slack = 2e-9 * max(map(len, events))
    assert [rank.step_s for rank in read.ranks] == [pytest.approx(float(told.step_s[0]), abs=2e-9)] * job.plan.pp
    assert read.times.window_s == pytest.approx(float(told.step_s[0]), abs=2e-9)
    for name in ("compute_s", "comm_s", "exposed_comm_s", "overlapped_comm_s"):
        assert getattr(read.times, name) == pytest.approx(float(getattr(told, name)[0]), abs=slack), name
    # a stage waits without a kernel, for the stage before it as for the host
    assert read.times.idle_s == pytest.approx(float(told.idle_s[0] + told.bubble_s[0]), abs=slack)
