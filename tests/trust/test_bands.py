"""Bands: between sources, then within; wider with distance; asymmetric where errors are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from band_coverage import Judged, coverage
from band_fit import ASSUMED, fit_factors, fit_labels

from errors_made import ends, job, some, table
from knee.specs.job import Job
from knee.trust.bands import LABELS, Constants, Scores, carried_constants, spread_ends
from knee.trust.error_table import (
    FULL_LAYER_S,
    NAMES,
    SMALLEST_LAYER,
    Errors,
    Measured,
    layer_work,
    layer_work_of_runs,
    micro_tokens,
    tokens_per_gpu,
)
from knee.trust.trust import DoublingBand, doubling_band, trust_of

PLAIN = Constants(
    factors=np.ones(len(NAMES)), labels=dict.fromkeys(LABELS, 1.0), assumed_between=0.1, assumed_within=0.1
)


def sources(n: int, error: float = 0.0, **changes: Any) -> list[dict[str, Any]]:
    """Runs of sources that err alike but for a little."""
    errors = error + 0.01 * np.linspace(-1.0, 1.0, n)
    return [row for i in range(n) for row in some(8, float(errors[i]), source=f"s{i}", **changes)]


def test_ends_are_quantiles_of_many_sources() -> None:
    values = np.linspace(-0.5, 0.5, 1001)
    low, high = spread_ends(values, [str(i) for i in range(1001)], 0.8, 0.1, 0.1)
    assert (low, high) == (pytest.approx(-0.4, abs=0.005), pytest.approx(0.4, abs=0.005))


@pytest.mark.parametrize(("covered_frac", "z"), [(0.8, 1.2815516), (0.6, 0.8416212)])
def test_ends_of_eleven_sources_worked_by_hand(covered_frac: float, z: float) -> None:
    """One run each: the quantiles are those of the sources, and the factor is that of the twelfth of normal values."""
    low, high = spread_ends(np.arange(11.0) ** 2, [str(i) for i in range(11)], covered_frac, 0.1, 0.1)
    more = math.sqrt(12 / 11) * (1.0 + (z**2 + 1.0) / 40.0)
    first, last = (1.0, 81.0) if covered_frac == 0.8 else (4.0, 64.0)
    assert (low, high) == pytest.approx((25.0 + more * (first - 25.0), 25.0 + more * (last - 25.0)), rel=1e-4)


def test_within_adds_to_between() -> None:
    middles, names = np.repeat(np.linspace(-0.2, 0.2, 20), 100), np.repeat(np.arange(20).astype(str), 100).tolist()
    within = np.tile(np.linspace(-0.2, 0.2, 100), 20)
    between, both = (spread_ends(values, names, 0.8, 0.1, 0.1) for values in (middles, middles + within))
    assert both[0] < between[0] - 0.03
    assert both[1] > between[1] + 0.03


def test_sources_count_alike_however_many_runs_they_have() -> None:
    few = [("a", 0.0)] + [(name, 0.5) for name in "bcdef"]
    many = [("a", 0.0)] * 500 + few[1:]
    found = [spread_ends(np.array([v for _, v in some]), [n for n, _ in some], 0.8, 0.1, 0.1) for some in (few, many)]
    assert found[0] == found[1]


def test_errors_to_one_side_widen_that_side() -> None:
    values = -(np.linspace(0.0, 1.0, 21) ** 2)
    low, high = spread_ends(values, [str(i) for i in range(21)], 0.8, 0.1, 0.1)
    assert -low > 4.0 * abs(high)


def test_few_sources_are_filled_up_with_what_is_assumed() -> None:
    one = spread_ends(np.zeros(50), ["a"] * 50, 0.9, 0.1, 0.1)
    assert one[0] < -0.1
    assert one[1] > 0.1
    five = spread_ends(np.zeros(50), [str(i % 5) for i in range(50)], 0.9, 0.1, 0.1)
    assert five == (0.0, 0.0)


def test_a_source_fewer_widens() -> None:
    values = np.linspace(-0.3, 0.3, 6)
    few = spread_ends(values, list("abcdef"), 0.9, 0.1, 0.1)
    many = spread_ends(np.repeat(values, 5), [str(i) for i in range(30)], 0.9, 0.1, 0.1)
    assert few[0] < many[0]
    assert few[1] > many[1]


def test_more_to_hold_is_wider() -> None:
    narrow, wide = (trust_of(job(), covered_frac=share) for share in (0.8, 0.9))
    assert ends(wide)[0] < ends(narrow)[0] < ends(narrow)[1] < ends(wide)[1]
    assert (narrow.covered_frac, wide.covered_frac) == (0.8, 0.9)


def test_errors_as_shipped_do_not_matter(tmp_path: Path) -> None:
    plain = trust_of(job(), errors=table(tmp_path, *sources(6)))
    fitted = trust_of(job(), errors=table(tmp_path, *(row | {"error_frac": 9.0} for row in sources(6))))
    assert plain == fitted


# Distance.


def distances(asked: Job, errors: Errors) -> dict[str, float]:
    measured = Measured(errors, np.ones(len(errors), dtype=np.bool_))
    found = measured.of_job(asked, asked.cluster.gpu.name, asked.profile.name)
    return {name: value for name, value in zip(NAMES, found.tolist(), strict=True) if value}


@pytest.mark.parametrize(("asked", "found"), [
    (job(profile="llm-foundry"), {}),
    (job(), {"stack": 1.0}),
    (job(profile="nanotron"), {"stack": 1.0}),
    (job("dgx-h200", profile="llm-foundry"), {"gpu": 1.0}),
    (job(profile="llm-foundry", gpus=256), {"doublings": 2.0}),
    (job(profile="llm-foundry", precision="fp8"), {"precision": 1.0}),
    (job(profile="llm-foundry", cp=2), {"parallelism": 1.0}),
    (job(profile="llm-foundry", cp=2, gpus=256), {"parallelism": 1.0, "doublings": 2.0}),
])  # fmt: skip
def test_what_is_far(tmp_path: Path, asked: Job, found: dict[str, float]) -> None:
    measured = distances(asked, table(tmp_path, *sources(2)))
    measured.pop("small_layers", None)
    assert measured == pytest.approx(found)


def test_a_schedule_and_tp_across_nodes_are_far(tmp_path: Path) -> None:
    errors = table(tmp_path, *sources(2, pp=2, tp=2, dp=16, sharding="zero1"))
    near = job(profile="llm-foundry", pp=2, tp=2, sharding="zero1", micro_batch=1)
    assert not {"parallelism", "tp_across_nodes"} & distances(near, errors).keys()
    plan = replace(near.plan, schedule="zero_bubble")
    assert "parallelism" in distances(replace(near, plan=plan), errors)
    wide = job(profile="llm-foundry", pp=2, tp=16, sharding="zero1", micro_batch=1)
    assert "tp_across_nodes" in distances(wide, errors)


def test_small_layers_are_counted_in_halvings(tmp_path: Path) -> None:
    errors = table(tmp_path, *sources(2))
    asked = job(profile="llm-foundry")
    layer_s = 24.0 * 4096 * asked.model.hidden**2 / asked.cluster.gpu.fp16_flop_per_s
    expected = max(math.log2(FULL_LAYER_S / layer_s), 0.0)
    assert distances(asked, errors).get("small_layers", 0.0) == pytest.approx(expected)
    tiny = replace(asked, model=replace(asked.model, hidden=64, heads=2, kv_heads=2, ffn=128))
    assert distances(tiny, errors)["small_layers"] == SMALLEST_LAYER


def test_runs_are_as_far_as_they_are_from_other_sources(tmp_path: Path) -> None:
    rows = [
        *some(4),
        *some(4, source="b", n_gpus=256, dp=256),
        *some(4, source="c", gpu="a100-sxm-80", profile="nanotron"),
    ]
    errors = table(tmp_path, *rows)
    found = dict(zip(NAMES, Measured(errors, np.ones(12, dtype=np.bool_)).of_runs(), strict=True))
    assert found["stack"].tolist() == [0.0] * 8 + [1.0] * 4
    assert found["gpu"].tolist() == [0.0] * 8 + [1.0] * 4
    assert found["doublings"].tolist() == [0.0] * 4 + [2.0] * 4 + [0.0] * 4


def test_every_distance_widens_and_none_narrows() -> None:
    for constants in carried_constants().values():
        assert (constants.factors >= 1.0).all()
        assert 1.0 <= constants.labels["validated"] <= constants.labels["near"] <= constants.labels["extrapolated"]


def test_a_run_s_error_counts_as_much_as_its_distance_explains(tmp_path: Path) -> None:
    rows = [row for i in range(6) for row in some(4, 0.3, source=f"s{i}", profile="eager")]
    errors = table(tmp_path, *rows)
    twice = replace(PLAIN, factors=np.where(np.array(NAMES) == "stack", 2.0, 1.0))
    plain, scaled = (Scores(errors, "throughput", constants).ends(0.8) for constants in (PLAIN, twice))
    assert scaled[0] == pytest.approx(plain[0] / 2.0)


# Fits.


def test_factors_are_found_where_errors_grow(tmp_path: Path) -> None:
    rows = [row for i in range(8) for row in some(20, 0.05 * (-1) ** i, source=f"s{i}")]
    rows += [row for i in range(8) for row in some(20, 0.3 * (-1) ** i, source=f"n{i}", profile="eager")]
    errors = table(tmp_path, *rows)
    found = dict(zip(NAMES, fit_factors(errors, "throughput"), strict=True))
    assert found["stack"] > 2.0
    assert found["gpu"] == pytest.approx(ASSUMED["throughput"]["gpu"], abs=0.02)
    few = errors.where(errors.is_("source", "s0", "n0"))
    assert fit_factors(few, "throughput") == pytest.approx([ASSUMED["throughput"][name] for name in NAMES])


def test_labels_are_widened_until_they_hold(tmp_path: Path) -> None:
    errors = table(tmp_path, *sources(10))
    judged = [
        Judged(source=f"s{i}", label=label, quantity="throughput", log_truth=off, distances=np.zeros(len(NAMES)))
        for i in range(10)
        for label, off in (("near", 0.001), ("extrapolated", 0.03))
    ]
    found = fit_labels(errors, "throughput", PLAIN, judged).labels
    assert found["validated"] == found["near"] == 1.0
    assert found["extrapolated"] > 1.5


def test_coverage_is_by_label_and_by_source(tmp_path: Path) -> None:
    errors = table(tmp_path, *sources(6))
    judged = [
        Judged(source=source, label="near", quantity="throughput", log_truth=off, distances=np.zeros(len(NAMES)))
        for source, off in (("s0", 0.0), ("s1", 9.0), ("s1", 0.0))
    ]
    rows = coverage(errors, judged=judged)
    held = {(row.source, row.covered_frac): (row.runs, row.held_frac) for row in rows}
    assert held["s0", 0.9] == (1, 1.0)
    assert held["s1", 0.9] == (2, 0.5)
    assert held["", 0.9] == (3, 0.75)


# What more GPUs buy.


def test_the_band_of_a_doubling_widens_beyond_the_largest_pair() -> None:
    band = DoublingBand(low_frac=-0.1, high_frac=0.1, pairs=9, largest_gpus=64, covered_frac=0.9)
    assert band.factors(8) == band.factors(64) == (0.9, 1.1)
    assert band.factors(1024)[0] < 0.9
    assert band.factors(1024)[1] > 1.1


def test_the_band_of_a_doubling_is_of_unseen_errors(tmp_path: Path) -> None:
    rows = [
        row | {"error_frac": 0.0}
        for i in range(6)
        for gpus, error in ((64, 0.0), (128, 0.25))
        for row in some(1, error, source=f"s{i}", n_gpus=gpus)
    ]
    band = doubling_band(table(tmp_path, *rows))
    assert band is not None
    assert (band.low_frac, band.high_frac) == (pytest.approx(-0.2), pytest.approx(-0.2))


def of_runs(tmp_path: Path, *rows: dict[str, Any]) -> dict[str, list[float]]:
    """How far each run is from those of other sources."""
    errors = table(tmp_path, *rows)
    found = Measured(errors, np.ones(len(rows), dtype=np.bool_)).of_runs()
    return dict(zip(NAMES, found.tolist(), strict=True))


def test_runs_are_far_by_schedule_kind_precision_and_tp_across_nodes(tmp_path: Path) -> None:
    piped = {"pp": 2, "dp": 32}
    found = of_runs(
        tmp_path,
        piped | {"source": "a"},
        piped | {"source": "b", "schedule": "zero_bubble"},
        piped | {"source": "c"},
        {"source": "d", "tp": 16, "dp": 4, "schedule": "gpipe"},  # one of a kind; without a pipeline no schedule counts
        {"source": "e", "precision": "fp8"},
        {"source": "f", "schedule": "gpipe"},
    )
    assert found["parallelism"] == [0, 1, 0, 1, 0, 0]
    assert found["precision"] == [0, 0, 0, 0, 1, 0]
    assert found["tp_across_nodes"] == [0, 0, 0, 1, 0, 0]
    assert found["stack"] == found["gpu"] == found["doublings"] == [0] * 6


def test_profiles_of_no_one_stack_are_always_far(tmp_path: Path) -> None:
    rows = [{"source": source, "profile": profile} for source in "ab" for profile in ("eager", "llm-foundry")]
    assert of_runs(tmp_path, *rows)["stack"] == [1, 0, 1, 0]


def test_the_work_of_a_layer_is_that_of_the_job_s_microbatch(tmp_path: Path) -> None:
    """Tokens x hidden^2 / tp, and the tokens of a sequence where a file does not know those of a microbatch."""
    errors = table(
        tmp_path,
        {"micro_tokens": 8192, "hidden": 1024, "tp": 4},
        {"micro_tokens": "", "seq_len": 6144, "cp": 2, "hidden": 512, "tp": 2},
    )
    assert layer_work_of_runs(errors).tolist() == [8192 * 1024**2 / 4, 3072 * 512**2 / 2]
    asked = job(tp=2, cp=2, micro_batch=2)
    assert (micro_tokens(asked), tokens_per_gpu(asked)) == (4096, 2 * 4096)
    assert layer_work(asked) == 4096 * 4096**2 / 2


def test_small_layers_of_runs_are_counted_at_their_gpu_s_peak(tmp_path: Path) -> None:
    sizes = {"hidden": 512, "micro_tokens": 2048}
    found = of_runs(
        tmp_path, {**sizes, "source": "a"}, {**sizes, "source": "b", "gpu": "a100-sxm-80"}, {"hidden": 65536}
    )
    layer_s = [24 * 2048 * 512**2 / peak for peak in (989.4e12, 312e12)]
    expected = [math.log2(FULL_LAYER_S / s) for s in layer_s]
    assert found["small_layers"] == pytest.approx([min(expected[0], 6.0), min(expected[1], 6.0), 0.0], rel=1e-3)


def test_gpus_are_counted_from_the_largest_run_of_the_kind_or_of_any(tmp_path: Path) -> None:
    found = of_runs(
        tmp_path,
        {"source": "a", "n_gpus": 64},
        {"source": "a", "n_gpus": 512},
        {"source": "b", "n_gpus": 128},
        {"source": "c", "n_gpus": 1024, "tp": 2},  # the only one with TP
    )
    assert found["doublings"] == [0, 2, 0, 1]
