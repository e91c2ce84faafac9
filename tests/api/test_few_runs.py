"""What decides whether a fit to few runs is taken, and the priors that it has."""

from __future__ import annotations

import numpy as np
import pytest

from knee.profile_fit.held_out import surely_better
from knee.profile_fit.stack_spread import MOST, stack_priors
from knee.specs.load import load_profile
from knee.specs.profile_parameters import PARAMETERS


def test_only_what_is_surely_better_is_taken() -> None:
    before = np.array([0.16, 0.14, 0.17, 0.15, 0.13, 0.18, 0.12, 0.15])
    assert surely_better(before, before / 3.0, 0.05)
    assert not surely_better(before, before, 0.05)
    assert not surely_better(before, 0.9 * before, 0.05)  # surely, and not worth it
    one = before.copy()
    one[0] = 0.9
    assert not surely_better(one, np.append(0.1, before[1:]), 0.05)  # one run that went wrong says nothing
    assert surely_better(one, np.append(0.9, before[1:] / 3.0), 0.05)  # nor does it hide the others
    assert not surely_better(np.full(8, np.nan), before, 0.05)


def test_priors_are_as_wide_as_stacks_differ() -> None:
    base = load_profile("eager").spec
    for own, wide in zip(PARAMETERS, stack_priors(PARAMETERS, base), strict=True):
        assert own.spread <= wide.spread <= MOST * own.spread * (1 + 1e-9)
        assert wide.low <= own.low
        assert wide.high == own.high
    without = stack_priors(PARAMETERS, base, without="hf_ultrascale")
    assert [p.path for p in without] == [p.path for p in PARAMETERS]


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_hardly_ever_taken(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.normal(0.0, 0.05, (2, 8))
    shrunk = 0.75 * np.abs(before)
    assert not surely_better(before, after, 0.05) or np.median(np.abs(after)) < np.median(np.abs(before))
    assert surely_better(before, 0.2 * shrunk, 0.05)
