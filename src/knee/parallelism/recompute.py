"""Activation recomputation: which parts of forward are run again in backward instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose insides are computed again in backward. Nothing here draws random numbers."""

    def run(*args: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)

    return run
