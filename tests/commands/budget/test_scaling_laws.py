"""Scaling laws and the ladder of shapes, against their papers and real models."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.commands.budget.model_family import STEPS_PER_DOUBLING, family_of
from knee.commands.budget.scaling_laws import batch_law, law_names, law_of
from knee.engine.workload.parameters import parameter_count
from knee.specs.load import load_model
from refusals import caught, numbers

LAWS = [law_of(name) for name in law_names()]
FLOP = st.floats(1e18, 1e27)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@given(flop=FLOP, aside=st.floats(0.3, 3.0))
def test_no_other_split_loses_less(law, flop: float, aside: float) -> None:
    params, tokens = law.split(flop)
    assert 6.0 * params * tokens == pytest.approx(flop)
    assert law.loss(params, tokens) <= law.loss(params * aside, tokens / aside) * (1 + 1e-12)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@given(flop=FLOP)
def test_a_loss_is_worth_the_compute_that_reaches_it(law, flop: float) -> None:
    params, tokens = law.split(flop)
    loss = float(law.loss(params, tokens))
    assert law.flop_for(loss) == pytest.approx(flop, rel=1e-5)
    assert law.tokens_for(loss, params) == pytest.approx(tokens, rel=1e-4)


def test_coefficients_are_those_of_the_papers() -> None:
    besiroglu, hoffmann, kaplan = (law_of(name) for name in ("besiroglu-2024", "hoffmann-2022", "kaplan-2020"))
    # arXiv 2404.10102 says about 20 tokens a parameter at Chinchilla's 5.76e23 FLOP, and 0.5126 for the exponent of N
    params, tokens = besiroglu.split(5.76e23)
    assert 15 < tokens / params < 25
    v = besiroglu.values
    assert v["beta"] / (v["alpha"] + v["beta"]) == pytest.approx(0.5126, abs=1e-4)
    # Hoffmann et al.: 1.93 for Chinchilla and 1.99 for Gopher follow from the printed coefficients
    assert float(hoffmann.loss(70e9, 1.4e12)) == pytest.approx(1.937, abs=1e-3)
    assert float(hoffmann.loss(280e9, 300e9)) == pytest.approx(1.993, abs=1e-3)
    # Kaplan et al., section 4.1: without a limit of data the loss is (N_c / N)^0.076
    assert float(kaplan.loss(1.5e9, 1e30)) == pytest.approx((6.4e13 / 1.5e9) ** 0.076, rel=1e-6)


def test_bands_are_of_published_errors_only() -> None:
    low, high = law_of("besiroglu-2024").band(70e9, 1.4e12) or (0.0, 0.0)
    middle = float(law_of("besiroglu-2024").loss(70e9, 1.4e12))
    assert low < middle < high
    # E alone gives 1.28 standard errors of 0.03 to each side
    assert 0.03 < middle - low < 0.08
    assert law_of("hoffmann-2022").band(70e9, 1.4e12) is None


def test_beyond_its_runs_a_law_says_so() -> None:
    law = law_of("besiroglu-2024")
    assert law.outside(1e9, 20e9) == []
    said = law.outside(400e9, 15e12)
    assert len(said) == 3
    assert numbers(said[0])[1] == 24.7
    # Kaplan et al. do not state the FLOP of their runs
    assert len(law_of("kaplan-2020").outside(400e9, 15e12)) == 2


def test_the_critical_batch_is_kaplans() -> None:
    # their figure 10: about 1M tokens at a loss of 3, twice as many for every 13% less loss
    assert batch_law().tokens(3.0) == pytest.approx(1.1e6, rel=0.1)
    assert batch_law().tokens(2.0 * 0.87) == pytest.approx(2 * batch_law().tokens(2.0), rel=0.05)
    assert 8 in numbers(batch_law().outside(8e6))
    assert batch_law().outside(5e5) == ""


def test_the_critical_batch_that_was_measured_is_within_a_factor_of_three_of_kaplans() -> None:
    """Merrill et al. measured 16.8M tokens in runs of OLMo, to losses that laws put between 2 and 2.3."""
    measured = batch_law("merrill-2025")
    assert measured.tokens(2.3) == measured.tokens(1.9) == 4096 * 4096
    assert 1 < measured.tokens(2.0) / batch_law().tokens(2.0) < 3


@pytest.mark.parametrize(
    ("load", "name", "near"),
    [(law_of, "hofmann", "hoffmann-2022"), (family_of, "lama", "llama"), (batch_law, "merril", "merrill-2025")],
)
def test_misspelt_names_are_answered(load: Callable[[str], object], name: str, near: str) -> None:
    error = caught(lambda: load(name))
    assert error.code == "unknown-name"
    assert near in str(error.hint)


# ---- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-1b", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-405b"])
def test_a_members_size_has_its_shape(name: str) -> None:
    model, family = load_model(name).spec, family_of("llama")
    member = next(one for one in family.members if one.name == name)
    shape = family.shape(parameter_count(member))
    assert (shape.layers, shape.hidden, shape.ffn, shape.heads) == (model.layers, model.hidden, model.ffn, model.heads)


@pytest.mark.parametrize(("name", "within"), [("llama2-7b", 0.15), ("llama2-13b", 0.15), ("llama2-70b", 0.25)])
def test_a_member_left_out_is_found_again(name: str, within: float) -> None:
    """The rule between members, held against a member that it does not know."""
    from dataclasses import replace

    family = family_of("llama")
    without = replace(family, members=tuple(one for one in family.members if one.name != name))
    real = next(one for one in family.members if one.name == name)
    shape = without.shape(parameter_count(real))
    assert parameter_count(shape) == pytest.approx(parameter_count(real), rel=0.05)
    assert shape.hidden == pytest.approx(real.hidden, rel=within)
    assert shape.layers == pytest.approx(real.layers, rel=2 * within)


def test_published_members_outside_the_family_are_near_its_rule() -> None:
    # LLaMA-1's 33B: 60 layers of 6,656 (arXiv 2302.13971, table 2)
    shape = family_of("llama").shape(32.5e9)
    assert shape.hidden == pytest.approx(6656, rel=0.15)
    assert shape.layers == pytest.approx(60, rel=0.3)


def test_the_ladder_is_one_whatever_its_ends() -> None:
    family = family_of("llama")
    whole, part = family.ladder(), family.ladder(1e9, 1e11)
    assert all(model in whole for model in part)
    sizes = [parameter_count(model) for model in whole]
    steps = [math.log2(b / a) * STEPS_PER_DOUBLING for a, b in pairwise(sizes)]
    assert min(steps) > 0
    assert max(steps) < 2.2
    assert all(model.heads % 8 == 0 for model in whole if model.hidden >= 4096)
