"""The loop on published sweeps, each predicted as if its source had never been seen."""

from __future__ import annotations

from pathlib import Path

import pytest

import knee
from knee.base.errors import KneeError
from knee.commands.tune.replay import (
    PublishedJob,
    TransferPair,
    covered_frac,
    fitted_spread,
    grid_order,
    published_jobs,
    random_orders,
    replay_job,
    simulator_order,
    transfer_errors,
    trial_counts,
)
from knee.trust.validation.bundled_runs import carried_runs


@pytest.fixture(scope="module")
def job() -> PublishedJob:
    runs = [
        run
        for run in carried_runs().runs
        if run.setting.source == "hagemann2023"
        and run.setting.n_gpus == 64
        and run.setting.kernel == "flash_attention2"
    ]
    (found,) = published_jobs(runs)
    return found


def test_a_published_job_has_one_run_a_plan(job: PublishedJob) -> None:
    assert len(set(job.plans)) == len(job.plans) == 29
    assert [o.end for o in job.outcomes].count("oom") == 9
    assert job.without == "hagemann2023"


def test_the_loop_finds_a_good_plan_and_stops(job: PublishedJob) -> None:
    found = replay_job(job, within_frac=0.02)
    assert found.trials_to_good <= 2
    assert found.trials_to_good <= found.trials_to_stop <= 6
    assert found.bound_holds
    assert found.gpu_h < 0.3 * found.sweep_gpu_h
    # a tighter rule runs more, and has less left to gain
    closer = replay_job(job, within_frac=0.005)
    assert closer.trials_to_stop > found.trials_to_stop
    assert closer.missed_frac <= found.missed_frac


def test_other_ways_to_choose_need_more_runs(job: PublishedJob) -> None:
    counts = [trial_counts("", [job], order).median for order in (simulator_order, grid_order, random_orders)]
    assert counts[0] == 3
    assert counts[0] < min(counts[1:])


def test_a_file_without_a_sweep_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(
        "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tokens_per_s_per_gpu\n32,4096,32,h100,8,4096,16,9000\n"
    )
    with pytest.raises(KneeError) as found:
        knee.replay_tuning(file)
    assert (found.value.code, found.value.field) == ("nothing-usable", "replay")


def test_the_band_of_a_transfer_holds_on_pairs_that_it_was_not_fitted_on() -> None:
    sources = ("internevo", "mlperf_training_v3.0", "mlperf_training_v3.1", "mlperf_training_v5.0")
    runs = [run for run in carried_runs().runs if run.setting.source in sources]
    (found,) = transfer_errors(runs)
    assert (found.what, found.pairs, found.sources) == ("gpus", 26, 4)
    assert found.median_error_frac < 0.03
    assert 0.3 < (found.band_holds_frac or 0.0) < 1.0  # three of the sources are predicted far better than the fourth
    assert transfer_errors(runs[:1]) == []

    def pair(cohort: str, error: float) -> TransferPair:
        return TransferPair(source="a", cohort=cohort, small=8, large=32, error=error)

    pairs = [pair("a", 0.02), pair("a", -0.02), pair("b", 0.02), pair("b", 0.05)]
    assert fitted_spread(pairs, without="b") == pytest.approx(0.02 / 2**0.5)
    assert covered_frac(pairs) == 0.75  # 0.05 is beyond 1.645 standard deviations of 0.02
    assert covered_frac(pairs[:2]) is None
