"""Published runs of mixtures of experts: those that knee carries, apart from those of dense models."""

from __future__ import annotations

import pytest
from band_coverage import coverage
from moe_protocol import memory_errors, routing_losses, tuning_steps

from knee.trust.bands import MOE_CONSTANTS
from knee.trust.error_table import EXPERTS, read_errors
from knee.trust.trust import MOE, trust_of
from knee.trust.validation.bundled_runs import PROMISED, carried_moe_runs, carried_runs, moe_fidelity, references
from knee.trust.validation.published_runs import PublishedRun
from knee.trust.validation.run_errors import Validation, predict, validate
from knee.trust.validation.run_to_job import catalog_profile, is_before, job_of, profile_name, unseen_job_of


@pytest.fixture(scope="module")
def runs() -> tuple[PublishedRun, ...]:
    return carried_moe_runs().runs


@pytest.fixture(scope="module")
def validation() -> Validation:
    return validate(carried_moe_runs())


def test_every_row_is_of_a_mixture_of_experts_and_has_a_source(runs: tuple[PublishedRun, ...]) -> None:
    file = carried_moe_runs()
    assert len(file.rows) == 232
    assert file.ignored == ()
    assert all(run.setting.experts for run in runs)
    assert {run.setting.source for run in runs} == set(references("moe_sources.toml"))
    assert not any(run.setting.experts for run in carried_runs().runs)


def test_a_window_and_biases_are_those_of_the_row(runs: tuple[PublishedRun, ...]) -> None:
    run = next(run for run in runs if run.setting.model == "GPT OSS 120B")
    model = job_of(run.setting).job.model
    assert (model.window, model.layer_pattern, model.mlp_bias) == (128, "sf", True)


def test_a_layout_that_counts_the_loss_is_stated(runs: tuple[PublishedRun, ...]) -> None:
    dealt = {run.setting.model: job_of(run.setting).job.profile.deals_by_cost for run in runs if run.setting.pp == 4}
    assert dealt["DeepSeekV3"]
    assert not dealt["Qwen3_235B_a22B"]


def test_graphs_leave_experts_outside_that_drop_no_token(runs: tuple[PublishedRun, ...]) -> None:
    made = [run.setting for run in runs if run.setting.software == "25.09" and run.setting.cuda_graphs]
    plain = catalog_profile("nemo")
    for setting in made:
        found = job_of(setting).job.profile
        drops = setting.routing == "drop"
        assert found.launch_s == pytest.approx(0.1 * plain.launch_s)
        assert found.expert_host_s == pytest.approx((0.1 if drops else 1.0) * plain.expert_host_s)
    assert {setting.routing for setting in made} == {"drop", "forced_balance"}


def test_what_is_fused_is_stated(runs: tuple[PublishedRun, ...]) -> None:
    latent = [run.setting for run in runs if run.setting.heads == 128 and "bridge" not in run.setting.source]
    named = {setting.source: job_of(setting).job.profile.kernels for setting in latent}
    assert named["simumax_b200_v1.2"] == "fused_eager_router"
    assert named["nvidia_dgxc_benchmarking"] == "fused_eager_latent"
    assert named["megatron_lm_dsv3_gb200_guide"] == "fused"
    moonlight = next(run for run in runs if run.setting.model.startswith("Moonlight"))
    assert job_of(moonlight.setting).job.profile.kernels == "fused_eager_latent"


@pytest.mark.parametrize(
    ("software", "before"),
    [
        ("v25.01.1", True),
        ("v25.05.05", True),
        ("25.09", False),
        ("26.04.01", False),
        ("", False),
        ("2026", False),
        ("main(1e05)", False),
        ("0.13, again", True),
    ],
)
def test_releases_are_ordered(software: str, before: bool) -> None:
    assert is_before(software, "25.09") is before


def test_earlier_releases_have_a_profile_of_their_own(runs: tuple[PublishedRun, ...]) -> None:
    names = {profile_name(run.setting) for run in runs if run.setting.source == "nvidia_dgxc_benchmarking"}
    assert names == {"nemo-early-2025"}
    assert catalog_profile("nemo-early-2025").kernels == "fused_eager_router"
    assert catalog_profile("nemo-early-2025").expert_host_s == catalog_profile("nemo").expert_host_s


@pytest.mark.slow
def test_errors_by_source(validation: Validation) -> None:
    fidelity = moe_fidelity(validation)
    found = {source.source: source for source in fidelity.sources}
    assert fidelity.headline_frac < 0.1
    assert fidelity.unseen_frac is not None
    assert fidelity.unseen_frac < 0.12
    assert found["nvidia_megatron_bridge_perf_summary"].median_frac < 0.09
    assert found["nvidia_dgxc_benchmarking"].median_frac < 0.09
    assert found["megatron_moe_modelzoo"].median_frac < 0.05
    # models cut to four layers on eight B200s, whose products are slower than those of the catalogue
    assert found["simumax_b200_v1.2"].median_frac < 0.25


@pytest.mark.slow
def test_the_carried_errors_are_todays(runs: tuple[PublishedRun, ...], validation: Validation) -> None:
    errors = read_errors(EXPERTS)
    shipped = {id(p): p for p in validation.predictions.values()}.values()
    for column, found in (("error_frac", shipped), ("unseen_error_frac", predict(runs, unseen_job_of)[0])):
        today = sorted(p.error_frac for p in found if p.error_frac is not None)
        assert today == pytest.approx(sorted(errors.numbers[column].tolist()), abs=2e-3, rel=2e-3), column


@pytest.mark.parametrize("promised", PROMISED)
def test_bands_hold_what_they_promise_of_left_out_sources(promised: float) -> None:
    rows = coverage(read_errors(EXPERTS), shipped=MOE_CONSTANTS)
    of = [row for row in rows if row.quantity == "throughput" and row.source and row.covered_frac == promised]
    held = sum(row.runs * row.held_frac for row in of) / sum(row.runs for row in of)
    assert promised - 0.02 < held < promised + 0.07


def test_real_routing_loses_what_was_published() -> None:
    checks = routing_losses()
    assert [round(check.measured, 2) for check in checks] == [0.2, 0.17, 0.13, 0.08]
    assert all(abs(check.predicted - check.measured) < 0.02 for check in checks)


def test_steps_of_tuning_have_the_right_sign_by_the_profile_of_their_release() -> None:
    signs = {check.what: check.holds for check in tuning_steps()}
    assert signs["cuda_graphs off to on"]
    assert signs["recompute mla_up_proj+mlp to mlp"]
    assert signs["dispatcher deepep to hybridep"]


def test_memory_without_a_pipeline() -> None:
    assert all(check.holds for check in memory_errors() if "pp 1" in check.what)


def test_trust_of_a_mixture_of_experts_is_not_that_of_dense_models(runs: tuple[PublishedRun, ...]) -> None:
    run = next(run for run in runs if run.setting.software == "26.04.01")
    found = trust_of(job_of(run.setting).job)
    assert found.like == MOE
    assert found.basis_runs == len(read_errors(EXPERTS))
    assert found.sources == 6
