"""Claims under profiles drawn at random: in what share of them each holds, and how many a random profile reproduces.

A claim that holds whatever the profile says nothing for the one that was fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from knee.evidence.lean_runs import Change, LeanRuns, Specs
from knee.specs.hardware import Cluster
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter, applied
from knee.studies.claims import Claim

CANNOT_FAIL_FRAC = 0.99
"""A claim that holds in this share of the draws cannot fail, and is no evidence."""
DRAWN = (
    *PARAMETERS,
    Parameter(path="gpu.comm_w", low=20.0, high=600.0, spread=1.0, meaning="draw of communication beside compute"),
)
"""The profile's parameters, and the draw that tools/fit_paper.py fits with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What random profiles reproduce."""

    draws: int
    seed: int
    held_frac: dict[str, float]
    """Claim -> share of the draws in which it holds; data sheets and idle links have no profile, and are not here."""
    reproduced: tuple[int, ...]
    """Of each draw: independent claims that hold."""
    independent: int
    """Claims that are counted there: independent ones that depend on the profile."""


def draw(random: np.random.Generator) -> Change:
    """A profile: each parameter from its whole range, evenly, by its logarithm where it is no share."""
    values = {}
    for parameter in DRAWN:
        at = float(random.random())
        low, high = parameter.low, parameter.high
        even = low + at * (high - low)
        values[parameter.path] = even if parameter.is_share else exp(log(low) + at * (log(high) - log(low)))

    def change(cluster: Cluster, profile: Profile) -> Specs:
        return applied(cluster, profile, values)

    return change


def held_in_draw(runs: LeanRuns, seed: int, number: int) -> frozenset[str]:
    """Claims that hold under one random profile; each draw has its own stream, so that they can be made anywhere."""
    with np.errstate(all="ignore"):
        verdicts = runs.verdicts(draw(np.random.default_rng((seed, number))))
    return frozenset(id for id, verdict in verdicts.items() if verdict.verdict == "reproduced")


def draw_claims(runs: LeanRuns, *, draws: int, seed: int, passed: Sequence[frozenset[str]] | None = None) -> Draws:
    """Judge every claim under so many random profiles; ``passed`` has what holds in each, if that is known."""
    passed = passed if passed is not None else [held_in_draw(runs, seed, i) for i in range(draws)]
    held = Counter(id for one in passed for id in one)
    claims = [claim for study in runs.studies if study.grid for claim in study.claim]
    held_frac = {claim.id: held[claim.id] / draws for claim in claims}
    counted = evidence(claims, held_frac)
    return Draws(
        draws=draws,
        seed=seed,
        held_frac=held_frac,
        reproduced=tuple(len(one & counted) for one in passed),
        independent=len(counted),
    )


def evidence(claims: Sequence[Claim], held_frac: dict[str, float]) -> set[str]:
    """Claims of these that are independent and can fail."""
    return {c.id for c in claims if c.role == "independent" and held_frac[c.id] < CANNOT_FAIL_FRAC}
