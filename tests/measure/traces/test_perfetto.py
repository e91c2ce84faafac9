"""A small trace has every stretch of exposed communication, for Perfetto and for knee."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from headless_perfetto import ask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gloo_traces import gloo_trace
from knee.base.errors import InputError
from knee.measure.traces import Analysis, analyse
from knee.measure.traces.kernel_classes import classes_of
from knee.measure.traces.perfetto import MARGIN_NS, write_small
from small_traces import ADD, BASE_NS, GATHER, GEMM, Kernel, job, write

TRACES = Path(__file__).parents[4] / "shared" / "traces"
REAL = ("hta_128rank_sampled_rank0", "hta_a100_2rank_rank0_nccl_args", "tracelens_b200_8rank_rank0")
NOT_HERE = "traces that others recorded are not here: put them into ../shared/traces"


def small(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return list(json.loads(data)["traceEvents"])


def same_exposure(one: Analysis, two: Analysis) -> None:
    a, b = one.ranks[0], two.ranks[0]
    assert (a.rank, a.trace.columns.device_name) == (b.rank, b.trace.columns.device_name)
    assert a.times.exposed_comm_s == b.times.exposed_comm_s
    assert a.times.window_s == b.times.window_s
    assert [(s.step, s.times.window_s, s.times.exposed_comm_s) for s in a.steps] == [
        (s.step, s.times.window_s, s.times.exposed_comm_s) for s in b.steps
    ]

    def exposed(analysis: Analysis) -> dict[Any, float]:
        loads = analysis.ranks[0].collectives
        return {(c.collective, c.group, c.group_size, c.message_bytes): c.exposed_s for c in loads if c.exposed_s}

    assert exposed(one) == exposed(two)


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
def test_steps_and_exposed_time_are_those_of_the_whole(tmp_path: Path, name: str) -> None:
    whole = analyse(job(tmp_path / "whole.json"), cache=False)
    written = write_small(whole, tmp_path / name)
    assert whole.ranks[0].times.exposed_comm_s > 0
    same_exposure(whole, analyse(tmp_path / name, cache=False))
    assert (written.intervals, written.of_kernels) == (3, 3 * 25)
    # of each step: the product and the gather beside it; and the copy that ends the window
    assert written.kernels == 3 * 2 + 1
    assert written.bytes == (tmp_path / name).stat().st_size
    assert written.exposed_comm_s == pytest.approx(whole.ranks[0].times.exposed_comm_s)
    said = analyse(tmp_path / name, cache=False).ranks[0].audit.sentences()
    assert "reduced by knee to 7 of 75 kernels" in said[-1]


def test_a_chosen_window_comes_back_cut(tmp_path: Path) -> None:
    # the gather reaches over the end of step 5
    path = write(
        tmp_path / "t.json",
        [(GEMM, 7, 1000, 5000), (GATHER, 20, 4000, 20_000), (GEMM, 7, 15_000, 3001)],
        steps=[(5, -2000, 10_000), (6, 10_000, 20_000)],
    )
    whole = analyse(path, steps=1, cache=False)
    assert whole.times.exposed_comm_s == pytest.approx(9e-6)
    write_small(whole, tmp_path / "s.json")
    same_exposure(whole, analyse(tmp_path / "s.json", cache=False))
    cut = next(event for event in small(tmp_path / "s.json") if event["name"] == GATHER)
    assert (cut["dur"], cut["args"]["whole duration, us"]) == (11.0, "20.000")


def test_times_are_written_exactly(tmp_path: Path) -> None:
    write_small(analyse(job(tmp_path / "whole.json"), cache=False), tmp_path / "s.json")
    text = (tmp_path / "s.json").read_text()
    assert '"ts": 0.000, "dur": 200.003,' in text
    assert '"dur": 300.001,' in text
    assert f'"zero_ns": {BASE_NS + 10_000}' in text


def test_hidden_communication_stays_hidden(tmp_path: Path) -> None:
    # exposed only at its end; the compute that hides the rest lies far beyond the margin
    length = 40 * MARGIN_NS
    path = write(
        tmp_path / "t.json",
        [
            *((GEMM, 7, i * MARGIN_NS, MARGIN_NS) for i in range(1, 39)),
            (GATHER, 20, MARGIN_NS, length),
            (ADD, 7, 60 * MARGIN_NS, 10),
        ],
    )
    whole = analyse(path, cache=False)
    write_small(whole, tmp_path / "s.json")
    again = analyse(tmp_path / "s.json", cache=False)
    same_exposure(whole, again)
    assert again.times.overlapped_comm_s == whole.times.overlapped_comm_s > 0


def test_compute_for_its_streams_sake_stays_compute(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json",
        [
            ("cross_device_reduce_1stage", 7, 1000, 5000),
            (GATHER, 20, 2000, 8000),
            (ADD, 7, 10 * MARGIN_NS, 10),
            (ADD, 8, 20 * MARGIN_NS, 10),
        ],
    )
    file = tmp_path / "classes.toml"
    file.write_text("[staged]\npattern = 'cross_device'\ncommunication = true\nstreams = 'side'\n")
    whole = analyse(path, classes=classes_of(file=file), cache=False)
    assert whole.times.exposed_comm_s == pytest.approx(4e-6)
    write_small(whole, tmp_path / "s.json")
    same_exposure(whole, analyse(tmp_path / "s.json", classes=classes_of(file=file), cache=False))


def test_without_communication_there_are_steps_only(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [(GEMM, 7, 1000, 5000), (GEMM, 7, 7000, 5000)], steps=[(5, -2000, 10_000)])
    written = write_small(analyse(path, cache=False), tmp_path / "s.json")
    assert (written.intervals, written.exposed_comm_s) == (0, 0)
    assert analyse(tmp_path / "s.json", cache=False).times.window_s == pytest.approx(11e-6)


KERNELS = st.lists(st.tuples(st.sampled_from([GATHER, GEMM, ADD, "cross_device_reduce_1stage", "Memcpy DtoH"]),
                             st.sampled_from([7, 8, 20]), st.integers(0, 300), st.integers(0, 60)),
                   min_size=1, max_size=30)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KERNELS, st.integers(0, 3), st.integers(0, 2))
def test_any_kernels_come_back(tmp_path: Path, kernels: list[Kernel], steps: int, skip: int) -> None:
    path = write(tmp_path / "t.json", kernels, steps=[(i, i * 100 - 2000, 100) for i in range(steps)])
    try:
        whole = analyse(path, skip=skip, cache=False)
    except InputError:  # no step is left
        return
    with patch("knee.measure.traces.perfetto.MARGIN_NS", 5):
        write_small(whole, tmp_path / "s.json")
    a, b = whole.ranks[0].times, analyse(tmp_path / "s.json", cache=False).ranks[0].times
    assert (a.exposed_comm_s, a.window_s) == (b.exposed_comm_s, b.window_s)


def test_a_processors_trace_comes_back(tmp_path: Path) -> None:
    whole = analyse(gloo_trace(tmp_path / "t.json.gz"), cache=False)
    write_small(whole, tmp_path / "s.json")
    again = analyse(tmp_path / "s.json", cache=False)
    assert again.times.exposed_comm_s == whole.times.exposed_comm_s

    def calls(analysis: Analysis) -> list[tuple[Any, ...]]:
        loads = analysis.ranks[0].collectives
        return sorted((c.collective, c.group, c.group_size, c.message_bytes, c.exposed_s) for c in loads)

    assert calls(again) == calls(whole)


def test_only_traces_are_written(tmp_path: Path) -> None:
    whole = analyse(job(tmp_path / "whole.json"), cache=False)
    with pytest.raises(InputError, match=r"a \.json or \.json\.gz"):
        write_small(whole, tmp_path / "s.txt")
    with pytest.raises(InputError, match="cannot be written"):
        write_small(whole, tmp_path / "no" / "s.json")


def test_ranks_are_processes_and_the_first_is_read_back(tmp_path: Path) -> None:
    paths = [job(tmp_path / f"rank{i}.json", rank=i, gather=300_001 + 1000 * i) for i in range(2)]
    whole = analyse(paths, cache=False)
    assert not write_small(whole, tmp_path / "s.json").aligned
    same_exposure(whole, analyse(tmp_path / "s.json", cache=False))
    rows = ask(
        tmp_path / "s.json",
        """select p.name, t.name, count(*), sum(dur) from slice s
               join thread_track tt on s.track_id = tt.id join thread t using (utid) join process p using (upid)
               group by 1, 2 order by 1, 2""",
        tmp_path,
    )
    # kernels other than the gather: a product a step, and the copy
    assert rows == [
        [f"rank {i} NVIDIA H200", name, count, length]
        for i in range(2)
        for name, count, length in (
            ("exposed communication", 3, 3 * (199_998 + 1000 * i)),
            ("steps", 3, 5_730_000),
            ("stream 20", 3, 3 * (300_001 + 1000 * i)),
            ("stream 7", 4, 3 * 200_003 + 30_000),
        )
    ]


def test_ranks_without_a_common_clock_begin_together(tmp_path: Path) -> None:
    paths = [job(tmp_path / f"rank{i}.json", rank=i, base_ns=BASE_NS + i * 10**15) for i in range(2)]
    assert write_small(analyse(paths, cache=False), tmp_path / "s.json").aligned
    assert max(event["ts"] for event in small(tmp_path / "s.json") if event["ph"] == "X") < 10_000


@pytest.mark.slow
def test_perfetto_keeps_kernels_that_touch_and_that_overlap(tmp_path: Path) -> None:
    kernels = [
        (GATHER, 20, 0, 900_007),
        *((ADD, 7, 3 + i * 1001, 1001) for i in range(300)),  # each touches the next
        *((GEMM, 8, 400_000 + i * 500, 700) for i in range(200)),
        (GEMM, 8, 400_100, 50),
    ]
    whole = analyse(write(tmp_path / "t.json", kernels), cache=False)
    written = write_small(whole, tmp_path / "s.json.gz")
    assert written.kernels == len(kernels)
    assert ask(written.path, "select name from stats where value > 0 and severity != 'info'", tmp_path) == []
    rows = ask(
        written.path,
        """select category, t.name, utid, ts, ts + dur from slice s
               join thread_track tt on s.track_id = tt.id join thread t using (utid) order by ts, dur""",
        tmp_path,
    )
    zero = rows[0][3]
    found = [(start - zero, end - zero) for category, _, _, start, end in rows if category == "kernel"]
    assert found == sorted((start, start + length) for _, _, start, length in kernels)
    assert sum(category == "exposed" for category, *_ in rows) == written.intervals
    threads = {(name, thread) for category, name, thread, *_ in rows if category == "kernel"}
    assert sorted(name for name, _ in threads) == ["stream 20", "stream 7", "stream 8", "stream 8"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_traces_come_back(tmp_path: Path, name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(NOT_HERE)
    whole = analyse(path)
    written = write_small(whole, tmp_path / "s.json.gz")
    assert written.bytes < path.stat().st_size / 4
    same_exposure(whole, analyse(written.path, cache=False))


@pytest.mark.parametrize("where", ["own", pytest.param("recorded", marks=pytest.mark.slow)])
def test_perfetto_has_all_of_a_job(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "job" if where == "own" else TRACES / "param_v100_8rank_dlrm"
    if where == "own":
        folder.mkdir()
        for rank in range(2):
            job(folder / f"rank{rank}.json", rank=rank)
    elif not folder.exists():
        pytest.skip(NOT_HERE)
    whole = analyse(folder)
    written = write_small(whole, tmp_path / "s.json")
    steps = sum(part.step is not None for rank in whole.ranks for part in rank.steps)
    exposed_ns = round(sum(rank.times.exposed_comm_s for rank in whole.ranks) * 1e9)
    rows = ask(written.path, "select count(*), sum(iif(category = 'exposed', dur, 0)) from slice", tmp_path)
    assert rows == [[written.kernels + written.intervals + steps, exposed_ns]]
