"""The gathered published runs, where they lie beside the checkout: they are read, predicted and scored."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from knee.fidelity.runs import read_runs
from knee.fidelity.validation import validate

RUNS = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"


@pytest.mark.skipif(not RUNS.exists(), reason="the gathered runs are not beside this checkout")
def test_the_whole_file() -> None:
    start = time.perf_counter()
    file = read_runs(RUNS)
    found = validate(file)
    assert time.perf_counter() - start < 20
    assert found.all.rows_used >= 0.85 * found.all.rows
    assert file.ignored == ()
    assert all(score.rows_used for score in found.sources.values())
    assert found.headline_frac is not None
    assert found.headline_frac < 0.05
    for name, score in found.sources.items():
        assert score.throughput is None or score.throughput.median_frac < 0.15, name
    assert found.all.throughput is not None
    assert found.all.throughput.p90_frac < 0.25
    assert found.all.ranking is not None
    assert found.all.ranking.median_regret_frac < 0.03
    assert found.all.ranking.mean_regret_frac < 0.06


@pytest.mark.skipif(not RUNS.exists(), reason="the gathered runs are not beside this checkout")
def test_memory_and_what_fits() -> None:
    found = validate(read_runs(RUNS))
    assert found.all.memory is not None
    assert found.all.memory.median_frac < 0.1
    for name, score in found.sources.items():
        assert score.memory is None or score.memory.median_frac < 0.2, name
    ran, failed = found.all.fitting["ok"], found.all.fitting["failed"]
    assert ran.fits >= 0.95 * (ran.fits + ran.does_not)
    assert failed.does_not >= 0.6 * (failed.fits + failed.does_not)
