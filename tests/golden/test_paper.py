"""Every claim of arXiv 2411.13055 that a simulated step can be held against: it holds, or its failure is explained."""

from __future__ import annotations

import pytest

from knee.study.claim import Claim
from knee.study.paper import CLAIMS, EXPLAINED
from knee.study.runs import Bench


@pytest.fixture(scope="module")
def bench() -> Bench:
    """One bench for all claims: they share most of their runs."""
    return Bench()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claim(claim: Claim, bench: Bench) -> None:
    found = claim.test(bench)
    said = f"{claim.id}: {claim.statement}; paper: {claim.paper}; bar: {claim.bar}; simulated: {found.value}"
    if claim.id in EXPLAINED:
        assert not found.holds, f"{said}. It holds now: remove it from EXPLAINED"
    else:
        assert found.holds, said


def test_explanations_belong_to_claims() -> None:
    assert set(EXPLAINED) <= {claim.id for claim in CLAIMS}


def test_nothing_that_was_fitted_fails() -> None:
    """A profile that misses what it was fitted on would be broken, not explained."""
    assert not {claim.id for claim in CLAIMS if claim.fitted} & set(EXPLAINED)
