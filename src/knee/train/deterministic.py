"""The same seed gives the same losses, bit by bit: kernels that add in no fixed order are replaced or refused."""

from __future__ import annotations

import os


def be_deterministic() -> None:
    """Set torch so, before a device is used. An operation that has no such kernel raises an error that names it."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads memory that was not written
    torch.backends.cudnn.benchmark = False
