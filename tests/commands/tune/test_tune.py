"""The loop with a program in place of the trainer: it goes on where it was, and learns from what runs leave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.base.errors import KneeError
from knee.commands.tune.result import Tuned
from knee.commands.tune.tuning_folder import outcome_of
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site

PROGRAM = """
import json, sys
from pathlib import Path
run = Path(sys.argv[1])
job = json.loads((run / "job.json").read_text())
plan = job["plan"]
try:
    (run.parents[1] / "killed").touch(exist_ok=False)  # a person kills the first run
    sys.exit(1)
except FileExistsError:
    pass
rate = 1000 / (1 + 0.3 * (plan["tp"] - 1)) / (1 + 0.2 * (plan["pp"] - 1)) * (1 - 0.1 / plan["micro_batch"])
rate *= 0.8 if plan["recompute"] == "full" else 1.1 if job["compile"] else 1.0
fits = plan["micro_batch"] < 8 or job["model"]["layers"] == 2
record = {"status": "done" if fits else "oom", "error": None if fits else "out of memory",
          "tokens_per_s_per_gpu": rate if fits else None, "memory_bytes": None, "gpus": job["gpus"]}
(run / "record.json").write_text(json.dumps(record))
sys.exit(0 if fits else 1)
"""
JOB: dict[str, Any] = {
    "cluster": "cpu",
    "gpus": 4,
    "global_batch": 16,
    "seq_len": 128,
    "max_cp": 1,
    "sharding": ("fsdp",),
    "schedule": ("1f1b",),
    "steps": 6,
    "trace_steps": 0,
}


def tuned(folder: Path, **more: Any) -> Tuned:
    program = folder.parent / "program.py"
    program.write_text(PROGRAM)
    return knee.tune("llama-tiny", out=folder, program=[sys.executable, str(program)], **JOB | more)


@pytest.mark.slow
def test_it_finds_the_best_plan_and_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    first = tuned(out, max_runs=1, within=1e-4, knobs=())
    assert (first.state.why, len(first.state.runs)) == ("runs", 1)
    assert first.state.runs[0].attempts == 2  # the crash says nothing of the plan
    assert first.state.next_plan is None
    seen: list[int] = []
    done = tuned(out, knobs=("compile",), on_step=lambda state: seen.append(len(state.runs)))
    assert done.state.why == "within"  # of the plans: all settings were tried
    assert done.state.runs[0].id == first.state.runs[0].id
    assert done.state.runs[0].attempts == 2
    assert done.best_plan == "fsdp, dp_shard 4, micro-batch 4, compile"
    assert done.state.best_tokens_per_s_per_gpu == pytest.approx(1072.5)
    assert done.bound_frac is not None
    assert 0.0 < done.bound_frac < 0.5
    assert seen == sorted(seen)
    assert [step.runs for step in done.state.steps] == list(range(len(done.state.runs) + 1))
    assert knee.load_job(str(out / "best.toml")).spec.plan.micro_batch == 4

    again = knee.tune_status(out)
    assert again.to_dict()["best_plan"] == done.best_plan
    assert len(again.rows()) == len(done.state.runs)
    again.write_page(tmp_path / "page.html")
    assert "dp_shard 4, micro-batch 4, compile" in (tmp_path / "page.html").read_text("utf-8")

    with pytest.raises(KneeError) as other:
        tuned(out, global_batch=32)
    assert (other.value.code, other.value.field) == ("another-sweep", "out")


@pytest.mark.slow
def test_runs_may_be_smaller_than_the_job(tmp_path: Path) -> None:
    found = tuned(tmp_path / "tuned", gpus=16, global_batch=64, smaller_gpus=4, smaller_layers=2)
    asked = [json.loads(path.read_text()) for path in tmp_path.glob("tuned/runs/*/asked.json")]
    assert {(one["gpus"], one["layers"], one["global_batch"]) for one in asked} == {(4, 2, 16)}
    assert len({json.dumps(one["plan"]) for one in asked}) == len(asked)  # plans that are one smaller run share it
    assert found.state.full_gpu_h is not None
    assert found.state.full_gpu_h > 3 * found.state.gpu_h
    assert found.state.transfer_error_frac == pytest.approx(0.069, abs=0.02)
    assert knee.load_job(str(tmp_path / "tuned" / "best.toml")).spec.gpus == 16


def test_runs_side_by_side_have_hosts_of_their_own(tmp_path: Path) -> None:
    site = Site(hosts=("one", "two"), via="env KNEE_TO={host}", gpus_per_node=4)
    found = tuned(
        tmp_path / "tuned", launcher="torchrun", site=site, at_once=2, max_runs=2, within=1e-4, max_tp=1, max_pp=1
    )
    assert found.state.why == "runs"
    assert len({run.plan for run in found.state.runs}) == 2
    paths = [tmp_path / "tuned" / "runs" / run.id / "status.json" for run in found.state.runs if run.attempts == 1]
    assert [json.loads(path.read_text())["nodes"] for path in paths] in ([["one"]], [["two"]])  # the other was killed


@pytest.mark.parametrize(
    ("changed", "code", "field"),
    [
        ({"max_gpu_hours": 1e-6}, "too-many-gpu-hours", "max_gpu_hours"),
        ({"only": "tp == 64"}, "limits-leave-no-plan", None),
        ({"overrides": {"gpu.hbm_bytes": "1 MB"}}, "no-plan-fits", None),
        ({"within": 2.0}, "out-of-range", "within"),
        ({"max_runs": 0}, "out-of-range", "max_runs"),
        ({"at_once": 2}, "out-of-range", "at_once"),
        ({"smaller_gpus": 8}, "out-of-range", "smaller_gpus"),
        ({"smaller_gpus": 3}, "does-not-divide", "smaller_gpus"),
        ({"smaller_gpus": 2, "max_gpu_hours": 1e-6}, "too-many-gpu-hours", "max_gpu_hours"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, changed: dict[str, Any], code: str, field: str | None) -> None:
    with pytest.raises(KneeError) as found:
        tuned(tmp_path / "tuned", **changed)
    assert (found.value.code, found.value.field) == (code, field)
    assert "\n" not in found.value.message
    assert not (tmp_path / "tuned" / "sweep.json").exists()


def test_what_the_end_of_a_run_tells() -> None:
    def end(record: dict[str, Any] | None = None, **status: Any) -> str | None:
        found = outcome_of(3, Status(**status), record or {})
        return None if found is None else found.end

    assert end({"tokens_per_s_per_gpu": 5.0}, state="done") == "ok"
    assert end({}, state="done") == "failed"
    assert end({"tokens_per_s_per_gpu": float("inf")}, state="done") == "failed"
    assert end(state="oom", cause="memory", attempts=1) == "oom"
    assert end(state="failed", cause="lost_node", attempts=2) is None
    assert end(state="failed", cause="lost_node", attempts=3) == "failed"
    assert end(state="failed", cause="error", attempts=1) is None
    assert end(state="failed", cause="error", attempts=2) == "failed"
    assert end(state="failed", cause="spec") == "failed"
    assert end(state="pending") is None
    assert end(state="running", attempts=1) is None


def test_a_folder_without_a_tuning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KneeError) as found:
        knee.tune_status(tmp_path)
    assert found.value.code == "no-file"
