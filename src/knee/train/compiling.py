"""Regional torch.compile: each block's body and the loss, inside FSDP's hooks and recomputation, which stay eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled for the shapes it meets; blocks are alike and share one program."""
    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made
