"""The fit finds the GPU that made the readings."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from knee.base.errors import InputError
from knee.engine.cost.kernel_cost import attention_s, gemm_s
from knee.engine.workload.operations import Attention
from knee.measure.hardware_fit.kernel_constants import FitPart, fit_kernels
from knee.measure.hardware_fit.residuals import Residuals, held_back
from knee.measure.machine.kernel_grid import GPU as GRID
from knee.measure.machine.kernel_grid import attention_points, gemm_points
from knee.measure.machine.readings import AttentionPoint, GemmPoint, Machine, Readings, Record, StreamPoint, key_of
from knee.specs.hardware import AttentionRate, Gpu
from knee.specs.load import load_cluster, load_profile

BASE = load_cluster("dgx-h100").spec.gpu
EAGER = load_profile("eager").spec
RATE = AttentionRate(
    forward_frac=0.5,
    backward_frac=0.4,
    half_seq_len=300,
    backward_half_seq_len=700,
    half_rows=2e4,
    head64_frac=0.7,
    j_per_flop=BASE.attention["flash2"].j_per_flop,
)
GEMM = replace(BASE.gemm["bf16"], peak_frac=0.6, half_k=200.0, half_intensity=8.0)
TRUE = replace(
    BASE,
    gemm=BASE.gemm | {"bf16": GEMM},
    kernel_s=4e-6,
    hbm_frac=0.7,
    attention=BASE.attention | {"flash2": RATE},
)
MACHINE = Machine(
    probe="kernels",
    date="2026-01-01",
    device="made up",
    kind="cuda",
    devices=1,
    sms=BASE.sms,
    memory_bytes=BASE.hbm_bytes,
    power_limit_w=None,
    host="host",
    knee="0",
    python="3",
    torch="2",
    cuda="13",
    driver="1",
    nccl=None,
)


def gemm_reading(gpu: Gpu, p: GemmPoint) -> float:
    m, n, k = (np.array([float(x)]) for x in (p.m, p.n, p.k))
    return float(gemm_s(gpu, "bf16", m, n, k)[0])


def attention_reading(gpu: Gpu, p: AttentionPoint) -> float:
    op = Attention(
        name="attention",
        flop=np.array([p.flop]),
        seq_len=np.array([float(p.seq_len)]),
        rows=np.array([float(p.batch * p.heads * p.seq_len)]),
        head_dim=p.head_dim,
        forward=p.forward,
    )
    return float(attention_s(gpu, "flash2", op)[0])


@pytest.fixture(scope="module")
def readings() -> Readings:
    records: list[Record] = [
        asdict(p) | {"key": key_of(p), "median_s": gemm_reading(TRUE, p), "spread_frac": 0.0}
        for p in gemm_points(GRID, ("bf16",))
    ]
    records += [
        asdict(p) | {"key": key_of(p), "median_s": attention_reading(TRUE, p), "spread_frac": 0.0}
        for p in attention_points(GRID, ("flash2",), "bf16")
    ]
    s = StreamPoint(operation="residual", tokens=8192, width=8192, forward=True, compiled=False)
    seconds = 3 * s.tensor_bytes / (TRUE.hbm_bytes_per_s * 0.7) + BASE.kernel_s
    records.append(asdict(s) | {"key": key_of(s), "median_s": seconds, "spread_frac": 0.0})
    return Readings(MACHINE, tuple(records))


@pytest.mark.slow
def test_it_finds_the_truth(readings: Readings) -> None:
    fit = fit_kernels(readings, BASE, EAGER)
    for name in ("kernel_s", "hbm_frac"):
        assert getattr(fit.gpu, name) == pytest.approx(getattr(TRUE, name), rel=0.03), name
    for name in ("peak_frac", "half_k", "sustained_frac"):
        assert getattr(fit.gpu.gemm["bf16"], name) == pytest.approx(getattr(GEMM, name), rel=0.03), name
    for name in set(RATE.__slots__) - {"clock_frac"}:  # a power probe tells it
        assert getattr(fit.gpu.attention["flash2"], name) == pytest.approx(getattr(RATE, name), rel=0.03), name
    assert fit.residuals[FitPart("products", "bf16")].p90_frac < 0.01
    assert fit.residuals[FitPart("attention", "flash2", "backward")].worst_frac < 0.02
    assert fit.gpu.attention["cudnn"] == BASE.attention["cudnn"]  # not measured, not changed


def test_too_few_products_are_refused(readings: Readings) -> None:
    with pytest.raises(InputError, match="3 matrix products were measured"):
        fit_kernels(Readings(MACHINE, readings.records[:3]), BASE, EAGER)


def test_residuals_by_hand() -> None:
    r = Residuals.of(np.array([1.1, 0.8, 1.0]), np.array([1.0, 1.0, 1.0]))
    assert (r.points, r.median_frac, r.worst_frac, r.bias_frac) == pytest.approx((3, 0.1, 0.2, 0.0))


def test_whole_settings_are_held_back() -> None:
    settings = [(i // 5, 0) for i in range(100)]
    away = held_back(settings)
    assert away.sum() == 30
    for start in range(0, 100, 5):
        assert len(set(away[start : start + 5])) == 1
