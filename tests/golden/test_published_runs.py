"""All gathered published runs: they are read, predicted and scored."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from knee.trust.error_table import read_errors
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.published_runs import RunFile
from knee.trust.validation.run_errors import Validation, validate
from knee.trust.validation.run_to_job import unseen_job_of


@pytest.fixture(scope="module")
def file() -> RunFile:
    return carried_runs()


@pytest.fixture(scope="module")
def found(file: RunFile) -> Validation:
    return validate(file)


@pytest.fixture(scope="module")
def unseen(file: RunFile) -> Validation:
    return validate(file, unseen_job_of)


@pytest.mark.slow
def test_the_whole_file(file: RunFile, found: Validation) -> None:
    assert found.all.rows_used >= 0.85 * found.all.rows
    assert file.ignored == ()
    assert all(score.rows_used for score in found.sources.values())
    assert found.headline_frac is not None
    assert found.headline_frac < 0.05
    for name, score in found.sources.items():
        # torchtitan's tables are of boards with lower power limits, which they do not state
        assert score.throughput is None or score.throughput.median_frac < (0.3 if "torchtitan" in name else 0.16), name
    assert found.all.throughput is not None
    assert found.all.throughput.p90_frac < 0.25
    assert found.all.ranking is not None
    assert found.all.ranking.median_regret_frac < 0.03
    assert found.all.ranking.mean_regret_frac < 0.06


@pytest.mark.slow
def test_the_carried_errors_are_todays(found: Validation, unseen: Validation) -> None:
    errors = read_errors()
    for column, one in (("error_frac", found), ("unseen_error_frac", unseen)):
        runs = {id(p): p for p in one.predictions.values() if p.run.status == "ok"}
        today = sorted(p.error_frac for p in runs.values() if p.error_frac is not None)
        assert today == pytest.approx(sorted(errors.numbers[column].tolist()), abs=2e-3, rel=2e-3), column


@pytest.mark.slow
def test_sources_as_if_never_seen(unseen: Validation) -> None:
    found = unseen
    assert found.headline_frac is not None
    assert found.headline_frac < 0.07
    for name in ("mlperf_training_v3.1", "mlperf_training_v5.0"):
        errors = [p.error_frac or 0.0 for p in found.predictions.values() if p.run.setting.source == name]
        assert max(map(abs, errors)) < 0.12, name
        gpus = [p.run.setting.n_gpus for p in found.predictions.values() if p.run.setting.source == name]
        ends = [np.mean([e for e, n in zip(errors, gpus, strict=True) if n == end]) for end in (min(gpus), max(gpus))]
        assert abs(ends[1] - ends[0]) < 0.06, name


@pytest.mark.slow
def test_layouts_that_ran_out_of_memory(found: Validation) -> None:
    swept = found.sources["hagemann2023"].fitting
    assert swept["oom"].does_not >= 0.9 * (swept["oom"].fits + swept["oom"].does_not)
    assert swept["ok"].fits >= 0.9 * (swept["ok"].fits + swept["ok"].does_not)


@pytest.mark.slow
def test_memory_and_what_fits(found: Validation) -> None:
    assert found.all.memory is not None
    assert found.all.memory.median_frac < 0.1
    for name, score in found.sources.items():
        assert score.memory is None or score.memory.median_frac < 0.2, name
    ran, failed = found.all.fitting["ok"], found.all.fitting["failed"]
    assert ran.fits >= 0.95 * (ran.fits + ran.does_not)
    assert failed.does_not >= 0.6 * (failed.fits + failed.does_not)


def test_the_carried_errors_are_of_this_simulator(found: Validation) -> None:
    """Held-out errors differ from those of today's profiles, but not by much in any source."""
    now: dict[str, dict[int, float]] = defaultdict(dict)
    for p in found.predictions.values():
        if p.error_frac is not None and p.run.status == "ok":
            now[p.run.setting.source][id(p)] = abs(p.error_frac)
    errors = read_errors()
    for source in sorted(set(errors.words["source"])):
        then = np.abs(errors.numbers["error_frac"][errors.is_("source", source)])
        assert np.median([*now[source].values()]) == pytest.approx(np.median(then), abs=0.05), (
            f"{source}: tools/fit_published.py"
        )
