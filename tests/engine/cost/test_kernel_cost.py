"""Matrix products: tiles, waves, memory."""

from __future__ import annotations

import numpy as np
import pytest

from knee.engine.cost.kernel_cost import attention_s, gemm_s, stream_s
from knee.engine.workload.operations import Attention, MemoryBound
from knee.specs.hardware import GemmType, Gpu
from knee.specs.load import load_cluster, load_profile

GPU = load_cluster("dgx-h100").spec.gpu
PEAK = 989e12
RATE = GPU.gemm["bf16"]
SUSTAINED = RATE.peak_frac * RATE.sustained_frac


def seconds(m: float, n: float, k: float, kind: GemmType = "bf16", gpu: Gpu = GPU) -> float:
    return float(gemm_s(gpu, kind, np.array([m]), np.array([n]), np.array([k]))[0])


def efficiency(m: float, n: float, k: float) -> float:
    return 2 * m * n * k / seconds(m, n, k) / PEAK


def test_one_tile_by_hand() -> None:
    """132 full tiles of 128 x 256 are one wave on 132 SMs, if nothing smaller is better."""
    m, n, k = 128 * 12, 256 * 11, 8192
    tiles = 2 * m * n * (k + RATE.half_k) / (PEAK * SUSTAINED)
    assert seconds(m, n, k) == pytest.approx(tiles + GPU.kernel_s, rel=1e-12)


def test_a_wave_too_many_costs_a_wave() -> None:
    """0.8% more work, a second wave: smaller tiles soften it, but do not remove it."""
    full, more = seconds(128 * 132, 256, 8192), seconds(128 * 133, 256, 8192)
    assert 1.1 * full < more < 2.1 * full


def test_wide_products_are_more_efficient_than_narrow_ones() -> None:
    """Widths that leave a tile half empty, few tiles, and a short inner dimension all cost."""
    wide = efficiency(8192, 4096, 4096)
    assert wide > 1.05 * efficiency(8192, 384, 4096)
    assert wide > 1.1 * efficiency(1024, 512, 4096)
    assert wide > 1.1 * efficiency(8192, 4096, 512)


@pytest.mark.parametrize("shape", [(8192, 4096, 4096), (16384, 28672, 8192), (4096, 4096, 65536), (2**17, 2**15, 8192)])
def test_never_above_what_the_gpu_sustains(shape: tuple[int, int, int]) -> None:
    assert efficiency(*shape) <= SUSTAINED


def test_a_large_product_comes_close_to_what_the_gpu_sustains() -> None:
    assert efficiency(16384, 16384, 16384) > 0.95 * SUSTAINED


def test_skinny_products_are_bound_by_memory() -> None:
    m, n, k = 1, 8192, 8192
    moved = 2.0 * (m * k + k * n + m * n)
    streamed = moved / (GPU.hbm_bytes_per_s * GPU.hbm_frac)
    assert seconds(m, n, k) == pytest.approx(streamed + GPU.kernel_s, rel=1e-9)


def test_the_efficiency_of_training_shapes_is_reached() -> None:
    """The projections of Llama-2-7B at 8,192 tokens run within a fifth of the sustained rate."""
    for n, k in ((4096, 4096), (11008, 4096), (4096, 11008)):
        assert efficiency(8192, n, k) > 0.8 * SUSTAINED


def test_attention_counts_work_kernel_length_and_rows() -> None:
    flash2 = GPU.attention["flash2"]

    def rate(length: float, head_dim: int = 128, forward: bool = True, rows: float = 2**19) -> float:
        op = Attention(
            name="attention",
            flop=np.array([1e12]),
            seq_len=np.array([length]),
            rows=np.array([rows]),
            head_dim=head_dim,
            forward=forward,
        )
        return 1e12 / float(attention_s(GPU, "flash2", op)[0])

    assert rate(4096) == pytest.approx(319e12, rel=0.06)  # FlashAttention-3's paper, FA2 causal at 4k, 16 heads
    assert rate(16384) > rate(4096) > rate(512)
    assert rate(4096, head_dim=64) == pytest.approx(rate(4096) * flash2.head64_frac)
    assert rate(4096, head_dim=256) == rate(4096)
    assert rate(4096, forward=False) < rate(4096)
    assert rate(4096, rows=flash2.half_rows) == pytest.approx(rate(4096, rows=1e15) / 2)


def test_streams_cost_their_bytes() -> None:
    profile = load_profile("eager").spec
    plain = MemoryBound(name="residual", moved_bytes=np.array([1e9]), kernels=1)
    out = MemoryBound(name="copy_out", moved_bytes=np.array([1e9]), kernels=1, rate="copy_out")
    whole = profile.stream_scale * 1e9 / (3.35e12 * GPU.hbm_frac)
    assert float(stream_s(GPU, profile, plain)[0]) == pytest.approx(whole + GPU.kernel_s)
    slower = 1e9 / (3.35e12 * GPU.hbm_frac) / profile.copy_frac
    assert float(stream_s(GPU, profile, out)[0]) == pytest.approx(slower + GPU.kernel_s)
