"""Matrix products of several types: what each moves, how GPUs and types compare, and that more is never less."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.base.arrays import Floats
from knee.base.errors import SpecError
from knee.engine.cost.kernel_cost import GEMM_TYPES, gemm_bytes, gemm_s, products_s
from knee.specs.hardware import GemmType, Gpu
from knee.specs.load import load_cluster, load_profile

GPUS = {
    name: load_cluster(name).spec.gpu
    for name in ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "mi300x-8")
}
MEASURED = [(name, kind) for name, gpu in GPUS.items() for kind in gpu.gemm]
EAGER = load_profile("eager").spec
# projections of Llama 7B and 70B at 8,192 and 4,096 tokens
M, N, K = (np.array(side, dtype=np.float64) for side in zip(
    (8192, 4096, 4096), (8192, 11008, 4096), (4096, 8192, 8192), (4096, 28672, 8192), (4096, 8192, 28672), strict=True
))  # fmt: skip


def seconds(gpu: Gpu, kind: GemmType, m: Floats = M, n: Floats = N, k: Floats = K) -> Floats:
    return gemm_s(gpu, kind, m, n, k)


@pytest.mark.parametrize(("name", "kind"), MEASURED)
@given(
    sides=st.tuples(*[st.integers(64, 40_000)] * 3),
    more=st.tuples(*[st.integers(0, 3_000)] * 3),
)
def test_a_larger_product_never_takes_less_time(
    name: str, kind: GemmType, sides: tuple[int, int, int], more: tuple[int, int, int]
) -> None:
    small = [np.array([float(side)]) for side in sides]
    large = [np.array([float(side + extra)]) for side, extra in zip(sides, more, strict=True)]
    gpu = GPUS[name]
    assert gemm_s(gpu, kind, *large)[0] >= gemm_s(gpu, kind, *small)[0] * (1 - 1e-12)


@pytest.mark.parametrize(("name", "kind"), MEASURED)
def test_more_of_the_gpu_is_never_slower(name: str, kind: GemmType) -> None:
    gpu = GPUS[name]
    base, rate = seconds(gpu, kind), gpu.gemm[kind]
    faster = [
        replace(gpu, hbm_bytes_per_s=1.5 * gpu.hbm_bytes_per_s),
        replace(gpu, gemm={**gpu.gemm, kind: replace(rate, peak_frac=min(1.0, 1.2 * rate.peak_frac))}),
        replace(gpu, gemm={**gpu.gemm, kind: replace(rate, sustained_frac=1.0)}),
    ]
    for other in faster:
        assert np.all(seconds(other, kind) <= base)


def test_newer_gpus_and_fewer_bits_are_faster() -> None:
    order = ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72")
    for slow, fast in pairwise(order):
        assert np.all(seconds(GPUS[fast], "bf16") < seconds(GPUS[slow], "bf16")), (slow, fast)
    assert seconds(GPUS["dgx-h200"], "bf16") == pytest.approx(seconds(GPUS["dgx-h100"], "bf16"), rel=0.01)
    for name in ("dgx-b200", "gb200-nvl72"):
        bf16, fp8, nvfp4 = (seconds(GPUS[name], kind) for kind in ("bf16", "fp8", "nvfp4"))
        assert np.all(fp8 < 0.75 * bf16)
        assert np.all(nvfp4 < fp8)


def test_bytes_by_hand() -> None:
    m, n, k = np.array([2.0]), np.array([3.0]), np.array([160.0])
    moved = {kind: float(gemm_bytes(kind, m, n, k)[0]) for kind in GEMM_TYPES}
    assert moved == {"bf16": 2 * 806, "fp8": 800 + 12, "fp8_block": 825 + 12, "nvfp4": 450 + 12}


def test_a_clock_scales_what_tiles_take_and_nothing_else() -> None:
    gpu = replace(GPUS["dgx-h100"], kernel_s=0.0)
    half = gemm_s(gpu, "bf16", M, N, K, clock_frac=0.5)
    assert half == pytest.approx(2 * gemm_s(gpu, "bf16", M, N, K, clock_frac=1.0))
    skinny = (np.array([1.0]), np.array([8192.0]), np.array([8192.0]))
    assert gemm_s(gpu, "bf16", *skinny, clock_frac=0.9) == gemm_s(gpu, "bf16", *skinny, clock_frac=1.0)


def test_a_column_of_types_is_each_type_alone() -> None:
    gpu, kinds = GPUS["gb200-nvl72"], ("bf16", "nvfp4", "fp8", "bf16", "fp8_block")
    types = np.array([GEMM_TYPES.index(kind) for kind in kinds])
    found, moved = products_s(
        gpu, replace(EAGER, gemm_scale=1.0), types, np.stack([M, M]), np.stack([N, K]), np.stack([K, N])
    )
    for i, kind in enumerate(kinds):
        for row, (n, k) in enumerate(((N, K), (K, N))):
            alone = (M[i : i + 1], n[i : i + 1], k[i : i + 1])
            assert found[row, i] == pytest.approx(float(gemm_s(gpu, kind, *alone)[0]))
            assert moved[row, i] == float(gemm_bytes(kind, *alone)[0])


def test_a_type_without_tensor_cores_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        seconds(GPUS["dgx-h100"], "nvfp4")
    assert (caught.value.code, caught.value.field) == ("no-rate", "gpu.gemm.nvfp4")


def test_a_type_that_was_not_measured_has_the_share_of_16_bit() -> None:
    gpu = GPUS["dgx-h100"]
    bare = replace(gpu, gemm={"bf16": gpu.gemm["bf16"]})
    assert bare.gemm_rate("fp8") == (gpu.fp8_flop_per_s, gpu.gemm["bf16"])
