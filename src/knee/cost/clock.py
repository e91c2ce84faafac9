"""The clock that a board's power limit leaves to products and attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.arrays import Floats
from knee.specs.hardware import Gpu

SLOWEST = 0.05
"""Of the highest clock: less is no clock of a GPU that computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one GPU computes in a step."""

    clocked_s: Floats
    """Products and attention at the highest clock."""
    other_s: Floats
    """Memory-bound kernels, which do not follow the clock."""
    flop: Floats
    """Tensor-core operations, by their energy in products."""
    moved_bytes: Floats
    bubble_frac: Floats
    """Waiting for other stages, over compute."""
    host_s: Floats
    """Host time of its launches: the GPU waits where that is longer than its compute."""


def clock_frac(gpu: Gpu, work: StepWork) -> Floats:
    """Clock while a plan computes, over the highest.

    Formula: the x <= 1 with  idle + (E x + B) / ((C/x + M)(1 + bubble) + H) = cap
    Where:   E = flop * J/FLOP at the highest clock, B = bytes * J/B, C clocked and M other seconds, H the host's more
    Source:  data/h200/power.jsonl: products draw 1.08 pJ/FLOP at 1,980 MHz and 0.85 at 1,476, in proportion to the
             clock within 5%; products at 50 to 100% of the time leave 1,969 to 1,476 MHz, this form within 5%
    Valid:   means over many steps; communication counts neither as time nor as draw, as it draws about the mean
    """
    free = _clock(gpu, work, gpu.tdp_w)
    if gpu.gemm_clock_frac < 1.0:
        return free
    # the clock of the measurement is all that is known: it holds under the limit of the measurement
    return np.minimum(1.0, free / _clock(gpu, work, gpu.gemm_cap_w or gpu.tdp_w))


def _clock(gpu: Gpu, work: StepWork, cap_w: float) -> Floats:
    room = cap_w - gpu.idle_w
    waits = np.maximum(0.0, work.host_s - work.clocked_s - work.other_s)
    # E x^2 + (B - room W) x - room V = 0, with V the clocked and W the other seconds
    clocked = work.clocked_s * (1.0 + work.bubble_frac)
    other = work.other_s * (1.0 + work.bubble_frac) + waits
    energy = np.maximum(work.flop * gpu.gemm_j_per_flop, 1e-30)
    linear = work.moved_bytes * gpu.hbm_j_per_byte - room * other
    root = np.sqrt(linear**2 + 4.0 * energy * room * clocked)
    # the form without a difference of equal numbers, whichever sign the linear term has
    x = np.where(linear > 0, 2.0 * room * clocked / (root + linear), (root - linear) / (2.0 * energy))
    return np.clip(x, SLOWEST, 1.0)
