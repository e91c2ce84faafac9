"""Context parallelism: every rank has two blocks of each sequence, one from its head and one from its tail.

Of 2c blocks rank r has r and 2c - 1 - r, so that all ranks do the same share of the causal work. Keys and values are
gathered; each of the two query blocks then sees the keys up to its own end, which is one causal kernel aligned to the
lower right. No mask is made on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from knee.training.parallelism.torch_internals import (
    NamedGroup,
    all_gather,
    exchange,
    flash_lower_right,
    reduce_scatter,
)


def blocks_of(rank: int, ranks: int) -> tuple[int, int]:
    """Which of the 2 x ranks blocks of a sequence a rank has."""
    return rank, 2 * ranks - 1 - rank


def positions(seq_len: int, group: NamedGroup | None) -> Any:
    """Positions of this rank's tokens in the sequence."""
    if group is None:
        return torch.arange(seq_len)
    block = seq_len // (2 * group.size)
    return torch.cat([torch.arange(b * block, (b + 1) * block) for b in blocks_of(group.rank, group.size)])


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention of whole sequences; (batch, sequence, heads, width) in and out."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


class GatheredAttention:
    """Attention of this rank's blocks to the whole sequence before them."""

    def __init__(self, group: NamedGroup) -> None:
        self.group = group

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """As ``causal_attention``, for a rank's two blocks."""
        keys, values = _in_order(_GatherBlocks.apply(torch.stack((k, v)), self.group), self.group.size)
        own = q.shape[1] // 2
        done = []
        for part, block in zip(q.split(own, dim=1), blocks_of(self.group.rank, self.group.size), strict=True):
            seen = (block + 1) * own
            done.append(_lower_right(part, keys[:, :seen], values[:, :seen]))
        return torch.cat(done, dim=1)


def _lower_right(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of the last queries of a prefix."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.is_cuda and q.dtype != torch.float32 and q.shape[-1] % 8 == 0:
        return flash_lower_right(q, k, v).transpose(1, 2)
    queries, keys = q.shape[2], k.shape[2]
    mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)


def _in_order(gathered: Any, ranks: int) -> Any:
    """(ranks, 2, batch, tokens, heads, width), blocks as ranks have them -> (2, batch, sequence, heads, width)."""
    _, two, batch, tokens, heads, width = gathered.shape
    blocks = gathered.view(ranks, two, batch, 2, tokens // 2, heads, width)
    ordered = torch.cat((blocks[:, :, :, 0], blocks[:, :, :, 1].flip(0)))
    return ordered.movedim(0, 2).reshape(two, batch, ranks * tokens, heads, width)


_GatherBlocks = exchange(
    lambda x, group: all_gather(x, group).view(group.size, *x.shape),
    lambda grad, group: reduce_scatter(grad.flatten(0, 1), group),
)
