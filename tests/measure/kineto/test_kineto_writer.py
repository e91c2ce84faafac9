"""A written trace has Kineto's shape, keeps every nanosecond, and says the same to another tool's reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knee.base.errors import InputError
from knee.engine.events import EventLog, Events, RankGroup
from knee.measure.kineto.kineto_writer import BASE_NS, nccl_kernel, write_kineto
from step_breakdown import measure

SHARD = RankGroup(name="dp_shard", size=64, first_rank=1, stride=2)
PP = RankGroup(name="pp", size=2, first_rank=3, stride=64)


def a_step(rank: int = 3, layers: int = 40) -> Events:
    """Layers on the compute stream, each with a gather before it and a scatter after it."""
    log, unit_s = EventLog(), 1e-3 / 3
    for i in range(layers):
        log.comm("all_gather", SHARD, i * 5 * unit_s, 3 * unit_s, 4096.0, "bf16", 20)
        log.compute(f"layer {i}", (i * 5 + 2) * unit_s, unit_s)
        log.compute(f"layer {i}", (i * 5 + 3) * unit_s, unit_s)
        log.comm("reduce_scatter", SHARD, (i * 5 + 2.5) * unit_s, 2 * unit_s, 8192.0, "fp32", 21)
    log.comm("send_recv", PP, layers * 5 * unit_s, unit_s, 1024.0, "bf16", 22)
    return log.freeze(rank=rank, world_size=128, step_s=(layers * 5 + 2) * unit_s)


def read(path: Path) -> dict[str, Any]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    trace: dict[str, Any] = json.loads(data)
    return trace


def of(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


def ns(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end in nanoseconds after the base."""
    start = round((event["ts"] - BASE_NS / 1e3) * 1e3)
    return start, start + round(event["dur"] * 1e3)


def test_one_stage_is_written_to_the_path_itself(tmp_path: Path) -> None:
    assert write_kineto([a_step()], tmp_path / "step.json") == [tmp_path / "step.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["step.json"]


def test_several_stages_have_a_file_per_rank(tmp_path: Path) -> None:
    paths = write_kineto([a_step(rank=0), a_step(rank=64)], tmp_path / "step.pt.json.gz")
    assert [path.name for path in paths] == ["step.pt_rank0.json.gz", "step.pt_rank64.json.gz"]
    assert [read(path)["distributedInfo"]["rank"] for path in paths] == [0, 64]
    with pytest.raises(ValueError, match="same rank"):
        write_kineto([a_step(), a_step()], tmp_path / "step.json")


def test_the_same_events_give_the_same_file_and_compression_changes_nothing(tmp_path: Path) -> None:
    (plain,) = write_kineto([a_step()], tmp_path / "a.json")
    (packed,) = write_kineto([a_step()], tmp_path / "a.json.gz")
    first = packed.read_bytes()
    write_kineto([a_step()], packed)
    assert packed.read_bytes() == first
    assert read(plain)["traceEvents"] == read(packed)["traceEvents"]


def test_header(tmp_path: Path) -> None:
    (path,) = write_kineto([a_step()], tmp_path / "step.json", device="H100")
    trace = read(path)
    assert trace["schemaVersion"] == 1
    assert trace["deviceProperties"] == [{"id": 0, "name": "H100"}]
    info = trace["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"], info["pg_count"]) == ("nccl", 3, 128, 2)
    assert info["pg_config"][1] == {
        "pg_name": "2",
        "pg_desc": "pp",
        "backend_config": "cuda:nccl",
        "pg_size": 2,
        "ranks": [3, 67],
    }
    assert trace["baseTimeNanoseconds"] > 0
    # HolisticTraceAnalysis looks for the rank line by line, with a space.
    assert any('"rank": 3' in line and len(line) < 2000 for line in path.read_text().splitlines())


def test_times_survive_to_a_nanosecond(tmp_path: Path) -> None:
    events = a_step()
    (path,) = write_kineto([events], tmp_path / "step.json")
    times = np.array([ns(kernel) for kernel in of(read(path), "kernel")])
    assert np.abs(times[:, 0] - events.start_s * 1e9).max() < 0.51
    assert np.abs(times[:, 1] - events.end_s * 1e9).max() < 0.51


def test_kernels_that_follow_each_other_do_not_overlap(tmp_path: Path) -> None:
    log, time_ns, generator = EventLog(), 0.0, np.random.default_rng(0)
    # Borders at half nanoseconds, which float64 puts a little above or below.
    for duration_ns in (generator.integers(1, 2000, 5000) + 0.5).tolist():
        log.compute("kernel", time_ns * 1e-9, duration_ns * 1e-9)
        time_ns += duration_ns
    events = log.freeze()
    (path,) = write_kineto([events], tmp_path / "step.json")
    times = np.array([ns(kernel) for kernel in of(read(path), "kernel")])
    assert (times[1:, 0] >= times[:-1, 1]).all()
    assert np.abs(times[:, 1] - events.end_s * 1e9).max() < 0.51


def test_communication_kernels_carry_nccl_names_and_arguments(tmp_path: Path) -> None:
    (path,) = write_kineto([a_step()], tmp_path / "step.json")
    kernels = of(read(path), "kernel")
    gather = next(k for k in kernels if "AllGather" in k["name"])
    scatter = next(k for k in kernels if "ReduceScatter" in k["name"])
    send = next(k for k in kernels if "SendRecv" in k["name"])
    assert gather["name"] == "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert scatter["name"] == "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert (gather["pid"], gather["tid"], gather["args"]["stream"]) == (0, 20, 20)
    args = gather["args"]
    assert (args["Collective name"], args["dtype"]) == ("_allgather_base", "BFloat16")
    assert (args["In msg nelems"], args["Out msg nelems"]) == (32, 2048)
    assert (scatter["args"]["In msg nelems"], scatter["args"]["Out msg nelems"]) == (2048, 32)
    assert (send["args"]["In msg nelems"], send["args"]["Out msg nelems"]) == (512, 512)
    assert (args["Group size"], args["Process Group Name"], args["Process Group Description"]) == (64, "1", "dp_shard")
    assert (args["Global rank start"], args["Global rank stride"], args["Rank"]) == (1, 2, 3)
    assert args["Process Group Ranks"].startswith("[1, 3, 5,")
    assert args["Process Group Ranks"].endswith("59, ...]")
    assert send["args"]["Process Group Ranks"] == "[3, 67]"
    in_shard = [k["args"]["Seq"] for k in kernels if k["args"].get("Process Group Name") == "1"]
    assert in_shard == list(range(1, 81))


def test_compute_kernels_keep_their_names_and_have_no_collective(tmp_path: Path) -> None:
    log = EventLog()
    log.compute('gemm "quoted" <µ>', 0.0, 1e-3)
    (path,) = write_kineto([log.freeze()], tmp_path / "step.json")
    (kernel,) = of(read(path), "kernel")
    assert kernel["name"] == 'gemm "quoted" <µ>'
    assert "Collective name" not in kernel["args"]


def test_nccl_names() -> None:
    assert nccl_kernel("all_reduce", "bf16").startswith("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(")
    assert nccl_kernel("all_to_all", "bf16").startswith("ncclDevKernel_SendRecv(")


def burst(gap_s: float, kernels: int, tail_s: float) -> Events:
    log = EventLog()
    for i in range(kernels):
        log.compute("kernel", i * gap_s, gap_s)
    return log.freeze(step_s=kernels * gap_s + tail_s)


@pytest.mark.parametrize(
    "events",
    [a_step(), burst(1e-9, 500, 1.0), burst(0.0, 500, 2e-3), burst(2e-6, 500, 0.0), burst(1.0, 0, 1.0)],
    ids=["layers", "burst", "all at once", "launch bound", "empty"],
)
def test_every_kernel_is_launched_before_it_starts_in_its_step(tmp_path: Path, events: Events) -> None:
    (path,) = write_kineto([events], tmp_path / "step.json")
    trace = read(path)
    launches = {e["args"]["correlation"]: ns(e) for e in of(trace, "cuda_runtime")}
    kernels = {e["args"]["correlation"]: ns(e) for e in of(trace, "kernel")}
    assert launches.keys() == kernels.keys()
    assert len(kernels) == len(events)
    assert min(launches, default=2**16) > 2**15 - 1  # HTA keeps row numbers in the type of these ids
    assert all(launches[i][1] <= kernels[i][0] for i in kernels)
    ends, starts = [-BASE_NS, *(e for _, e in sorted(launches.values()))], sorted(launches.values())
    assert all(start >= end for end, (start, _) in zip(ends, starts, strict=False))
    step, following = of(trace, "user_annotation")
    assert (step["name"], following["name"]) == ("ProfilerStep#1", "ProfilerStep#2")
    assert ns(step)[1] - ns(step)[0] == round(events.step_s * 1e9)
    assert all(ns(step)[0] < start < ns(following)[0] for start, _ in launches.values())
    assert ns(following)[0] >= ns(step)[1]
    assert min(e["ts"] for e in trace["traceEvents"]) > 0


def test_launches_of_a_step_that_is_not_launch_bound_end_within_its_annotation(tmp_path: Path) -> None:
    log = EventLog()
    for _ in range(500):
        log.compute("burst", 0.0, 1e-6)
    log.compute("last", 4e-3, 1e-6)
    (path,) = write_kineto([log.freeze()], tmp_path / "step.json")
    trace = read(path)
    step, following = of(trace, "user_annotation")
    assert max(ns(e)[1] for e in of(trace, "cuda_runtime")) <= ns(step)[1] == ns(following)[0]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist") as error:
        write_kineto([a_step()], tmp_path / "none" / "step.json")
    assert error.value.hint == f"mkdir -p {tmp_path / 'none'}"


def test_a_path_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "step.json").mkdir()
    with pytest.raises(InputError, match="cannot be written") as error:
        write_kineto([a_step()], tmp_path / "step.json")
    assert error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["step.json"]


def test_other_suffixes_and_no_events_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.json or \.json\.gz") as error:
        write_kineto([a_step()], tmp_path / "step.txt")
    assert error.value.hint
    with pytest.raises(InputError, match="no events"):
        write_kineto([], tmp_path / "step.json")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stages", [1, 2])
def test_holistic_trace_analysis_agrees_with_its_default_settings(tmp_path: Path, stages: int) -> None:
    analysis = pytest.importorskip("hta.trace_analysis")
    # 97 and 109 kernels: ids from 1 would fit 8 bits and their row numbers not, which crashes the reader.
    steps = [a_step(rank=64 * stage, layers=24 + 3 * stage) for stage in range(stages)]
    write_kineto(steps, tmp_path / "step.json")
    trace = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    overlap = trace.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    assert sorted(overlap.index) == [events.rank for events in steps]
    for events in steps:
        times, rows = measure(events), trace.t.get_trace(events.rank)
        assert (rows["stream"] >= 0).sum() == len(events)  # no kernel was dropped
        assert (rows.loc[rows["stream"] >= 0, "iteration"] == 1).all()
        assert overlap[events.rank] == pytest.approx(100 * times.overlapped_comm_s / times.comm_s, abs=0.5)
