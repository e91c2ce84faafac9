"""How layers are dealt to pipeline stages, and how much of the model each stage holds."""

from __future__ import annotations

from functools import cache


@cache
def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, first to last.

    Chunks are filled evenly; where layers do not divide, the ends get one fewer, last and first in turn, because they
    also carry the loss and the embedding (Llama-3 405B on 16 stages: 7, 8 x 14, 7).
    """
    full = -(-layers // chunks)
    dealt = [full] * chunks
    ends = [i // 2 if i % 2 else chunks - 1 - i // 2 for i in range(chunks)]
    for i in ends[: full * chunks - layers]:
        dealt[i] -= 1
    return tuple(dealt)


@cache
def stage_layers(layers: int, stages: int, virtual: int) -> tuple[int, ...]:
    """Layers of each pipeline rank, over all its chunks (chunk v * stages + rank)."""
    dealt = chunk_layers(layers, stages * virtual)
    return tuple(sum(dealt[rank::stages]) for rank in range(stages))
