"""Dispatch and combine: what a token reaches, what crosses which wire, and what SMs and bandwidth do."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.base.arrays import Floats
from knee.engine.cost.collective_cost import Links
from knee.engine.cost.expert_dispatch import Dispatcher, Exchange, combine_s, dispatch_s, permutation_bytes
from knee.specs.load import load_cluster

DISPATCHERS: tuple[Dispatcher, ...] = get_args(Dispatcher)
H100 = Links.idle(load_cluster("dgx-h100").spec)
GB200 = Links.idle(load_cluster("gb200-nvl72").spec)


def exchange(ranks: float, per_domain: float | None = None, *, tokens: float = 4096.0, **more: float) -> Exchange:
    """DeepSeek-V3's layer on so many ranks."""
    columns = {"tokens": tokens, "hidden": 7168.0, "top_k": 8.0, "experts": 256.0, "ranks": ranks, **more}
    columns["per_domain"] = min(ranks, 8.0) if per_domain is None else per_domain
    return Exchange(**{name: np.array([value]) for name, value in columns.items()})


def reached_by_drawing(ranks: int, groups: int, chosen: int) -> float:
    """Mean number of ranks with an expert of a token, by drawing tokens."""
    random = np.random.default_rng(1)
    counts = []
    for _ in range(4000):
        picked = random.choice(groups, chosen, replace=False)
        pool = (picked[:, None] * (256 // groups) + np.arange(256 // groups)).ravel()
        counts.append(len(set(random.choice(pool, 8, replace=False) // (256 // ranks))))
    return float(np.mean(counts))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize(("groups", "chosen"), [(1, 1), (8, 4), (8, 8), (4, 1)])
def test_ranks_that_a_token_reaches(ranks: int, groups: int, chosen: int) -> None:
    of = exchange(float(ranks), groups=float(groups), chosen_groups=float(chosen))
    assert of.reached(of.ranks) == pytest.approx(reached_by_drawing(ranks, groups, chosen), rel=0.02)


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_one_rank_sends_nothing(dispatcher: Dispatcher) -> None:
    assert dispatch_s(H100, dispatcher, exchange(1.0)) == 0.0
    assert combine_s(H100, dispatcher, exchange(1.0)) == 0.0


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
@given(tokens=st.integers(256, 65536), more=st.integers(0, 4096), ranks=st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_more_tokens_never_take_less_time(dispatcher: Dispatcher, tokens: int, more: int, ranks: int) -> None:
    few, many = (dispatch_s(H100, dispatcher, exchange(ranks, tokens=float(t))) for t in (tokens, tokens + more))
    assert few <= many


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_limited_groups_send_less(dispatcher: Dispatcher) -> None:
    free, limited = exchange(64.0), exchange(64.0, groups=8.0, chosen_groups=4.0)
    assert dispatch_s(H100, dispatcher, limited) < dispatch_s(H100, dispatcher, free)
    assert limited.reached(limited.domains) < free.reached(free.domains)


def test_copies_of_top_k_are_sent_by_nccl_only() -> None:
    of = exchange(16.0)
    alltoall, hybridep = (dispatch_s(H100, name, of) for name in ("alltoall", "hybridep"))
    # 4 of 8 copies leave a node of two; HybridEP sends one
    assert alltoall / hybridep == pytest.approx(4.0, rel=0.15)


def test_published_times_of_hybridep_and_nccl() -> None:
    # arXiv 2603.07685, table 7: 4,096 tokens, routing limited to 4 of 8 groups, us at 8, 16, 32 and 64 ranks
    published: dict[Dispatcher, list[float]] = {
        "hybridep": [661, 1485, 3064, 4626],
        "alltoall": [1265, 5774, 8059, 9164],
    }
    for dispatcher, times in published.items():
        for ranks, us in zip((8.0, 16.0, 32.0, 64.0), times, strict=True):
            of = exchange(ranks, groups=8.0, chosen_groups=4.0)
            assert dispatch_s(H100, dispatcher, of) * 1e6 == pytest.approx(us, rel=0.08)


def test_one_nvlink_domain_needs_no_network() -> None:
    slow = replace(GB200.cluster, fabric=replace(GB200.cluster.fabric, nic_bytes_per_s=1e6))
    inside = exchange(64.0, 64.0)
    assert dispatch_s(GB200, "hybridep", inside) == dispatch_s(Links.idle(slow), "hybridep", inside)


def test_fewer_sms_are_slower_until_a_wire_is_full() -> None:
    times: list[Floats] = [dispatch_s(H100, "deepep", exchange(8.0), sms=sms) for sms in (4.0, 8.0, 64.0, 128.0)]
    assert times[0] > times[1] > times[2] == times[3]


def test_fp8_sends_half() -> None:
    of = exchange(32.0)
    ratio = dispatch_s(H100, "hybridep", of, element_bytes=1.03125) / dispatch_s(H100, "hybridep", of)
    assert ratio == pytest.approx(0.53, abs=0.02)


def test_imbalance_lengthens_the_exchange() -> None:
    even, skewed = exchange(16.0), exchange(16.0, imbalance=1.7)
    ratio = combine_s(H100, "deepep", skewed) / combine_s(H100, "deepep", even)
    assert 1.6 < float(ratio[0]) < 1.7


def test_sorting_by_dispatcher() -> None:
    of, rows = exchange(8.0), np.array([4096.0 * 8.0])
    by = {name: float(permutation_bytes(name, of, rows)[0]) for name in DISPATCHERS}
    assert by["hybridep"] == 0.0 < by["deepep"] < by["alltoall"]
    # without an exchange, tokens are sorted all the same
    alone = {float(permutation_bytes(name, exchange(1.0), rows)[0]) for name in DISPATCHERS}
    assert len(alone) == 1
    assert alone.pop() > 0.0
