"""Grouped products of experts: the dense product in the limit, padding, and that more is never less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from expert_tables import experts_backward_s, experts_forward_s
from hypothesis import given
from hypothesis import strategies as st

from knee.base.arrays import Floats
from knee.engine.cost.expert_dispatch import RankLoads, rank_loads
from knee.engine.cost.kernel_cost import (
    GEMM_TYPES,
    gemm_s,
    grouped_gemm_s,
    grouped_products_s,
    grouped_weight_gemm_s,
    operation_s,
)
from knee.engine.workload.operations import GroupedGemm
from knee.specs.hardware import GemmType, Gpu
from knee.specs.load import load_cluster
from tables import EAGER

GPUS = {name: load_cluster(name).spec.gpu for name in ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72")}
MEASURED = [(name, kind) for name, gpu in GPUS.items() for kind in gpu.gemm if kind != "nvfp4"]
N, K = np.array([4096.0]), np.array([7168.0])


def even(tokens: float, experts: float) -> RankLoads:
    """So many experts with so many tokens each."""
    return RankLoads(tokens=np.array([[tokens]]), experts=np.array([[experts]]), mean_tokens=np.array([tokens]))


def seconds(gpu: Gpu, kind: GemmType, loads: RankLoads) -> Floats:
    return grouped_gemm_s(gpu, kind, loads, N, K)


@pytest.mark.parametrize(("name", "kind"), MEASURED)
@pytest.mark.parametrize("tokens", [8192.0, 32768.0])
def test_one_expert_is_a_dense_product(name: str, kind: GemmType, tokens: float) -> None:
    dense = gemm_s(GPUS[name], kind, np.array([tokens]), N, K)
    assert seconds(GPUS[name], kind, even(tokens, 1.0)) == pytest.approx(dense, rel=0.03)
    # the weight gradient of one expert is a dense product too, which may split its many tokens
    dense = gemm_s(GPUS[name], kind, N, K, np.array([tokens]))
    assert grouped_weight_gemm_s(GPUS[name], kind, even(tokens, 1.0), N, K) == pytest.approx(dense, rel=0.06)


@pytest.mark.parametrize(("name", "kind"), MEASURED)
@given(tokens=st.integers(16, 4096), more=st.integers(0, 512), experts=st.integers(1, 64))
def test_more_tokens_never_take_less_time(name: str, kind: GemmType, tokens: int, more: int, experts: int) -> None:
    few, many = (seconds(GPUS[name], kind, even(float(t), float(experts))) for t in (tokens, tokens + more))
    assert few <= many * (1 + 1e-12)


@given(tokens=st.integers(16, 4096), experts=st.integers(1, 64), more=st.integers(0, 16))
def test_more_experts_never_take_less_time(tokens: int, experts: int, more: int) -> None:
    few, many = (seconds(GPUS["dgx-h100"], "bf16", even(float(tokens), float(e))) for e in (experts, experts + more))
    assert few <= many


def test_few_tokens_cost_the_reading_of_all_weights() -> None:
    gpu = GPUS["dgx-h100"]
    read_s = 2.0 * 64.0 * N * K / (gpu.hbm_bytes_per_s * gpu.hbm_frac)
    assert seconds(gpu, "bf16", even(16.0, 64.0)) == pytest.approx(read_s, rel=0.05)


def test_a_token_too_many_fills_another_tile() -> None:
    gpu = GPUS["dgx-h100"]
    # 2,048 tokens per expert are whole tiles; one more adds a row of tiles to every expert
    whole, over = (seconds(gpu, "bf16", even(tokens, 32.0)) for tokens in (2048.0, 2049.0))
    assert whole * 1.01 < over < whole * 1.08


def test_skewed_experts_take_longer_than_even_ones() -> None:
    tokens, top_k, experts, ep = (np.array([v]) for v in (32768.0, 8.0, 128.0, 8.0))
    hidden, ffn = np.array([4096.0]), np.array([1536.0])
    by = {
        routing: experts_forward_s(
            GPUS["dgx-h100"], "bf16", rank_loads(routing, tokens, top_k, experts, ep), hidden, ffn
        )
        for routing in ("balanced", "dropless", "power_law:1.2")
    }
    assert by["balanced"] < by["dropless"] < by["power_law:1.2"]


def test_backward_is_about_twice_forward() -> None:
    loads = even(4096.0, 8.0)
    hidden, ffn = np.array([4096.0]), np.array([14336.0])
    forward = experts_forward_s(GPUS["dgx-h100"], "bf16", loads, hidden, ffn)
    backward = experts_backward_s(GPUS["dgx-h100"], "bf16", loads, hidden, ffn)
    assert backward == pytest.approx(2.0 * forward, rel=0.05)


def test_columns_are_as_plans_one_by_one() -> None:
    gpu, ep = GPUS["dgx-h100"], np.array([1.0, 8.0, 16.0])
    hidden, ffn = np.full(3, 4096.0), np.array([1536.0, 768.0, 1536.0])
    both = [
        experts_backward_s(
            gpu,
            "bf16",
            rank_loads("power_law:1.2", 4096.0 * ep[rows], np.array([8.0]), np.array([128.0]), ep[rows]),
            hidden[rows],
            ffn[rows],
        )
        for rows in (slice(None), slice(0, 1), slice(1, 2), slice(2, 3))
    ]
    assert both[0] == pytest.approx(np.concatenate(both[1:]))


def test_the_gradients_of_weights_are_written_in_two_bytes_or_added_in_eight() -> None:
    """Few tokens cost the writing of all weights, and the reading of the tokens' inputs and gradients."""
    gpu, loads = GPUS["dgx-h100"], even(16.0, 64.0)
    hbm = gpu.hbm_bytes_per_s * gpu.hbm_frac
    for gradient_bytes in (2.0, 8.0):
        moved = 2 * 16 * 64 * (N + K) + gradient_bytes * 64 * N * K
        found = grouped_weight_gemm_s(gpu, "bf16", loads, N, K, gradient_bytes=gradient_bytes)
        assert found == pytest.approx(moved / hbm + gpu.kernel_s, rel=1e-9)


def test_many_experts_take_the_time_of_their_waves() -> None:
    """Twice the experts fill twice the waves, once there are many; half the clock takes twice as long."""
    gpu, loads = GPUS["dgx-h100"], [even(4096.0, experts) for experts in (132.0, 264.0)]
    one, two = (grouped_weight_gemm_s(gpu, "bf16", some, N, K) - gpu.kernel_s for some in loads)
    assert two == pytest.approx(2 * one, rel=1e-9)
    slow = grouped_weight_gemm_s(gpu, "bf16", loads[0], N, K, clock_frac=0.5) - gpu.kernel_s
    full = grouped_weight_gemm_s(gpu, "bf16", loads[0], N, K, clock_frac=1.0) - gpu.kernel_s
    assert slow == pytest.approx(2 * full, rel=1e-9)


@pytest.mark.parametrize(("kind", "operand_bytes", "kernels"), [("bf16", 2.0, 1), ("fp8", 1.0, 4)])
@pytest.mark.parametrize("weights", [False, True])
def test_stacks_that_launch_a_kernel_for_each_expert_pay_for_each(
    kind: GemmType, operand_bytes: float, kernels: int, weights: bool
) -> None:
    gpu, types = GPUS["dgx-h100"], np.full(1, GEMM_TYPES.index(kind))
    op = GroupedGemm(
        name="experts", experts=np.array([8.0]), tokens=np.array([512.0]), n=N, k=K, times=0.5, weights=weights
    )
    together, apart = (replace(EAGER, expert_kernel_s=each_s) for each_s in (0.0, 1e-5))
    one, other = (grouped_products_s(gpu, stack, types, op) for stack in (together, apart))
    assert other[0] - one[0] == pytest.approx(8 * kernels * 1e-5)
    read, written = operand_bytes * (512 * K + K * N), 2 * 512 * N
    assert one[1] == pytest.approx(8 * (read + written), rel=0.1 if kind == "fp8" else 1e-12)
    assert operation_s(gpu, apart, types, op) == pytest.approx(0.5 * other[0])
