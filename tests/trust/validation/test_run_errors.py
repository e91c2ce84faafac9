"""Scores of a validation, against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from knee.base.errors import SpecError
from knee.engine.one_job import simulate
from knee.measure.hardware_fit.residuals import Residuals
from knee.trust.validation import bundled_runs
from knee.trust.validation import run_errors as validation
from knee.trust.validation.csv_cells import by_kind, reason_of
from knee.trust.validation.published_runs import PublishedRun, RunFile, read_runs
from knee.trust.validation.run_errors import Fitting, Prediction, Ranking, predict, rank_group, spearman, validate
from knee.trust.validation.run_to_job import job_of, unknown_gpu
from runs_files import ROW, runs_file


def read(folder: Path, *rows: dict[str, Any]) -> RunFile:
    return read_runs(runs_file(folder / "runs.csv", *rows))


def pretend(monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], fits: dict[int, bool] | None = None) -> None:
    """Predictions by tp, so that scores can be worked out."""

    def fake(runs: tuple[PublishedRun, ...], *_: object) -> tuple[list[Prediction], list[tuple[PublishedRun, str]]]:
        return [
            Prediction(
                run=run,
                stack="any",
                tokens_per_s_per_gpu=rates[run.setting.tp],
                memory_bytes=30 * 2.0**30,
                fits=(fits or {}).get(run.setting.tp, True),
                notes=("assumed",),
            )
            for run in runs
        ], []

    monkeypatch.setattr(validation, "predict", fake)


def test_a_table_predicts_what_one_job_does(tmp_path: Path) -> None:
    rows = [
        ROW | {"tokens_per_s_per_gpu": 1000, "tp": tp, "sharding": sharding, "gpu": gpu}
        for tp in (1, 2, 4)
        for sharding in ("fsdp", "zero1")
        for gpu in ("h100-80gb", "a100-40gb")
    ]
    found, refused = predict(read(tmp_path, *rows).runs)
    assert (len(found), refused) == (12, [])
    for p in found:
        one = simulate(job_of(p.run.setting).job)
        assert p.tokens_per_s_per_gpu == pytest.approx(one.tokens_per_s_per_gpu, rel=1e-12)
        assert p.memory_bytes == pytest.approx(one.memory_bytes, rel=1e-12)
        assert p.fits == one.fits


@pytest.mark.parametrize(("stack", "unread"), [("", True), ("nanotron", True), ("Megatron-DeepSpeed", False)])
def test_a_reading_of_the_allocator_leaves_the_context_out(tmp_path: Path, stack: str, unread: bool) -> None:
    row = ROW | {"memory_gib": 40, "stack": stack, "gpu": "a100-80gb"}
    (p,), _ = predict(read(tmp_path, row).runs)
    job = job_of(p.run.setting).job
    one = simulate(job)
    assert p.memory_bytes == pytest.approx(one.memory_bytes - unread * job.profile.context_bytes, rel=1e-12)
    assert p.fits == one.fits
    assert (validation.UNREAD in p.notes) == unread


def test_each_source_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {1: 110.0, 2: 150.0, 4: 80.0})
    many = [ROW | {"source": "A", "tokens_per_s_per_gpu": 100, "layers": n} for n in range(2, 7)]
    few = [ROW | {"source": s, "tokens_per_s_per_gpu": 100, "tp": tp} for s, tp in (("B", 2), ("C", 4))]
    found = validate(read(tmp_path, *many, *few))
    errors = {name: score.throughput for name, score in found.sources.items()}
    assert [r and round(r.median_frac, 9) for r in errors.values()] == [0.1, 0.5, 0.2]
    assert [r and round(r.bias_frac, 9) for r in errors.values()] == [0.1, 0.5, -0.2]
    assert found.headline_frac == pytest.approx(0.2)
    assert found.all.throughput is not None
    assert found.all.throughput.median_frac == pytest.approx(0.1)
    assert found.all.throughput.points == 7


def test_memory_and_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {1: 110.0})
    rows = [ROW | {"tokens_per_s_per_gpu": rate, "memory_gib": gib} for rate, gib in ((90, 30), (100, 40), (130, 50))]
    found = validate(read(tmp_path, *rows))
    score = found.sources["unnamed"]
    assert (score.rows, score.rows_used, score.runs) == (3, 3, 1)
    assert score.throughput is not None
    assert score.memory is not None
    assert score.throughput.bias_frac == pytest.approx(0.1)
    assert score.memory.bias_frac == pytest.approx(-0.25)
    first, *rest = found.notes.items()
    assert first[0].startswith("defaults for missing columns: tp 1")
    assert rest == [("assumed", 3)]
    assert found.stacks == {"any": 3}
    assert {2, 3, 4} == set(found.predictions)


def test_confusion_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {1: 1.0, 2: 1.0}, {1: False, 2: True})
    statuses = {1: ["ok", "oom", "oom", "failed"], 2: ["ok", "ok", "oom", "failed", "failed", "failed"]}
    rows = [
        ROW | {"tp": tp, "status": status, "layers": 2 + i}
        for tp, words in statuses.items()
        for i, status in enumerate(words)
    ]
    assert validate(read(tmp_path, *rows)).all.fitting == {
        "ok": Fitting(fits=2, does_not=1),
        "oom": Fitting(fits=1, does_not=2),
        "failed": Fitting(fits=3, does_not=1),
    }


def test_regret_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """knee ranks tp 2 first, which ran at 80 where tp 1 ran at 100; with tp 2 not fitting it takes tp 4, at 60."""
    measured = {1: 100, 2: 80, 4: 60}
    rows = [ROW | {"tp": tp, "tokens_per_s_per_gpu": rate} for tp, rate in measured.items()]
    rows += [ROW | {"tp": 1, "status": "failed", "micro_batch": 4}]
    rows += [ROW | {"tp": 1, "tokens_per_s_per_gpu": 500, "seq_len": 8192}]  # another job, with one plan only
    rates = {1: 70.0, 2: 90.0, 4: 75.0}
    for fits, regret in (({}, 0.2), ({2: False}, 0.4), ({1: False, 2: False, 4: False}, 0.2)):
        pretend(monkeypatch, rates, fits)
        found = validate(read(tmp_path, *rows))
        (group,) = found.groups
        assert (group.plans, group.source) == (3, "unnamed")
        assert group.regret_frac == pytest.approx(regret)
        assert group.spearman == pytest.approx(-0.5)
        assert found.all.ranking == Ranking.of([group])


def test_skips_are_counted_by_source(tmp_path: Path) -> None:
    good = ROW | {"source": "A", "tokens_per_s_per_gpu": 1000}
    bad = ({"gpu": "abacus"}, {"source": "B", "tp": 3}, {"tp": "x"})
    found = validate(read(tmp_path, good, *(good | change for change in bad)))
    assert (found.all.rows, found.all.rows_used) == (4, 1)
    assert sorted(found.sources["A"].skipped.values()) == [1, 1]
    assert found.sources["B"].throughput is None
    assert set(found.reasons) == {3, 4, 5}
    assert sum(found.all.skipped.values()) == 3


def test_more_memory_than_the_gpu_has_is_a_reason(tmp_path: Path) -> None:
    found = validate(read(tmp_path, ROW | {"memory_gib": 80}, ROW | {"memory_gib": 90, "tp": 2}))
    assert found.reasons == {3: "memory_gib is 90, but h100-sxm has 79.65"}


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    found = validate(read(tmp_path, ROW | {"status": "oom", "memory_gib": 70}))
    assert found.notes["status is oom but throughput or memory is given; these values are not compared"] == 1


def test_reasons_of_one_code_and_field_are_one() -> None:
    gpus = [reason_of(unknown_gpu(f"chip{i}")) for i in range(5)]
    other = [
        reason_of(SpecError("tp is 3", code="unknown-choice", field="tp")),
        reason_of(SpecError("tp is wide", code="not-a-number", field="tp")),
        reason_of(SpecError("about no field")),
        reason_of(SpecError("about no field either")),
        "a sentence alone",
    ]
    assert by_kind(dict.fromkeys(other, 1) | dict.fromkeys(gpus, 2)) == {f"{gpus[0]} (and 4 more of this kind)": 10} | (
        dict.fromkeys(other, 1)
    )


def test_an_empty_headline(tmp_path: Path) -> None:
    found = validate(read(tmp_path, ROW | {"status": "oom"}))
    assert found.headline_frac is None
    assert found.all.throughput is None
    assert found.all.ranking is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        ([1, 1, 2], [1, 2, 3], 0.8660254037844387),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_rank_correlation(a: list[float], b: list[float], expected: float | None) -> None:
    found = spearman(np.array(a), np.array(b))
    assert found == (None if expected is None else pytest.approx(expected))


def test_two_plans_have_no_rank_correlation() -> None:
    group = rank_group("A", np.array([1.0, 2.0]), np.array([4.0, 4.0]), np.array([True, True]))
    assert (group.regret_frac, group.spearman) == (0.0, None)


def test_the_fidelity_of_carried_runs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians and 90th percentiles of each source; over sources the median of medians, over runs the percentile."""
    unseen = [("a", 0.1), ("a", -0.2), ("a", 0.6), ("b", 0.4)]
    monkeypatch.setattr(bundled_runs, "_unseen_errors", lambda _name: unseen)

    def run(source: str, gpu: str, n_gpus: int) -> Any:
        setting = SimpleNamespace(source=source, gpu=gpu, n_gpus=n_gpus)
        return SimpleNamespace(run=SimpleNamespace(setting=setting), stack=f"stack of {source}")

    def score(*errors: float) -> Any:
        return SimpleNamespace(throughput=Residuals.of(1.0 + np.array(errors), np.ones(len(errors))), memory=None)

    found: Any = SimpleNamespace(
        sources={
            "a": score(0.1, -0.3, 0.2),
            "b": score(0.05),
            "c": SimpleNamespace(throughput=None, memory=None),
        },
        predictions=dict(enumerate([run("a", "h100-80gb", 8), run("a", "a100-40gb", 1024), run("b", "h100-80gb", 64)])),
    )
    where = {"a": {"reference": "A", "form_from": "F"}, "b": {"reference": "B"}}
    fidelity = bundled_runs._fidelity(found, "errors.csv", where, {})
    one, other = fidelity.sources
    assert (one.source, one.stacks, one.gpus, one.runs) == ("a", "stack of a", "A100, H100, up to 1,024", 3)
    assert (one.reference, one.form_from, other.form_from) == ("A", "F", None)
    assert (one.median_frac, one.bias_frac, one.p90_frac) == pytest.approx((0.2, 0.1, 0.28))
    assert (one.unseen_frac, one.unseen_p90_frac, one.memory_median_frac) == (
        pytest.approx(0.2),
        pytest.approx(0.52),
        None,
    )
    assert (other.median_frac, other.unseen_frac, other.runs) == (pytest.approx(0.05), 0.4, 1)
    assert (fidelity.headline_frac, fidelity.unseen_frac) == pytest.approx((0.125, 0.3))
    assert fidelity.unseen_p90_frac == pytest.approx(0.54)
