"""Passes of every regime, for tests that hold one way to walk them against another."""

from __future__ import annotations

import numpy as np

from knee.engine.timeline.passes import Pass, Segment


def random_passes(n: int, seed: int, kappa: float) -> Pass:
    """Columns of passes of every regime."""
    draw = np.random.default_rng(seed)

    def some(scale: float, share: float = 0.5) -> np.ndarray:
        return draw.uniform(0, scale, n) * (draw.random(n) < share)

    def seg() -> Segment:
        return Segment(compute_s=draw.uniform(1, 10, n), hidden_s=some(5), blocking_s=some(3), host_s=some(12))

    return Pass(
        layers=draw.integers(1, 60, n),
        lead=seg(),
        layer=seg(),
        tail=seg(),
        root_gather_s=some(10),
        gather_s=some(15),
        ahead=draw.integers(0, 4, n),
        reduce_s=some(15),
        reduce_limit_s=np.where(draw.random(n) < 0.5, np.inf, draw.uniform(0, 20, n)),
        root_reduce_s=some(10),
        replicate_s=some(15),
        root_replicate_s=some(5),
        carried_reduce_s=some(30, 0.3),
        carried_replicate_s=some(30, 0.3),
        kappa=np.full(n, kappa),
        shares_wire=draw.random(n) < 0.3,
        waits_at_end=draw.random(n) < 0.8,
    )
