"""Settings that are varied around the best run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import knee
from knee.commands.tune.searched_plans import outside_of
from knee.commands.tune.stages import KNOBS, USUAL, Variant, candidates_for_variants, shared_errors, variants
from knee.commands.tune.tuning_folder import plan_key
from knee.search.space import Space
from knee.specs import Job
from knee.specs.load import load_profile
from knee.training.launch.rank import settings_of
from knee.training.sweeps.job_for_trainer import RunSettings


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


def test_settings_keep_to_the_limits_of_the_search() -> None:
    job = job_of()
    space = Space(model=job.model, gpus=8, global_batch=16, seq_len=4096, recomputes=("none",), micro_batches=(1,))
    found = variants(Variant(job=job), KNOBS, outside_of(space, None))
    assert {one.job.plan.recompute for one in found} == {"none"}
    assert {one.job.plan.micro_batch for one in found} == {1}
    everything = Space(model=job.model, gpus=8, global_batch=16, seq_len=4096)
    again = variants(Variant(job=job), ("recompute", "micro_batch"), outside_of(everything, "micro_batch == 1"))
    assert {(one.job.plan.recompute, one.job.plan.micro_batch) for one in again} == {("none", 1), ("full", 1)}


def test_compile_is_predicted_and_its_error_is_shared() -> None:
    base = Variant(job=replace(job_of(), profile=load_profile("knee").spec))
    rows = variants(base, ("compile", "precision"), lambda _: None)
    assert [(one.compile, one.job.plan.precision) for one in rows] == [
        (False, "bf16"),
        (True, "bf16"),
        (False, "fp8"),
        (True, "fp8"),
    ]
    found = candidates_for_variants(rows, RunSettings())
    gains = found.tokens_per_s_per_gpu / found.tokens_per_s_per_gpu[0]
    assert 1.02 < gains[1] < 1.2 < gains[2] < gains[3]
    assert found.memory_bytes[1] < found.memory_bytes[0]
    shared = shared_errors(rows)
    assert shared[1, 3] == pytest.approx(0.1**2 + 0.03**2)  # both are compiled, and neither has variables
    assert np.linalg.eigvalsh(shared).min() > -1e-12


def test_a_run_has_variables_of_its_own(tmp_path: Path) -> None:
    one = next(one for one in variants(Variant(job=job_of()), ("nccl",), lambda _: None) if one.environment)
    (tmp_path / "asked.json").write_text(json.dumps(one.question, default=str))
    assert settings_of(tmp_path) == dict(one.environment)
    (tmp_path / "asked.json").write_text("[]")
    assert settings_of(tmp_path) == {}
