"""Interval arithmetic against an oracle that counts ticks of a discrete clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.engine.events import EventLog, RankGroup, merge
from step_breakdown import exposed_s, measure, overlap_s, union_s

TICKS = 60
TICK_S = 2.0**-20  # a power of two: every border is a float64 exactly

Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)).map(lambda p: (min(p), max(p))))
real = st.floats(0, 1e3, allow_subnormal=False)
real_spans = st.lists(st.tuples(real, real).map(lambda p: (min(p), max(p))), max_size=40)


def columns(pairs: list[tuple[float, float]], scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=float).reshape(-1, 2) * scale
    return table[:, 0], table[:, 1]


def ticks(pairs: Spans) -> set[int]:
    """The oracle: every tick of the clock that lies in an interval."""
    return {tick for start, end in pairs for tick in range(start, end)}


@given(spans)
def test_union_counts_the_ticks(a: Spans) -> None:
    assert union_s(*columns(a, TICK_S)) == len(ticks(a)) * TICK_S


@given(spans, spans)
def test_overlap_and_exposed_count_the_ticks(a: Spans, b: Spans) -> None:
    both = (*columns(a, TICK_S), *columns(b, TICK_S))
    assert overlap_s(*both) == len(ticks(a) & ticks(b)) * TICK_S
    assert exposed_s(*both) == len(ticks(a) - ticks(b)) * TICK_S


@given(spans)
def test_merged_intervals_are_sorted_and_apart(a: Spans) -> None:
    start, end = merge(*columns(a))
    assert np.all(start < end)
    assert np.all(end[:-1] < start[1:])


@given(real_spans, real_spans)
def test_identities_of_real_times(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> None:
    a_columns, b_columns = columns(a), columns(b)
    union, overlap = union_s(*a_columns), overlap_s(*a_columns, *b_columns)
    assert exposed_s(*a_columns, *b_columns) + overlap == pytest.approx(union, rel=1e-9, abs=1e-12)
    assert overlap == overlap_s(*b_columns, *a_columns)
    assert union <= sum(end - start for start, end in a) * (1 + 1e-9)
    assert overlap <= min(union, union_s(*b_columns)) * (1 + 1e-9)
    only_b = exposed_s(*b_columns, *a_columns)
    assert union_s(*columns(a + b)) == pytest.approx(union + only_b, rel=1e-9, abs=1e-12)


@given(spans, spans, st.integers(0, 20))
def test_a_step_is_compute_and_exposed_and_waiting(compute: Spans, comm: Spans, rest: int) -> None:
    log = EventLog()
    for start, end in compute:
        log.compute("kernel", start * TICK_S, (end - start) * TICK_S)
    for start, end in comm:
        log.comm("all_gather", RankGroup(name="dp_shard", size=2), start * TICK_S, (end - start) * TICK_S, 1.0)
    step_s = (TICKS + rest) * TICK_S
    times = measure(log.freeze(step_s=step_s))
    assert times.compute_s + times.exposed_comm_s + times.waiting_s == step_s
    assert times.exposed_comm_s + times.overlapped_comm_s == times.comm_s == len(ticks(comm)) * TICK_S
    assert times.compute_s <= times.compute_load_s
    assert times.comm_s <= times.comm_load_s
    assert sum(load_s for _, load_s in times.loads.values()) == times.comm_load_s
    assert sum(calls for calls, _ in times.loads.values()) == len(comm)
