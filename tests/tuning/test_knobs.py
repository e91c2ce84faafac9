"""Settings that are varied around the best run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import knee
from knee.launch.rank import settings_of
from knee.specs import Job
from knee.tuning.knobs import KNOBS, USUAL, Variant, variants
from knee.tuning.tuning_folder import plan_key


def job_of() -> Job:
    job, _ = knee.make_job("llama2-7b", cluster="dgx-h100", gpus=8, global_batch=16, dp_shard=8, micro_batch=1)
    return job


def test_one_setting_changes_at_a_time() -> None:
    base = Variant(job=job_of())
    usual = variants(base, USUAL, lambda _: None)
    assert usual[0] == base
    words = [one.words for one in usual[1:]]
    assert len(set(words)) == len(words)
    assert any("micro-batch 2" in text for text in words)
    assert any(text.endswith("compile") for text in words)
    assert {one.job.plan.prefetch for one in usual} == {0, 1, 2}
    assert all(one.job.plan.reduce_dtype == "fp32" and not one.environment for one in usual)
    every = variants(base, KNOBS, lambda _: None)
    assert {one.job.plan.precision for one in every} == {"bf16", "fp8"}
    assert sum(bool(one.environment) for one in every) == 4
    assert len({plan_key(one.question) for one in every}) == len(every)


def test_what_cannot_be_run_is_left_out() -> None:
    base = Variant(job=job_of())
    found = variants(base, ("micro_batch",), lambda job: "no" if job.plan.micro_batch == 2 else None)
    assert found == [base]
    alone = replace(base, job=replace(base.job, global_batch=8))
    assert variants(alone, ("micro_batch",), lambda _: None) == [alone]  # 2 does not divide the rank's one sequence


def test_a_run_has_variables_of_its_own(tmp_path: Path) -> None:
    one = next(one for one in variants(Variant(job=job_of()), ("nccl",), lambda _: None) if one.environment)
    (tmp_path / "asked.json").write_text(json.dumps(one.question, default=str))
    assert settings_of(tmp_path) == dict(one.environment)
    (tmp_path / "asked.json").write_text("[]")
    assert settings_of(tmp_path) == {}
