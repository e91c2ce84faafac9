"""Traces are read into the events that were written, and into what others measured in theirs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gloo_traces import gloo_trace, span
from knee.engine.one_job import events_of
from knee.engine.simulator import evaluate
from knee.measure.kineto.cpu_trace import settle
from knee.measure.kineto.decode import nanoseconds
from knee.measure.kineto.event_columns import LaunchCall
from knee.measure.kineto.kineto_writer import write_kineto
from knee.measure.kineto.process_groups import collective_of
from knee.measure.traces import analyse
from knee.measure.traces.plain_data import record, step_of
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.notes import code_of
from knee.specs.plan import Plan
from knee.specs.plan_table import table_of
from knee.training.run.worker import axes_of, coordinates, keeps_trace
from refusals import caught
from step_breakdown import measure


@pytest.mark.parametrize("plan", [{}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"dp_replicate": 2, "sharding": "hsdp"}])
def test_a_simulated_step_comes_back(tmp_path: Path, plan: dict[str, Any]) -> None:
    job, _ = make_job(
        load_model("llama-1b").spec,
        load_cluster("dgx-h100").spec,
        load_profile("paper").spec,
        gpus=16,
        local_batch=2,
        plan_options=plan,
    )
    written = events_of(job)
    paths = write_kineto(written, tmp_path / "step.json.gz")
    for events, path in zip(written, paths, strict=True):
        rank = analyse(path, cache=False).ranks[0]
        before, after = measure(events), rank.times
        assert (rank.rank, rank.trace.columns.world_size, len(rank.steps)) == (events.rank, 16, 1)
        assert rank.step_s == pytest.approx(events.step_s, abs=2e-9)
        for name in ("compute_load_s", "comm_load_s", "compute_s", "comm_s", "exposed_comm_s", "overlapped_comm_s"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-9 * len(events)), name
        calls: Counter[tuple[str, str]] = Counter()
        for load in rank.collectives:
            calls[load.collective, load.group] += load.calls
        assert calls == {key: load.calls for key, load in before.loads.items()}
        for (collective, group), load in before.loads.items():
            lasted = sum(c.load_s for c in rank.collectives if (c.collective, c.group) == (collective, group))
            assert lasted == pytest.approx(load.load_s, abs=1e-9 * len(events))
        assert {call.group for call in rank.trace.calls.values()} == set(events.groups)
        moved = sum(call.message_bytes for call in rank.trace.calls.values())
        assert moved == pytest.approx(events.message_bytes[events.is_comm].sum(), rel=1e-4)


@pytest.mark.parametrize("plan", [{"pp": 2}, {"pp": 2, "tp": 2}])
def test_a_simulated_pipelines_record_is_the_simulators(tmp_path: Path, plan: dict[str, Any]) -> None:
    """A stage waits without a kernel: the bubble is not told from idle, and together they are what was simulated."""
    job, _ = make_job(
        load_model("llama-1b").spec,
        load_cluster("dgx-h100").spec,
        load_profile("paper").spec,
        gpus=16,
        local_batch=4,
        plan_options=plan | {"micro_batch": 1},
    )
    simulated = evaluate(job.model, job.cluster, job.profile, table_of([job])).results
    found = analyse(write_kineto(events_of(job), tmp_path / "step.json"), cache=False)
    read = record(found)
    assert (read["kind"], read["bubble_s"]) == ("simulated", None)
    assert {code_of(rank.audit.notes[-1]) for rank in found.ranks} == {"simulated"}
    for name in ("step_s", "compute_s", "comm_s", "exposed_comm_s", "overlapped_comm_s"):
        assert read[name] == pytest.approx(float(getattr(simulated, name)[0]), rel=1e-4), name
    assert simulated.bubble_s[0] > 0
    assert read["idle_s"] == pytest.approx(float(simulated.idle_s[0] + simulated.bubble_s[0]), rel=1e-4)


def test_steps_and_copies_of_old_torch(tmp_path: Path) -> None:
    """torch 1.8 to 1.11: Kernel, Memcpy, Memset, Runtime, and steps that are operators."""
    events = []
    for i in range(2):
        events += [
            span(f"ProfilerStep#{i}", 1000 * i, 900, category="Operator"),
            span("cudaLaunchKernel", 1000 * i + 10, 5, category="Runtime", correlation=i),
            span("gemm", 1000 * i + 50, 100, category="Kernel", correlation=i, stream=7, device=0),
            span("Memcpy HtoD", 1000 * i + 200, 30, category="Memcpy", stream=7, device=0),
            span("Memset (Device)", 1000 * i + 250, 20, category="Memset", stream=7, device=0),
        ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    rank = analyse(tmp_path / "t.json", cache=False).ranks[0]
    assert [part.step for part in rank.steps] == [0, 1]
    assert (rank.audit.kernels, rank.audit.copies, rank.audit.without_launch) == (2, 4, 0)
    assert (rank.times.copy_load_s, rank.times.fill_load_s) == (pytest.approx(60e-6), pytest.approx(40e-6))


def test_gloo_calls_are_what_issued_them(tmp_path: Path) -> None:
    rank = analyse(gloo_trace(tmp_path / "t.json.gz"), cache=False).ranks[0]
    times = rank.times
    assert rank.trace.columns.is_host
    assert rank.audit.sentences() == []
    assert {(load.collective, load.group): (load.calls, round(load.load_s * 1e6)) for load in rank.collectives} == {
        ("all_gather", "dp_shard"): (1, 100),
        ("reduce_scatter", "dp_shard"): (1, 100),
        ("all_gather", "tp"): (1, 20),
        ("send_recv", "pp"): (1, 30),
        ("all_reduce", "world"): (1, 40),
    }
    # aten::linear, the backward's mm, and what an operator with a collective inside does besides it
    assert times.compute_s == pytest.approx((100 + 50 + 20) * 1e-6, abs=2e-9)
    assert times.overlapped_comm_s == pytest.approx(80e-6, abs=2e-9)
    assert rank.step_s == pytest.approx(1e-3, abs=2e-9)


def test_the_axis_of_a_call_follows_from_its_threads_others() -> None:
    def call(thread: int, axis: str | None, ranks: int | None = None) -> LaunchCall:
        return LaunchCall("gloo:all_gather", str(thread), None, axis, 1, True, "float", ranks)

    calls = [call(1, "dp_shard", 2), call(2, None, 2), call(2, "world"), call(3, "world"), call(4, None, 8)]
    sizes = {"dp_shard": 2, "tp": 2, "world": 4}
    assert [one.axis for one in settle(calls, sizes)] == ["dp_shard", "tp", "tp", "world", None]
    # two axes of one size: nothing tells which
    assert settle([call(2, None, 2)], {**sizes, "cp": 2, "dp_shard": 1})[0].axis is None
    # the world, where no other group can be meant
    assert [one.axis for one in settle([call(2, None), call(3, None, 4)], {"world": 4})] == ["world", "world"]
    assert [one.axis for one in settle([call(2, None), call(3, None, 4)], sizes)] == [None, "world"]


def test_a_trace_per_step_with_messages(tmp_path: Path) -> None:
    axes = axes_of(Plan(tp=2, dp_shard=2))
    found = step_of(analyse(gloo_trace(tmp_path / "t.json.gz"), axes=axes, cache=False).ranks[0])
    loads = {(load["collective"], load["group"]): load for load in found["comm_loads"]}
    assert loads["all_gather", "dp_shard"]["message_bytes"] == 64 * 4
    assert loads["reduce_scatter", "dp_shard"]["message_bytes"] == 64 * 4
    assert loads["all_gather", "tp"]["group_size"] == 2
    assert found["step_s"] == pytest.approx(1e-3, abs=2e-9)


def test_an_axis_that_spans_all_ranks_gives_the_world_its_name() -> None:
    assert axes_of(Plan(dp_shard=8))["world"] == "dp_shard"
    assert axes_of(Plan(tp=4))["world"] == "tp"
    assert axes_of(Plan(cp=2, dp_shard=2))["world"] == "dp_shard"
    assert axes_of(Plan(tp=4, dp_shard=2)) == {}


def test_ranks_that_keep_a_trace() -> None:
    plan = Plan(tp=2, dp_shard=8, pp=2)
    assert coordinates(plan, 19) == {"tp": 1, "cp": 0, "dp_shard": 1, "dp_replicate": 0, "pp": 1}
    assert [rank for rank in range(32) if keeps_trace(plan, rank, 32)] == [0, 16]
    assert keeps_trace(Plan(tp=2, dp_shard=2), 3, 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4458676416788.066", 4458676416788066), ("12", 12000), ("0.0005", 0), ("1.5e3", 1500000), ("3.25", 3250)],
)
def test_times_are_whole_nanoseconds(text: str, expected: int) -> None:
    assert nanoseconds(text) == expected


def test_collectives_by_name() -> None:
    assert collective_of("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL") == "reduce_scatter"
    assert collective_of("_allgather_base") == "all_gather"
    assert collective_of("ncclKernel_AllReduce_RING_LL_Sum_float") == "all_reduce"
    assert collective_of("ncclDevKernel_Generic") is None


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty"),
        (b"{", "not-json"),
        (b"[]", "empty"),
        (b'{"traceEvents": 3}', "not-a-trace"),
        (b'{"traceEvents": []}', "empty"),
        (b"\x1f\x8bxx", "cut-off"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    error = caught(lambda: analyse(path, cache=False))
    assert error.code == code
    assert str(path) in error.message
    assert caught(lambda: analyse(tmp_path / "none.json")).code == "no-file"
