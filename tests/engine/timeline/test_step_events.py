"""Events are columns, checked once; EventLog builds them; measure reads them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from knee.engine.events import COLLECTIVES, COMM_STREAM, COMPUTE_STREAM, EventLog, Events, RankGroup
from step_breakdown import UNKNOWN, measure

SHARD = RankGroup(name="dp_shard", size=4, first_rank=1, stride=2)
TP = RankGroup(name="tp", size=2)


def a_step() -> Events:
    """Compute 0-4 and 5-8, gather 3-6, scatter 7-10 on a second stream, gather 9-10; step of 12 s."""
    log = EventLog()
    log.compute("forward", 0.0, 4.0)
    log.compute("backward", 5.0, 3.0)
    log.comm("reduce_scatter", SHARD, 7.0, 3.0, 4096.0, "fp32", 21)
    log.comm("all_gather", SHARD, 3.0, 3.0, 2048.0, "bf16")
    log.comm("all_gather", SHARD, 9.0, 1.0, 2048.0, "bf16")
    return log.freeze(rank=3, world_size=8, step_s=12.0)


def test_the_log_freezes_into_columns_sorted_by_start() -> None:
    events = a_step()
    assert len(events) == 5
    assert events.start_s.tolist() == [0.0, 3.0, 5.0, 7.0, 9.0]
    assert events.end_s.tolist() == [4.0, 6.0, 8.0, 10.0, 10.0]
    assert events.stream.tolist() == [COMPUTE_STREAM, COMM_STREAM, COMPUTE_STREAM, 21, COMM_STREAM]
    assert [events.names[i] for i in events.name_id] == [
        "forward",
        "all_gather",
        "backward",
        "reduce_scatter",
        "all_gather",
    ]
    gather, scatter = COLLECTIVES.index("all_gather"), COLLECTIVES.index("reduce_scatter")
    assert events.collective.tolist() == [-1, gather, -1, scatter, gather]
    assert events.group_id.tolist() == [-1, 0, -1, 0, 0]
    assert [events.dtypes[i] for i in events.dtype_id[events.is_comm]] == ["bf16", "fp32", "bf16"]
    assert events.message_bytes.tolist() == [0.0, 2048.0, 0.0, 4096.0, 2048.0]
    assert (events.start_s.dtype, events.stream.dtype) == (np.float64, np.int32)
    assert (events.collective.dtype, events.group_id.dtype, events.is_comm.dtype) == (np.int8, np.int16, bool)


def test_columns_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        a_step().start_s[0] = 1.0


def test_an_empty_log_is_an_empty_step() -> None:
    events = EventLog().freeze(step_s=1.0)
    assert len(events) == 0
    times = measure(events)
    assert (times.waiting_s, times.compute_s, times.comm_s, times.loads) == (1.0, 0.0, 0.0, {})


def test_a_step_without_length_ends_with_its_last_kernel() -> None:
    log = EventLog()
    log.compute("forward", 1.0, 2.5)
    assert log.freeze().step_s == 3.5
    assert EventLog().freeze().step_s == 0.0


def test_a_group_lists_its_ranks() -> None:
    assert list(SHARD.ranks) == [1, 3, 5, 7]
    with pytest.raises(ValueError, match="size 0"):
        RankGroup(name="tp", size=0)


def test_unknown_collectives_and_types_are_refused() -> None:
    log = EventLog()
    with pytest.raises(ValueError, match="'gather' is not a collective"):
        log.comm("gather", TP, 0.0, 1.0, 8.0)
    with pytest.raises(ValueError, match="'bfloat16' is not a type"):
        log.comm("all_gather", TP, 0.0, 1.0, 8.0, "bfloat16")
    assert len(log) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_s": 9.0}, "after the step"),
        ({"step_s": float("nan")}, "finite"),
        ({"rank": 8}, "not in a world of 8"),
        ({"start_s": [-1.0, 0, 0, 0, 0]}, "negative"),
        ({"start_s": [float("inf"), 0, 0, 0, 0]}, "not finite"),
        ({"duration_s": [1.0]}, "rows"),
        ({"group_id": [0, 0, 0, 0, 1]}, "group_id has values outside"),
        ({"name_id": [0, 0, 0, 0, -1]}, "name_id has values outside"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(a_step(), **change)


def test_rounding_beyond_the_step_is_not_an_error_and_not_negative_waiting() -> None:
    log = EventLog()
    log.compute("forward", 0.1, 0.2)  # ends at 0.30000000000000004
    assert measure(log.freeze(step_s=0.3)).waiting_s == pytest.approx(0.1)
    log.compute("forward", 0.0, 0.1)
    assert measure(log.freeze(step_s=0.3)).waiting_s == 0.0


def test_measure_tells_loads_from_times() -> None:
    times = measure(a_step())
    assert (times.compute_load_s, times.comm_load_s) == (7.0, 7.0)
    assert (times.compute_s, times.comm_s) == (7.0, 6.0)  # 9-10 has two communication kernels
    assert (times.exposed_comm_s, times.overlapped_comm_s) == (3.0, 3.0)
    assert times.waiting_s == 2.0
    assert times.loads == {("all_gather", "dp_shard"): (2, 4.0), ("reduce_scatter", "dp_shard"): (1, 3.0)}


def test_loads_join_groups_of_one_name_and_keep_kernels_that_say_nothing() -> None:
    log = EventLog()
    log.comm("all_reduce", TP, 0.0, 1.0, 8.0)
    log.comm("all_reduce", RankGroup(name="tp", size=2, first_rank=4), 1.0, 2.0, 8.0)
    log.comm("all_reduce", SHARD, 3.0, 1.0, 8.0)
    events = log.freeze()
    assert measure(events).loads == {("all_reduce", "tp"): (2, 3.0), ("all_reduce", "dp_shard"): (1, 1.0)}
    nameless = dataclasses.replace(events, collective=[-1, -1, -1], group_id=[-1, -1, -1])
    assert measure(nameless).loads == {(UNKNOWN, UNKNOWN): (3, 4.0)}
