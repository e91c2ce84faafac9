"""HolisticTraceAnalysis, which we did not write, reads simulated traces and finds our overlap."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from knee.engine.one_job import events_of
from knee.engine.simulator import evaluate
from knee.measure.kineto.kineto_writer import write_kineto
from knee.specs import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan_table import table_of
from step_breakdown import measure

pytestmark = pytest.mark.slow

PLANS = {
    "fsdp on 2,048": {"gpus": 2048},
    "tp 2, pp 2": {"gpus": 64, "tp": 2, "pp": 2},
    "zero-3, two microbatches": {"gpus": 64, "sharding": "fsdp", "micro_batch": 1},
}


def job_of(gpus: int, **plan: object) -> Job:
    model, cluster, profile = load_model("llama2-7b"), load_cluster("dgx-h100"), load_profile("paper")
    return make_job(model.spec, cluster.spec, profile.spec, gpus=gpus, local_batch=2, plan_options=plan)[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PLANS)
def test_overlap_agrees_with_holistic_trace_analysis(name: str, tmp_path: Path) -> None:
    analysis = pytest.importorskip("hta.trace_analysis")
    job = job_of(**PLANS[name])  # type: ignore[arg-type]
    stages = events_of(job)
    files = write_kineto(stages, tmp_path / "step.json.gz")
    assert len(files) == job.plan.pp
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = analysis.TraceAnalysis(trace_files={e.rank: str(f) for e, f in zip(stages, files, strict=True)})
        theirs = read.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    for events in stages:
        times = measure(events)
        assert theirs[events.rank] == pytest.approx(100 * times.overlapped_comm_s / times.comm_s, abs=0.5)


@pytest.mark.parametrize("name", PLANS)
def test_the_stages_mean_is_what_simulate_reports(name: str) -> None:
    job = job_of(**PLANS[name])  # type: ignore[arg-type]
    times = [measure(events) for events in events_of(job)]
    r = evaluate(job.model, job.cluster, job.profile, table_of([job])).results
    overlapped = sum(t.overlapped_comm_s for t in times) / sum(t.comm_s for t in times)
    assert overlapped == pytest.approx(float(r.overlapped_comm_s[0] / r.comm_s[0]), abs=0.005)
