"""A rank's order as people write it."""

from __future__ import annotations

import numpy as np

from knee.specs.schedules import ACTION_KINDS, Order


def actions(order: Order) -> list[tuple[str, int, int]]:
    """(kind, chunk, microbatch) of each action."""
    columns = zip(*map(np.ndarray.tolist, order[:3]), strict=True)
    return [(ACTION_KINDS[kind], chunk, micro) for kind, chunk, micro in columns]
