"""Interval arithmetic on cases small enough to check by eye, and on cases made to lose digits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from knee.engine.events import merge
from step_breakdown import exposed_s, overlap_s, union_s


def spans(*pairs: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(starts, dtype=float), np.array(ends, dtype=float)


@pytest.mark.parametrize(
    ("pairs", "merged"),
    [
        ((), []),
        (((1, 2),), [(1, 2)]),
        (((3, 4), (1, 2)), [(1, 2), (3, 4)]),  # out of order
        (((1, 2), (2, 3)), [(1, 3)]),  # touching
        (((1, 9), (2, 3), (4, 5)), [(1, 9)]),  # nested: the widest reach counts, not the last end
        (((1, 1), (2, 3), (3, 3)), [(2, 3)]),  # empty intervals take no time
        (((1, 2), (1, 2)), [(1, 2)]),
    ],
)
def test_merge(pairs: tuple[tuple[float, float], ...], merged: list[tuple[float, float]]) -> None:
    start, end = merge(*spans(*pairs))
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == merged
    assert union_s(*spans(*pairs)) == sum(e - s for s, e in merged)


def test_overlap_and_exposed() -> None:
    comm, compute = spans((0, 4), (3, 6), (8, 9), (20, 21)), spans((2, 5), (5, 7), (8, 9), (10, 12))
    assert overlap_s(*comm, *compute) == 5.0
    assert exposed_s(*comm, *compute) == 3.0
    assert exposed_s(*compute, *comm) == 3.0


def test_nothing_overlaps_with_nothing() -> None:
    some, none = spans((0, 1)), spans()
    assert overlap_s(*some, *none) == overlap_s(*none, *some) == overlap_s(*none, *none) == 0.0
    assert (exposed_s(*some, *none), exposed_s(*none, *some)) == (1.0, 0.0)


def test_a_backward_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it starts"):
        union_s(*spans((2, 1)))
    with pytest.raises(ValueError, match="no number"):
        union_s(*spans((0, math.nan)))


def test_a_short_overlap_beside_long_intervals_keeps_its_digits() -> None:
    start_s = 1.0 - 1e-9
    comm, compute = spans((0.0, 1.0)), spans((start_s, 1000.1))
    assert overlap_s(*comm, *compute) == 1.0 - start_s
    by_inclusion = union_s(*comm) + union_s(*compute) - union_s(*spans((0.0, 1.0), (start_s, 1000.1)))
    assert by_inclusion != pytest.approx(1.0 - start_s, rel=1e-6, abs=0)  # the shorter formula would not


def test_many_short_intervals_sum_to_1e9_relative() -> None:
    start = np.arange(300_000) * 1e-4
    end = start + 1e-7
    assert union_s(start, end) == pytest.approx(math.fsum(end - start), rel=1e-15)
    assert union_s(start, end) == pytest.approx(0.03, rel=1e-8)  # what float64 holds of 30 s + 1e-7 s
    assert overlap_s(start, end, np.array([0.0]), np.array([1e3])) == union_s(start, end)
    assert exposed_s(start, end, np.array([0.0]), np.array([1e3])) == 0.0
