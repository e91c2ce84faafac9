"""Cross entropy that never holds the logits in fp32, on one rank or with the vocabulary cut over several."""

from __future__ import annotations

from typing import Any

import torch

from knee.parallelism.torch_internals import NamedGroup, all_reduce

ROWS = 1024
"""Tokens whose logits are in fp32 at once; compiled code fuses the cast and takes all of them."""


def cross_entropy(logits: Any, target: Any, vocabulary: NamedGroup | None) -> Any:
    """Mean over tokens, in fp32. With a group, each rank has the logits of its part of the vocabulary."""
    return _CrossEntropy.apply(logits.flatten(0, 1), target.flatten(), vocabulary)


def _rows(tokens: int) -> int:
    return tokens if torch.compiler.is_compiling() else ROWS


def _own(target: Any, width: int, vocabulary: NamedGroup | None) -> tuple[Any, Any]:
    """Targets as columns of this rank's logits, and which of them it has."""
    local = target - (vocabulary.rank * width if vocabulary else 0)
    here = (local >= 0) & (local < width)
    return local.masked_fill(~here, 0), here


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, vocabulary: NamedGroup | None) -> Any:
        tokens, width = logits.shape
        column, here = _own(target, width, vocabulary)
        top = logits.amax(-1).float()
        if vocabulary:
            top = all_reduce(top, vocabulary, "max")
        rows = _rows(tokens)
        sums = [
            (part.float() - high.unsqueeze(-1)).exp().sum(-1)
            for part, high in zip(logits.split(rows), top.split(rows), strict=True)
        ]
        total = torch.cat(sums) if len(sums) > 1 else sums[0]
        picked = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1).float().masked_fill(~here, 0.0)
        if vocabulary:
            total, picked = all_reduce(torch.stack((total, picked)), vocabulary).unbind(0)
        normaliser = total.log() + top
        ctx.save_for_backward(logits, column, here, normaliser)
        return (normaliser - picked).mean()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        logits, column, here, normaliser = ctx.saved_tensors
        each = grad / logits.shape[0]
        rows = _rows(logits.shape[0])
        parts = [
            ((part.float() - high.unsqueeze(-1)).exp() * each).to(logits.dtype)
            for part, high in zip(logits.split(rows), normaliser.split(rows), strict=True)
        ]
        out = torch.cat(parts) if len(parts) > 1 else parts[0]
        # softmax less one at the target, where this rank has it
        one = (here * each).to(logits.dtype).unsqueeze(-1)
        return out.scatter_add(-1, column.unsqueeze(-1), -one), None, None
