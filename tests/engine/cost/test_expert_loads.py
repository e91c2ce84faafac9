"""Tokens of the experts on the slowest rank, by routing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from knee.base.errors import SpecError
from knee.engine.cost.expert_dispatch import RankLoads, rank_loads

TOKENS, TOP_K, EXPERTS = 32768.0, 8.0, 128.0


def loads(routing: str, *ep: float) -> RankLoads:
    ranks = np.array(ep)
    return rank_loads(routing, np.full(len(ranks), TOKENS), np.full(len(ranks), TOP_K), np.array([EXPERTS]), ranks)


def test_balanced_experts_have_the_mean() -> None:
    of = loads("balanced", 1.0, 8.0, 128.0)
    assert of.rows == pytest.approx(TOKENS * TOP_K / np.array([1.0, 8.0, 128.0]))
    assert of.imbalance == pytest.approx(1.0)
    assert of.tokens.ravel() == pytest.approx(2048.0)


@pytest.mark.parametrize("routing", ["dropless", "power_law:1.01", "power_law:1.2"])
def test_one_rank_has_all_tokens_and_more_ranks_are_less_even(routing: str) -> None:
    of = loads(routing, 1.0, 4.0, 16.0, 64.0)
    assert of.imbalance[0] == pytest.approx(1.0, abs=1e-3)
    assert all(a < b for a, b in pairwise(of.imbalance.tolist()))
    assert of.experts.sum(axis=-1) == pytest.approx(EXPERTS / np.array([1.0, 4.0, 16.0, 64.0]))
    assert of.tokens.max() <= TOKENS


def test_real_routing_makes_the_slowest_of_eight_ranks_as_slow_as_published() -> None:
    # with it, the simulator loses as much throughput as Qwen3-235B did (tools/fit_moe.py)
    assert loads("dropless", 8.0).imbalance[0] == pytest.approx(1.52, abs=0.02)


def test_a_larger_variation_is_less_even() -> None:
    assert loads("dropless:0.5", 8.0).imbalance[0] < loads("dropless", 8.0).imbalance[0]


def test_a_larger_exponent_is_less_even() -> None:
    assert loads("power_law:1.01", 8.0).imbalance[0] < loads("power_law:1.2", 8.0).imbalance[0]


def test_tiles_have_rows_of_one_expert() -> None:
    of = RankLoads(
        tokens=np.array([[1.0, 128.0, 129.0]]), experts=np.array([[1.0, 1.0, 2.0]]), mean_tokens=np.array([96.75])
    )
    assert of.tiles(128.0) == pytest.approx(1 + 1 + 2 * 2)


@pytest.mark.parametrize(
    "routing", ["even", "balanced:2", "power_law", "power_law:1", "power_law:-2", "power_law:much", "dropless:"]
)
def test_other_words_are_refused(routing: str) -> None:
    with pytest.raises(SpecError) as refusal:
        loads(routing, 8.0)
    assert refusal.value.code == "unknown-choice"
