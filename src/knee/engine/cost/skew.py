"""Waiting for the last of many ranks: the expected maximum of their delays."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Floats
from knee.engine.cost.placement import GroupPlacement


def expected_maximum(ranks: NDArray[np.int64] | Floats) -> Floats:
    """Expected maximum of n standard normal draws, in standard deviations.

    Formula: Phi^-1((n - 0.375) / (n + 0.25))   (Blom 1958); 0 for one GPU, 1.43 for 8, 3.43 for 2,048
    """
    values, inverse = np.unique(ranks, return_inverse=True)
    normal = NormalDist()
    return np.array([normal.inv_cdf((n - 0.375) / (n + 0.25)) for n in values.tolist()])[inverse]


def skew_wait_s(skew_s: float, group: GroupPlacement) -> Floats:
    """What a collective between nodes waits for the last rank to arrive.

    Formula: skew * E[max of N]
    Where:   skew is one standard deviation of the ranks' arrival at a collective; slack hides it like its other time
    """
    if not np.any(skew_s):
        return np.zeros_like(group.ranks)
    return np.where(group.nodes > 1, skew_s * expected_maximum(group.ranks), 0.0)
