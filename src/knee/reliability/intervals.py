"""How often to save a checkpoint, and what a run with failures takes: formulas of Young and Daly, and the exact ones.

All of them take the failures of a run to be independent, with a constant rate.
"""

from __future__ import annotations

import math


def young_interval_s(wait_s: float, mean_s: float) -> float:
    """Young's best time between checkpoints.

    Formula: sqrt(2 C M)
    Where:   C time that training waits for a checkpoint, M mean time between failures
    Source:  Young, Communications of the ACM 17(9), 1974
    Valid:   C much smaller than M
    """
    return math.sqrt(2.0 * wait_s * mean_s)


def daly_interval_s(wait_s: float, mean_s: float) -> float:
    """Daly's best time between checkpoints.

    Formula: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2M, else M
    Source:  Daly, Future Generation Computer Systems 22(3), 2006
    """
    if wait_s >= 2.0 * mean_s:
        return mean_s
    ratio = wait_s / (2.0 * mean_s)
    return young_interval_s(wait_s, mean_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - wait_s


def best_interval_s(wait_s: float, mean_s: float) -> float:
    """The time between checkpoints with the shortest expected run.

    Formula: the root x of 1 - x = exp(-(x + C / M)), times M
    Where:   the derivative of ``time_per_work`` is zero there; it depends neither on detection nor on the restart
    Source:  Daly 2006, solved by bisection
    """
    cost, low, high = wait_s / mean_s, 0.0, 1.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if -math.expm1(-(middle + cost)) > middle:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high) * mean_s


def time_per_work(interval_s: float, wait_s: float, down_s: float, again_s: float, mean_s: float) -> float:
    """Expected seconds per second of training.

    Formula: (M + D) exp(R / M) (exp((t + C) / M) - 1) / t
    Where:   t training between checkpoints, C wait for one, M mean time between failures, D time after a failure in
             which no other can happen (detection), R time in which one can (restart; writing of the last checkpoint)
    Source:  Daly 2006, with the downtime of Bougeret et al., SC 2011. It is exact: a run is a renewal process with
             cycles of M + D, each of which saves t as often as failures leave time for
    """
    exponent = again_s / mean_s + (interval_s + wait_s) / mean_s
    if exponent > 500.0:
        return math.inf
    return (mean_s + down_s) / interval_s * math.exp(again_s / mean_s) * math.expm1((interval_s + wait_s) / mean_s)
