"""Replicas on links so slow that their bandwidth decides: the share of the time in which they compute.

It is the abstract model of the papers on DiLoCo, without a network's latencies: to be held against their tables.
"""

from __future__ import annotations

import math

import numpy as np

BITS = 16.0
"""Of one number that is exchanged: bf16, as in the papers."""
GRID_BITS_PER_S = 1e9 * np.logspace(-1.0, 3.0, 50)
"""Bandwidths that arXiv 2503.09799 tries: 0.1 to 1,000 Gbit/s; each step is 21% more."""


def needed_bits_per_s(
    params: float, step_s: float, utilisation: float, *, every: int = 1, fragments: int = 1, bits: float = BITS
) -> float:
    """Bandwidth at which replicas compute this share of the time.

    Formula: the bandwidth for which H t / max(H t, (H - w) t + E) is the share
    Where:   E = bits * params / bandwidth, every H steps of length t, between two replicas (2 (1 - 1/2) parts each);
             it runs beside w of the steps: the last one, or all of them if fragments are streamed
    Source:  inferred from tables 6 and 7 of arXiv 2503.09799; Streaming DiLoCo, arXiv 2501.18512
    Valid:   without latency; compute is not slowed down
    """
    beside = every if fragments > 1 else 1
    return bits * params / (every * step_s / utilisation - (every - beside) * step_s)


def grid_step(bits_per_s: float) -> int:
    """The nearest bandwidth of the papers' grid, counted from 0."""
    low, high = math.log10(GRID_BITS_PER_S[0]), math.log10(GRID_BITS_PER_S[-1])
    place = (math.log10(bits_per_s) - low) / (high - low) * (len(GRID_BITS_PER_S) - 1)
    return min(max(round(place), 0), len(GRID_BITS_PER_S) - 1)
