"""What decides whether a fit to few runs is taken, and the priors that it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.one_job import simulate
from knee.specs.load import load_profile
from knee.specs.profile_parameters import PARAMETERS
from knee.trust.profile_fit.calibration import surely_better
from knee.trust.profile_fit.stack_fit import MOST, problem_of, stack_priors
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_errors import grouped
from knee.trust.validation.run_to_job import job_of
from knee.trust.validation.user_records import Pair


def test_only_what_is_surely_better_is_taken() -> None:
    before = np.array([0.16, 0.14, 0.17, 0.15, 0.13, 0.18, 0.12, 0.15])
    assert surely_better(before, before / 3.0)
    assert not surely_better(before, before)
    assert not surely_better(before, 1.1 * before)
    one = before.copy()
    one[0] = 0.9
    assert not surely_better(one, np.append(0.1, before[1:]))  # one run that went wrong says nothing
    assert surely_better(one, np.append(0.95, before[1:] / 3.0))  # nor does it hide the others
    half = np.where(np.arange(8) % 2, before / 2.0, before * 1.5)
    assert not surely_better(before, half)  # where others pay for it the runs contradict each other
    assert not surely_better(np.full(8, np.nan), before)


def test_noise_is_taken_as_often_as_one_standard_error_is_passed() -> None:
    errors = np.random.default_rng(0).normal(0.0, 0.05, (400, 2, 8))
    taken = float(np.mean([surely_better(before, after) for before, after in errors]))
    assert 0.1 < taken < 0.2


def test_priors_are_as_wide_as_stacks_differ() -> None:
    base = load_profile("eager").spec
    for own, wide in zip(PARAMETERS, stack_priors(PARAMETERS, base), strict=True):
        assert own.spread <= wide.spread <= MOST * own.spread * (1 + 1e-9)
        assert wide.low <= own.low
        assert wide.high == own.high
    without = stack_priors(PARAMETERS, base, without="hf_ultrascale")
    assert [p.path for p in without] == [p.path for p in PARAMETERS]


@pytest.mark.slow
def test_a_run_that_is_left_out_has_the_values_of_a_fit_to_the_others() -> None:
    pairs = [_run(batch, 0.8 if batch == 2 else 1.0) for batch in (1, 2, 4, 8)]
    free = [p for p in PARAMETERS if p.path in ("profile.gemm_scale", "profile.attention_scale")]
    problem = problem_of(grouped(pairs), free)
    found = problem.left_out_values(free, problem.fitted(free, problem.prior))
    for i, values in enumerate(found):
        others = problem_of(grouped([*pairs[:i], *pairs[i + 1 :]]), free)
        again = others.fitted(free, others.prior)
        assert values == {path: pytest.approx(value, rel=0.02) for path, value in again.items()}


def _run(batch: int, off: float) -> Pair:
    """Eight H100s with slow attention and products; off by a factor."""
    setting = Setting(
        source="mine", layers=32, hidden=4096, heads=32, gpu="h100-80gb", n_gpus=8, seq_len=8192,
        global_batch=8 * batch, micro_batch=batch, sharding="fsdp",
    )  # fmt: skip
    eager = load_profile("eager").spec
    slow = replace(eager, attention_scale=0.6, gemm_scale=0.9 * eager.gemm_scale)
    rate = simulate(job_of(setting, profile=slow).job).tokens_per_s_per_gpu
    run = PublishedRun(setting=setting, lines=(batch,), status="ok", tokens_per_s_per_gpu=off * rate, memory_bytes=None)
    return run, job_of(setting, profile=eager)
