"""How far a stack that nobody fitted lies from the profile that stands for it: the priors of a fit to few runs.

Sources of published runs show it. Each has a profile that nothing of the source was fitted to (``left_out.toml``), and
one that its runs were fitted with; the distance between the two is what a newcomer's stack is to be expected to have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import exp, log

import numpy as np

from knee.specs.profile import Profile
from knee.specs.profile_parameters import Parameter
from knee.trust.validation.left_out import left_out_profiles
from knee.trust.validation.stacks import catalog_profile

MOST = 2.0
"""Times the spread that a parameter has by itself: a source whose values are all its own says no more than that."""
OPEN = ("profile.gemm_scale",)
"""Parameters whose least value is that of the stacks that were fitted, and no limit of what can be."""
REACH = 3.0
"""Spreads below the value that is there to which those may fall."""


def stack_priors(parameters: Iterable[Parameter], base: Profile, *, without: str | None = None) -> list[Parameter]:
    """The parameters with the spread between stacks, of sources other than ``without``, and room to move by it.

    Formula: spread = spread_0 * clip(sqrt(mean(d^2)), 1, MOST)
    Where: d is the distance of a source's fitted value from that of the profile that stands for it, in spread_0, the
        parameter's own; a mean over sources
    Valid: for stacks that differ from the known ones as those differ from each other.
    """
    return [_wider(p, base, float(np.clip(_distance(p, without), 1.0, MOST))) for p in parameters]


def _distance(parameter: Parameter, without: str | None) -> float:
    """Root of the mean square over sources; 0 where there are none."""
    name = parameter.path.removeprefix("profile.")

    def position(profile: Profile) -> float:
        return parameter.scaled(parameter.inside(float(getattr(profile, name))))

    apart = [
        position(catalog_profile(fitted)) - position(stand_in)
        for source, profiles in left_out_profiles().items()
        if source != without
        for fitted, stand_in in profiles.items()
    ]
    return float(np.sqrt(np.mean(np.square(apart)))) if apart else 0.0


def _wider(parameter: Parameter, base: Profile, factor: float) -> Parameter:
    spread = factor * parameter.spread
    if parameter.path not in OPEN:
        return replace(parameter, spread=spread)
    value = parameter.inside(float(getattr(base, parameter.path.removeprefix("profile."))))
    return replace(parameter, spread=spread, low=min(parameter.low, exp(log(value) - REACH * spread)))
