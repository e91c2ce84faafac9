"""What a doubling of the GPUs buys: the one rule by which searches, studies and sweeps judge more GPUs."""

from __future__ import annotations

import math


def per_doubling(speedup: float, from_gpus: float, to_gpus: float) -> float:
    """The speed-up of each doubling that a step between two counts is worth.

    Formula: s^(1 / log2(N2 / N1))
    Where:   s = T2 / T1 tokens/s of N2 GPUs over those of N1
    Valid:   for any two counts: a step from 16 to 24 is judged as the doublings it is worth
    """
    return float(speedup ** (1.0 / math.log2(to_gpus / from_gpus)))


def doubling_pays(speedup: float, from_gpus: float, to_gpus: float, threshold: float) -> bool:
    """Whether each doubling of a step buys at least so much; also where a step slows down."""
    return bool(speedup >= threshold ** math.log2(to_gpus / from_gpus))
