"""Number types: what is computed in, what is kept, and the loss scale that fp16 needs."""

from __future__ import annotations

from typing import Any

import torch

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class LossScale:
    """fp16's loss scale, on the device: halved when a gradient overflows (that step is not taken), doubled after many
    steps without. Every rank sees the same gradient norm, so all agree without asking.

    Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740); values of torch.amp.GradScaler
    """

    FIRST, PATIENCE = 2.0**16, 2000

    def __init__(self, device: Any) -> None:
        self.value = torch.full((), self.FIRST, device=device)
        self.good = torch.zeros((), device=device)
        """Steps since the last overflow."""

    def update(self, overflow: Any) -> None:
        """``overflow`` is 1 where the step was not taken."""
        self.good = (self.good + 1) * (1 - overflow)
        grows = (self.good >= self.PATIENCE).float()
        self.good = self.good * (1 - grows)
        self.value = self.value * (1 + grows) * (1 - 0.5 * overflow)
