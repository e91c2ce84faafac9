"""FLOP per token by convention, for the model and length that everybody quotes."""

from __future__ import annotations

import numpy as np
import pytest

from knee.base.errors import InputError
from knee.engine.workload.parameters import CONVENTIONS, model_flop_per_token
from knee.specs.load import load_model


def gflop(convention: str, name: str = "llama2-7b", seq_len: int = 4096) -> float:
    return float(model_flop_per_token(load_model(name).spec, np.array([seq_len]), convention)[0]) / 1e9


@pytest.mark.parametrize(("convention", "expected"), [("palm", 46.87), ("6n", 40.43), ("torchtitan", 46.09)])
def test_llama_2_7b_at_4096_tokens(convention: str, expected: float) -> None:
    assert gflop(convention) == pytest.approx(expected, abs=0.005)


def test_the_causal_convention_counts_half_of_attention() -> None:
    assert gflop("causal") - gflop("6n") == pytest.approx((gflop("palm") - gflop("6n")) / 2)


def test_only_attention_grows_with_length() -> None:
    assert gflop("6n", seq_len=8192) == gflop("6n")
    assert gflop("palm", seq_len=8192) - gflop("palm") == pytest.approx(12 * 32 * 4096 * 4096 / 1e9)


def test_an_unknown_convention_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError) as refused:
        gflop("megatron")
    assert all(name in str(refused.value.hint) for name in CONVENTIONS)
