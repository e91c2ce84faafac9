"""Regional torch.compile: each block's body and the loss, inside FSDP's hooks and recomputation, which stay eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SHAPES = 64
"""Most shapes for which a function is compiled."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled for the shapes it meets; blocks are alike and share one program.

    On a GPU, block sizes of memory-bound kernels are tuned: some seconds at the start, some milliseconds of each step.
    """
    # a model with experts and latent attention has more shapes of weights than torch compiles by default
    torch._dynamo.config.recompile_limit = SHAPES
    # what is tuned differs from run to run, and with it the order of sums
    tuned = torch.cuda.is_available() and not torch.are_deterministic_algorithms_enabled()
    options = {"coordinate_descent_tuning": True} if tuned else None
    made: Callable[..., Any] = torch.compile(function, dynamic=False, options=options)
    return made
