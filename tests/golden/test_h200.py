"""Readings of one H200: what the fit reaches on shapes it has not seen, and whole steps that nothing was fitted on."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from knee.measure.hardware_fit.kernel_constants import fit_kernels, held_out
from knee.measure.hardware_fit.measured_steps import simulate_step
from knee.measure.machine.readings import read_readings
from knee.specs.hardware import Gpu
from knee.specs.load import load_cluster, load_profile

DATA = Path(__file__).parents[2] / "data" / "h200"
H200 = load_cluster("dgx-h200").spec
STEPS = list(read_readings(DATA / "steps.jsonl").good("step"))


@pytest.mark.slow
def test_shapes_and_settings_that_the_fit_has_not_seen() -> None:
    away = held_out(read_readings(DATA / "kernels.jsonl"), H200.gpu)
    assert away.attention is not None
    assert away.attention_roofline is not None
    for ours, one_efficiency in ((away.gemm, away.gemm_roofline), (away.attention, away.attention_roofline)):
        assert ours.points > 100
        assert ours.median_frac < 0.06
        assert ours.p90_frac < 0.15
        assert one_efficiency.p90_frac > 3 * ours.p90_frac


def test_the_catalogue_has_what_the_readings_say() -> None:
    fitted = fit_kernels(read_readings(DATA / "kernels.jsonl"), H200.gpu, load_profile("eager").spec).gpu
    for name in ("kernel_s", "hbm_frac"):
        assert getattr(H200.gpu, name) == pytest.approx(getattr(fitted, name), rel=0.02), name
    for kind in ("bf16", "fp8"):
        for name in ("peak_frac", "half_k"):
            here, there = (getattr(gpu.gemm[kind], name) for gpu in (H200.gpu, fitted))
            assert here == pytest.approx(there, rel=0.02), (kind, name)
    for kernel in ("flash2", "cudnn", "cutlass"):
        for name in ("forward_frac", "backward_frac", "half_seq_len", "half_rows", "head64_frac"):
            here, there = (getattr(gpu.attention[kernel], name) for gpu in (H200.gpu, fitted))
            assert here == pytest.approx(there, rel=0.02), (kernel, name)


def test_h100_is_the_same_chip_with_other_memory() -> None:
    h100: Gpu = load_cluster("dgx-h100").spec.gpu
    for name in ("kernel_s", "sms"):
        assert getattr(h100, name) == getattr(H200.gpu, name)
    for kind in ("bf16", "fp8", "fp8_block"):
        here, there = h100.gemm[kind], H200.gpu.gemm[kind]
        assert here.peak_frac * here.sustained_frac == pytest.approx(there.peak_frac * there.sustained_frac, rel=0.02)
    # clocks were read on the H200 alone
    bare = {kernel: replace(rate, clock_frac=None) for kernel, rate in H200.gpu.attention.items()}
    assert h100.attention == bare


@pytest.mark.parametrize(("point", "read"), STEPS, ids=[r["key"] for _, r in STEPS])
def test_steps(point: object, read: dict[str, float]) -> None:
    simulated = simulate_step(point, H200)  # type: ignore[arg-type]
    # 1B in eager is the fastest of them: autocast's casts of activations to and from fp32 are not priced
    assert simulated.step_s == pytest.approx(read["step_s"], rel=0.12)
    assert simulated.memory is not None
    assert simulated.memory.total_bytes == pytest.approx(read["peak_bytes"], rel=0.12)


def test_steps_together() -> None:
    errors = [abs(simulate_step(p, H200).step_s / r["step_s"] - 1) for p, r in STEPS]
    assert len(errors) >= 12
    assert statistics.median(errors) < 0.05
