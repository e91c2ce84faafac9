"""What a budget knows of a model's plans does not depend on what was asked before."""

from __future__ import annotations

import pytest

from knee import load_cluster, load_model, load_profile
from knee.commands.budget.throughput import Rates

MODEL, KEYS = load_model("llama2-13b").spec, [(64, 128), (64, 96), (48, 96)]


def rates() -> Rates:
    return Rates(cluster=load_cluster("dgx-h100").spec, profile=load_profile("eager").spec, seq_len=4096)


def test_rates_are_the_same_whatever_was_asked_before() -> None:
    fresh = rates().of(MODEL, KEYS)
    fastest = max(rate.tokens_per_s for rate in fresh.values() if rate is not None)
    asked = rates()
    for share in (1.5, 1.05, 0.99, 0.8):
        asked.of(MODEL, KEYS, share * fastest)
    assert asked.of(MODEL, KEYS) == fresh


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.9, 1.1])
def test_looking_ahead_changes_no_rate(share: float) -> None:
    """Neither what is found nor which plans count as tried."""
    models = [load_model(name).spec for name in ("llama2-7b", "llama2-13b", "llama2-70b")]
    alone, ahead = rates(), rates()
    fastest = [max(one.tokens_per_s for one in rates().of(model, KEYS).values() if one) for model in models]
    ahead.look_ahead((m, key, share * speed) for m, speed in zip(models, fastest, strict=True) for key in KEYS)
    assert (ahead.known, ahead.plans) == ({}, 0)
    for model, speed in zip(models, fastest, strict=True):
        for least in (share * speed, 0.5 * speed):
            assert ahead.of(model, KEYS, least) == alone.of(model, KEYS, least)
    assert (ahead.known, ahead.ceilings, ahead.plans) == (alone.known, alone.ceilings, alone.plans)


def test_plans_are_counted_once() -> None:
    asked = rates()
    asked.of(MODEL, KEYS, 1e12)
    once = asked.plans
    asked.of(MODEL, KEYS)
    assert asked.plans == once > 0


@pytest.mark.parametrize("share", [1.001, 2.0])
def test_too_slow_is_remembered(share: float) -> None:
    asked = rates()
    fastest = max(rate.tokens_per_s for rate in rates().of(MODEL, KEYS).values() if rate is not None)
    assert set(asked.of(MODEL, KEYS, share * fastest).values()) == {None}
    assert not asked.known
    assert all(asked.ceilings[MODEL, key] < share * fastest for key in KEYS)
