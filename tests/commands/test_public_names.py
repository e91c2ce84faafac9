"""The package's front door: what it exports, and that it opens quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

import knee

EXPORTED = {
    "BandwidthsValidation",
    "Budget",
    "BudgetCheck",
    "Calibration",
    "CarriedValidation",
    "CatalogEntries",
    "CatalogEntry",
    "Cluster",
    "Comparison",
    "DryRun",
    "Job",
    "KneeError",
    "MachineCheck",
    "Measurement",
    "Model",
    "Plan",
    "PlanSearch",
    "PlanTable",
    "Profile",
    "RankedPlan",
    "RecordsReport",
    "Results",
    "RunsValidation",
    "Scaling",
    "ShardFolder",
    "Simulation",
    "Studies",
    "StudyDescription",
    "StudySummary",
    "SweepPlan",
    "SweepStatus",
    "TraceAnalysis",
    "TraceDiff",
    "TrainedRun",
    "TuneReplay",
    "Tuned",
    "__version__",
    "budget",
    "budget_check",
    "calibrate",
    "cancel_sweep",
    "catalog_entries",
    "catalog_entry",
    "catalog_schema",
    "compare",
    "describe_study",
    "doctor",
    "dryrun",
    "events_of",
    "list_studies",
    "load_cluster",
    "load_job",
    "load_model",
    "load_profile",
    "make_job",
    "plan",
    "prepare_shards",
    "prepare_sweep",
    "probe_collectives",
    "probe_kernels",
    "probe_power",
    "probe_steps",
    "read_records",
    "read_shards",
    "read_traces",
    "replay_tuning",
    "retry_sweep",
    "run_sweep",
    "study",
    "sweep_status",
    "scale",
    "simulate",
    "simulate_table",
    "simulate_tables",
    "table_of",
    "train",
    "tune",
    "tune_status",
    "validate",
}


def test_exported_names() -> None:
    """A name is added here when users may rely on it, and removed only in a new major version."""
    assert set(knee.__all__) == EXPORTED


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_every_name_is_there(name: str) -> None:
    assert getattr(knee, name) is not None


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="simulat"):
        _ = knee.simulation


def test_importing_knee_imports_nothing_heavy() -> None:
    heavy = ("numpy", "pydantic", "rich", "click", "torch", "pandas")
    code = f"import sys, knee; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_docstring() -> None:
    model, cluster, profile = knee.load_model("llama2-7b"), knee.load_cluster("dgx-h100"), knee.load_profile("paper")
    job, notes = knee.make_job(model.spec, cluster.spec, profile.spec, gpus=256, local_batch=2)
    answer = knee.simulate(job)
    assert answer.kind == "simulated"
    assert answer.flop_convention == "palm"
    assert 0.3 < answer.mfu_frac < 0.5
    assert any("dp_shard" in note for note in notes)


def test_a_table_of_any_length_equals_its_jobs() -> None:
    model, cluster, profile = (
        load(name).spec
        for load, name in (
            (knee.load_model, "llama2-7b"),
            (knee.load_cluster, "dgx-h100"),
            (knee.load_profile, "eager"),
        )
    )
    jobs = [knee.make_job(model, cluster, profile, gpus=n, local_batch=2)[0] for n in (8, 64, 512)]
    table = knee.table_of(jobs)
    found = knee.simulate_table(model, cluster, profile, table)
    assert len(found) == 3
    assert found.step_s.tolist() == pytest.approx([knee.simulate(job).step_s for job in jobs], rel=1e-12)
    pieces = list(knee.simulate_tables(model, cluster, profile, (table.rows(slice(i, i + 1)) for i in range(3))))
    assert [float(p.step_s[0]) for p in pieces] == pytest.approx(found.step_s.tolist(), rel=1e-12)
    assert [table.plan(row) for row in range(3)] == [job.plan for job in jobs]


def test_an_empty_table_has_empty_results() -> None:
    model, cluster, profile = (
        load(name).spec
        for load, name in (
            (knee.load_model, "llama2-7b"),
            (knee.load_cluster, "dgx-h100"),
            (knee.load_profile, "eager"),
        )
    )
    assert len(knee.simulate_table(model, cluster, profile, knee.table_of([]))) == 0
