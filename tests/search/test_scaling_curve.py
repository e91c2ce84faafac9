"""Curves, returns, knees and bills, on made measurements."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from knee.base.errors import InputError, SpecError
from knee.commands.scale.chart import ScaleSeries, bars, spec_of
from knee.engine.energy import grid, grid_names
from knee.engine.measurement import Measurement
from knee.engine.one_job import simulate
from knee.engine.reliability.goodput import goodput_of
from knee.engine.training_cost import bill_of, checked_pue, parse_tokens
from knee.engine.workload.parameters import parameter_count
from knee.search.knee import (
    GOALS,
    Curve,
    ScalePoint,
    best_point,
    curve_of,
    curve_with_failures,
    goodputs_of,
    knees_of,
    parse_counts,
    point_of,
)
from knee.search.space import Space
from knee.specs.job import Job
from knee.specs.load import NOT_WHOLE, global_batch_of, load_cluster, load_model, load_profile, make_job
from knee.trust.trust import DoublingBand, doubling_band

TINY, H100, EAGER = (
    load(name).spec for load, name in ((load_model, "llama-1b"), (load_cluster, "dgx-h100"), (load_profile, "eager"))
)


def job_at(gpus: int, **options: object) -> Job:
    return make_job(TINY, H100, EAGER, gpus=gpus, local_batch=2, plan_options=options)[0]


def made(tokens_per_s: dict[int, float], *, w_per_gpu: float = 500.0, price: float | None = 2.0) -> Curve:
    """A curve with these throughputs; a count without one does not fit."""
    base: Measurement = simulate(job_at(8))
    points = []
    for gpus, tokens in tokens_per_s.items():
        usd = None if price is None else price / 3600 / (tokens / gpus) * 1e6 if tokens else 1.0
        m = replace(
            base,
            tokens_per_s=tokens,
            tokens_per_s_per_gpu=tokens / gpus,
            fits=tokens > 0,
            power_w_per_gpu=w_per_gpu,
            tokens_per_j=tokens / gpus / w_per_gpu,
            usd_per_mtoken=usd,
        )
        points.append(ScalePoint(gpus=gpus, job=job_at(8), measured=m, reason=None if tokens else "does not fit"))
    return Curve(points=tuple(points))


BENT = {8: 800.0, 16: 1600.0, 32: 3000.0, 64: 4800.0, 128: 6000.0}
"""Doublings buy 2, 1.875, 1.6 and 1.25."""


def test_counts_are_doublings_lists_or_both() -> None:
    assert parse_counts("8..2048") == [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert parse_counts("8, 16,24") == [8, 16, 24]
    assert parse_counts("24,8..20") == [8, 16, 24]
    assert parse_counts("7") == [7]


@pytest.mark.parametrize("text", ["", "8..", "..8", "64..8", "0..8", "-8", "8;16", "8.5", "1e3", "8..64..4", "9" * 12])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_counts(text)
    assert error.value.hint


def test_weak_scaling_needs_whole_sequences() -> None:
    assert global_batch_of(8, local_batch=0.5, global_batch=None) == 4
    assert global_batch_of(8, local_batch=None, global_batch=48) == 48
    with pytest.raises(SpecError) as refused:
        global_batch_of(3, local_batch=0.5, global_batch=None)
    assert refused.value.code == NOT_WHOLE


def test_returns_are_per_doubling_and_per_added_gpu() -> None:
    first, second = made({8: 800.0, 16: 1400.0, 64: 1400.0 * 1.5**2}).returns()
    assert first.speedup == pytest.approx(1.75)
    assert first.added_tokens_per_s_per_gpu == pytest.approx(75)
    assert first.added_frac == pytest.approx(0.75)
    assert second.speedup == pytest.approx(2.25)
    assert second.per_doubling == pytest.approx(1.5)  # a step of two doublings


def test_unusable_counts_are_stepped_over_and_kept() -> None:
    curve = made({8: 0.0, 16: 1600.0, 32: 0.0, 64: 6400.0})
    (step,) = curve.returns()
    assert (step.from_gpus, step.to_gpus) == (16, 64)
    assert step.per_doubling == pytest.approx(2.0)
    assert len(curve.points) == 4


def test_the_knee_is_the_last_doubling_that_pays() -> None:
    assert knees_of(made(BENT))["throughput"].gpus == 64
    assert knees_of(made(BENT), threshold=1.7)["throughput"].gpus == 32
    assert knees_of(made(BENT), threshold=1.9)["throughput"].gpus == 16
    last = knees_of(made(BENT), threshold=1.2)["throughput"]
    assert (last.gpus, last.open) == (128, True)
    assert knees_of(made({8: 800.0, 16: 900.0}))["throughput"].gpus == 8
    assert "1.7" in knees_of(made(BENT), threshold=1.7)["throughput"].formula


def test_a_doubling_that_does_not_pay_below_the_knee_is_named() -> None:
    knee = knees_of(made({8: 800.0, 16: 1000.0, 32: 2000.0, 64: 2100.0}))["throughput"]
    assert knee.gpus == 32
    assert [step.to_gpus for step in knee.weak] == [16]


def test_energy_and_cost_keep_a_share_of_the_best() -> None:
    knees = knees_of(made(BENT))
    assert set(knees) == set(GOALS)
    assert knees["energy"].gpus == knees["cost"].gpus == 32  # per GPU 100, 100, 93.75, 75, 46.9
    assert knees_of(made(BENT), keep_frac=0.7)["energy"].gpus == 64
    assert set(knees_of(made(BENT, price=None))) == {"throughput", "energy"}
    assert knees_of(made({8: 0.0})) == {}


def test_the_band_widens_the_knee_both_ways() -> None:
    band = DoublingBand(low_frac=-0.1, high_frac=0.25, pairs=9, largest_gpus=64, covered_frac=0.9)
    knee = knees_of(made(BENT), band=band)["throughput"]
    assert (knee.low_gpus, knee.gpus, knee.high_gpus) == (32, 64, 128)
    assert knee.high_open
    assert not knee.open
    plain = knees_of(made(BENT))["throughput"]
    assert (plain.low_gpus, plain.high_gpus) == (64, 64)


def test_the_band_of_doublings_is_from_many_pairs() -> None:
    band = doubling_band()
    assert band is not None
    assert band.pairs > 100
    assert -0.15 < band.low_frac < 0 < band.high_frac < 0.15
    narrow = doubling_band(covered_frac=0.5)
    assert narrow is not None
    assert narrow.high_frac - narrow.low_frac < band.high_frac - band.low_frac


def test_tokens_are_read_as_people_write_them() -> None:
    assert parse_tokens("2T") == 2e12
    assert parse_tokens("300B") == parse_tokens("300 b") == 3e11
    assert parse_tokens("1.4e12") == 1.4e12
    assert parse_tokens("15,000,000") == 1.5e7
    assert parse_tokens(".5T") == 5e11
    for text in ("1,5T", "1,50", "1,0000", ",5T", ".T", "", "T", "-2T", "0", "2X", "nan", "1e400"):
        with pytest.raises(InputError):
            parse_tokens(text)


def test_a_bill_is_time_energy_money_and_carbon() -> None:
    m = made({8: 1000.0}, w_per_gpu=500.0, price=3.6).usable[0][1]
    bill = bill_of(m, 8.64e7, grid=grid("500"), pue=1.5, band=(-0.2, 0.25))
    assert bill.days == pytest.approx(1.0)
    assert bill.low_time_s == pytest.approx(86_400 / 1.25)
    assert bill.high_time_s == pytest.approx(86_400 / 0.8)
    assert bill.energy_mwh == pytest.approx(8 * 0.5 * 24 / 1000 * 1.5)  # 8 GPUs of 500 W for a day
    assert bill.co2e_kg == pytest.approx(8 * 0.5 * 24 * 1.5 * 0.5)
    assert bill.cost_usd == pytest.approx(8 * 24 * 3.6)
    assert checked_pue(None) == 1.56
    with pytest.raises(InputError):
        checked_pue(0.9)


def test_grids_have_sources() -> None:
    assert {"world", "us", "eu", "france", "germany"} <= set(grid_names())
    for name in grid_names():
        found = grid(name)
        assert 10 < found.g_per_kwh < 1000
        assert found.kind == "published"
        assert len(found.source) > 20
    assert grid("france").g_per_kwh < grid("germany").g_per_kwh
    assert grid("250 g/kWh").g_per_kwh == pytest.approx(250)
    with pytest.raises(InputError):
        grid("99999")


def test_a_point_says_why_it_is_of_no_use() -> None:
    curve = curve_of([8, 9, 16], lambda gpus: job_at(gpus, tp=2))
    assert [point.usable for point in curve.points] == [True, False, True]
    assert "does not divide gpus(9)" in str(curve.points[1].reason)
    large = make_job(load_model("llama2-70b").spec, H100, EAGER, gpus=8, local_batch=1)[0]
    assert "does not fit: needs" in str(point_of(large).reason)


def test_a_micro_batch_nobody_asked_for_is_made_to_fit() -> None:
    seven = load_model("llama2-7b").spec

    def job(gpus: int) -> Job:
        return make_job(seven, H100, EAGER, gpus=gpus, global_batch=256)[0]

    assert not curve_of([32], job).points[0].usable
    point = curve_of([32], job, cut=True).points[0]
    assert point.usable
    assert point.cut
    assert point.job is not None
    assert point.job.plan.micro_batch == 1


def test_the_best_plan_is_no_slower_than_the_plain_one() -> None:
    plain = point_of(job_at(16))
    best = best_point(Space(model=TINY, gpus=16, global_batch=32, seq_len=4096), H100, EAGER, only="pp == 1")
    assert plain.measured is not None
    assert best.measured is not None
    assert best.measured.tokens_per_s >= plain.measured.tokens_per_s * (1 - 1e-9)
    large = load_model("llama2-70b").spec
    none = best_point(Space(model=large, gpus=1, global_batch=1, seq_len=4096), H100, EAGER)
    assert not none.usable
    assert "16 GPUs" in str(none.hint)


def test_what_would_fit_is_within_what_is_asked() -> None:
    large = load_model("llama2-70b").spec
    space = Space(model=large, gpus=1, global_batch=2, seq_len=4096, recomputes=("none",), max_pp=1)
    hint = str(best_point(space, H100, EAGER, only="pp == 1").hint)
    assert "recompute none" in hint
    assert "pp 1" in hint
    # two sequences cannot be spread over more than two data-parallel ranks
    flat = replace(space, max_tp=1, max_cp=1)
    assert best_point(flat, H100, EAGER, only="tp == 1 and pp == 1 and cp == 1", grows=False).hint is None
    assert best_point(replace(flat, recomputes=()), H100, EAGER, only="tp == 1 and pp == 1 and cp == 1").hint


def test_bars_and_charts_show_the_knee() -> None:
    one = ScaleSeries(name="a", gpus=(8, 16, 32), tokens_per_s=(800.0, 1600.0, 2000.0), tokens_per_j=(1.0, 1.0, None),
                 knee_gpus=16, open=False)  # fmt: skip
    lines = bars([one, replace(one, name="b", knee_gpus=32, open=True)])
    assert lines[2].endswith("100 (100% of ideal)  <- knee")
    assert lines[-1].endswith("or beyond")
    assert len(lines) == 8
    spec = spec_of([one])
    assert len(spec["hconcat"]) == 2
    assert json.dumps(spec).count('"knee": true') == json.dumps(spec).count('"gpus": 16,')
    assert "knee or beyond" in json.dumps(spec_of([replace(one, knee_gpus=32, open=True)]))
    assert '"in_range": true' in json.dumps(spec_of([replace(one, low_gpus=8, high_gpus=16)]))


def test_failures_leave_of_a_curve_what_its_goodput_says() -> None:
    curve = made(BENT | {256: 0.0})
    unused = ScalePoint(gpus=512, reason="no plan")
    curve = Curve(points=(*curve.points, unused))
    goodputs = goodputs_of(curve)
    assert goodputs.keys() == BENT.keys()  # what does not fit has none
    step_s, params = simulate(job_at(8)).step_s, parameter_count(TINY)
    assert all(found == goodput_of(params, H100, 8, step_s=step_s) for found in goodputs.values())
    del goodputs[128]  # as if that run made no progress
    left = curve_with_failures(curve, goodputs)
    assert left.points[-1] == unused
    for point, before in zip(left.points[:5], curve.points[:5], strict=True):
        m, was = point.measured, before.measured
        assert m is not None
        assert was is not None
        assert was.tokens_per_j is not None
        assert was.usd_per_mtoken is not None
        good = goodputs.get(point.gpus)
        share, dearer, energy = 1e-9, 1e9, 1e9
        if good is not None:
            share, dearer = good.goodput_frac, good.cost_factor
            energy = good.energy_factor(500.0, H100.gpu.idle_w)
        assert m.tokens_per_s == pytest.approx(was.tokens_per_s * share)
        assert m.tokens_per_s_per_gpu == pytest.approx(was.tokens_per_s_per_gpu * share)
        assert m.usd_per_mtoken == pytest.approx(was.usd_per_mtoken * dearer)
        assert m.tokens_per_j == pytest.approx(was.tokens_per_j / energy)
