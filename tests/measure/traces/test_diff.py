"""What changed from one trace to another, and what explains it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knee.measure.traces import analyse
from knee.measure.traces.diff import PARTS, Diff, _within_scatter, diff
from small_traces import ADD, GATHER, GEMM, job, write

TRACES = Path(__file__).parents[4] / "shared" / "traces"


def parts_add_up(found: Diff) -> None:
    for which in ("a", "b", "change"):
        parts = sum(getattr(found.times[name], which) for name in PARTS)
        assert getattr(found.times["step_s"], which) == pytest.approx(parts, abs=1e-12)


def test_a_longer_gather_is_found(tmp_path: Path) -> None:
    a, b = job(tmp_path / "a.json"), job(tmp_path / "b.json", gather=400_001)
    found = diff(analyse(a, cache=False), analyse(b, cache=False))
    parts_add_up(found)
    exposed = found.times["exposed_comm_s"]
    assert exposed.change == pytest.approx(100e-6)
    assert exposed.relative_frac == pytest.approx(100_000 / 199_998)
    assert found.times["compute_s"].change == 0
    first = found.collectives[0]
    assert (first.collective, first.group, first.message_bytes, first.calls.a, first.calls.b) == (
        "all_gather",
        "dp_shard",
        4000.0,
        1.0,
        1.0,
    )
    assert first.exposed_s.change == pytest.approx(100e-6)
    assert found.kernels[0].name == GATHER
    assert found.classes[0].name == "nccl"


def test_the_finding_names_the_cause(tmp_path: Path) -> None:
    def one(name: str, gather: int, gemm: int) -> Path:
        kernels = [(GEMM, 7, 1000, gemm), (GATHER, 20, 1000 + gemm, gather), (ADD, 7, 1000 + gemm + gather, 5000)]
        return write(tmp_path / name, kernels, steps=[(1, -2000, 4000)])

    a, b = (analyse(one(*args), cache=False) for args in (("a.json", 100_000, 50_000), ("b.json", 160_000, 70_000)))
    assert diff(a, b).finding == (
        "step +80.0 µs (+51.6%): exposed communication +60.0 µs, mostly all_gather over "
        "dp_shard; compute +20.0 µs, mostly gemm"
    )
    assert diff(b, a).finding.startswith("step -80.0 µs (-34.0%): exposed communication -60.0 µs, mostly all_gather")
    assert diff(a, a).finding == "nothing changed"


def test_kernels_appear_and_vanish(tmp_path: Path) -> None:
    steps = [(1, -2000, 20_000)]
    a = write(tmp_path / "a.json", [(GEMM, 7, 0, 5000), (ADD, 7, 6000, 1000)], steps=steps)
    b = write(tmp_path / "b.json", [("nvjet_hsh_128x256", 7, 0, 4000), (ADD, 7, 6000, 1500)], steps=steps)
    found = diff(analyse(a, cache=False), analyse(b, cache=False))
    assert {
        status: [k.name for k in found.kernels if k.status == status] for status in ("appeared", "vanished", "changed")
    } == {
        "appeared": ["nvjet_hsh_128x256"],
        "vanished": [GEMM],
        "changed": [ADD],
    }
    assert next(k for k in found.kernels if k.status == "appeared").load_s.relative_frac is None
    assert [(k.name, k.load_s.change) for k in found.classes] == [
        ("gemm", pytest.approx(-1e-6)),
        ("elementwise", pytest.approx(0.5e-6)),
    ]


def test_ranks_and_steps_may_differ_in_number(tmp_path: Path) -> None:
    one = analyse(job(tmp_path / "a.json", steps=2, copy=False), cache=False)
    two = analyse([job(tmp_path / f"rank{i}.json", rank=i, steps=4, copy=False) for i in range(2)], cache=False)
    found = diff(one, two)
    parts_add_up(found)
    assert found.times["compute_s"].change == pytest.approx(0, abs=1e-12)
    assert found.times["exposed_comm_s"].change == pytest.approx(0, abs=1e-12)
    assert {(k.calls.a, k.calls.b) for k in found.kernels} == {(2.0, 2.0), (20.0, 20.0), (1.0, 1.0)}
    assert found.notes == ()


def test_scatter_is_not_taken_for_a_change(tmp_path: Path) -> None:
    def scattered(name: str, lengths: list[int]) -> Path:
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        kernels = [(GEMM, 7, 3000 + start, length - 3000) for start, length in zip(starts, lengths, strict=True)]
        return write(tmp_path / name, kernels, steps=[(i, start, 3000) for i, start in enumerate(starts)])

    a = analyse(scattered("a.json", [100_000, 120_000, 90_000, 110_000]), cache=False)
    b = analyse(scattered("b.json", [121_000, 101_000, 91_000, 111_000]), cache=False)
    c = analyse(scattered("c.json", [200_000, 220_000, 190_000, 210_000]), cache=False)
    assert diff(a, b).within_scatter
    assert "within the variation between steps" in diff(a, b).finding
    assert diff(a, c).within_scatter is False
    assert "compute +100" in diff(a, c).finding


def test_no_steps_are_said_and_all_of_it_is_json(tmp_path: Path) -> None:
    a = analyse(write(tmp_path / "a.json", [(GEMM, 7, 0, 5000)]), cache=False)
    b = analyse(job(tmp_path / "b.json"), cache=False)
    found = diff(a, b)
    assert found.notes == ("A has no profiler steps, so the whole trace counts as one step",)
    record = json.loads(json.dumps(found.as_json()))
    assert record["finding"] == found.finding
    assert record["times"]["exposed_comm_s"]["relative_frac"] is None
    assert {one["status"] for one in record["kernels"]} == {"appeared", "changed"}


def test_two_real_ranks() -> None:
    paths = [TRACES / f"hta_128rank_sampled_rank{i}.json.gz" for i in range(2)]
    if not paths[0].exists():
        pytest.skip("traces that others recorded are not here: put them into ../shared/traces")
    found = diff(*(analyse(path) for path in paths))
    parts_add_up(found)
    assert found.times["exposed_comm_s"].a == pytest.approx(336_983e-6 / 2, rel=0.2)


def test_scatter_is_two_standard_errors_of_the_means() -> None:
    a: Any = SimpleNamespace(steps_s=[1.0, 1.1, 1.2])
    b: Any = SimpleNamespace(steps_s=[1.8, 2.0, 2.0, 2.2])
    error = (0.01 / 3 + 0.08 / 3 / 4) ** 0.5  # variances over the number of steps
    assert _within_scatter(a, b, 1.99 * error) is True
    assert _within_scatter(a, b, -2.01 * error) is False
    assert _within_scatter(a, SimpleNamespace(steps_s=[1.0, 2.0]), 0.0) is None  # type: ignore[arg-type]
