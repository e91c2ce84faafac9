"""Published runs of mixtures of experts: those that knee carries, apart from those of dense models."""

from __future__ import annotations

import pytest

from knee.evidence.moe_protocol import memory_errors, routing_losses, tuning_steps
from knee.trust.error_table import EXPERTS, read_errors
from knee.trust.trust import MOE, trust_of
from knee.validation.carried_set import carried_moe_runs, carried_runs, moe_fidelity, references
from knee.validation.published_runs import PublishedRun
from knee.validation.run_to_job import job_of
from knee.validation.stacks import catalog_profile, is_before, profile_name


@pytest.fixture(scope="module")
def runs() -> tuple[PublishedRun, ...]:
    return carried_moe_runs().runs


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


def test_graphs_shorten_the_hosts_time(runs: tuple[PublishedRun, ...]) -> None:
    host = {
        run.setting.cuda_graphs: job_of(run.setting).job.profile.expert_host_s
        for run in runs
        if run.setting.software == "26.04.01"
    }
    assert host[True] == pytest.approx(0.1 * host[False])


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
    assert catalog_profile("nemo-early-2025").expert_host_s > catalog_profile("nemo").expert_host_s


def test_the_release_that_was_fitted_and_the_others_of_its_source() -> None:
    found = {source.source: source for source in moe_fidelity().sources}
    assert found["nvidia_megatron_bridge_perf_summary"].median_frac < 0.08
    assert found["nvidia_dgxc_benchmarking"].median_frac < 0.08
    assert found["megatron_moe_modelzoo"].median_frac < 0.05


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
