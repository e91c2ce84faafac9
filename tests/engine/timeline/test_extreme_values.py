"""Values that no hardware has may overflow; a NaN that no overflow explains may not pass."""

from __future__ import annotations

import numpy as np
import pytest

from knee.base.arrays import extreme_values
from knee.engine.simulator import evaluate
from tables import job, table

HUGE = np.array([1e308])


def test_an_overflow_and_what_follows_it_pass() -> None:
    with extreme_values():
        more = HUGE * 10.0
        assert np.isnan(more - more).all()


def test_a_nan_without_an_overflow_is_an_error() -> None:
    zero, infinite = np.zeros(1), np.array([np.inf])
    for bad in (lambda: zero / zero, lambda: infinite - infinite):
        with extreme_values(), pytest.raises(RuntimeWarning):
            bad()


def test_an_overflow_excuses_only_its_own_call() -> None:
    @extreme_values()
    def times(one: np.ndarray, other: float) -> np.ndarray:
        return one * other

    assert np.isinf(times(HUGE, 10.0)).all()
    with pytest.raises(RuntimeWarning):
        times(np.array([np.inf]), 0.0)


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"pp": 4, "schedule": "interleaved", "virtual_stages": 2, "microbatches": 16},
        {"pp": 4, "schedule": "dualpipe", "sharding": "zero1", "microbatches": 16},
        {"tp": 8, "cp": 2, "recompute": "full"},
    ],
)
def test_the_engine_divides_nothing_by_zero(plan: dict[str, object]) -> None:
    one = job(**plan)
    with np.errstate(all="raise", under="ignore"):
        step = evaluate(one.model, one.cluster, one.profile, table(one))
    assert np.isfinite(step.results.step_s).all()
