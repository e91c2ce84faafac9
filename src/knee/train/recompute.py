"""Activation recomputation: which parts of forward are run again in backward instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint

from knee.specs.plan import Plan


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose insides are computed again in backward. Nothing here draws random numbers."""

    def run(*args: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)

    return run


def blocks_recomputed(plan: Plan, layers: int) -> list[bool]:
    """Which of so many blocks are recomputed: all, none, or ``recompute_frac`` of them, spread evenly."""
    frac = plan.recompute_frac if plan.recompute == "full" else 0.0
    return [int((i + 1) * frac + 1e-9) > int(i * frac + 1e-9) for i in range(layers)]
