"""Grouped products of experts: the dense product in the limit, padding, and that more is never less."""

from __future__ import annotations

import numpy as np
import pytest
from expert_tables import experts_backward_s, experts_forward_s
from hypothesis import given
from hypothesis import strategies as st

from knee.base.arrays import Floats
from knee.engine.cost.expert_dispatch import RankLoads, rank_loads
from knee.engine.cost.kernel_cost import gemm_s, grouped_gemm_s, grouped_weight_gemm_s
from knee.specs.hardware import GemmType, Gpu
from knee.specs.load import load_cluster

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
