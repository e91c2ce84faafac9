"""How layers are dealt to pipeline stages, and how much of the model each stage holds."""

from __future__ import annotations

from functools import cache


@cache
def chunk_layers(layers: int, chunks: int, head_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each chunk, first to last.

    Chunks are filled evenly; where layers do not divide, the ends get one fewer, last and first in turn, because they
    also carry the loss and the embedding (Llama-3 405B on 16 stages: 7, 8 x 14, 7). Stacks that deal by cost count the
    output projection as so many layers.
    """
    if head_layers and chunks > 1:
        return _by_cost(layers, chunks, head_layers)
    full = -(-layers // chunks)
    dealt = [full] * chunks
    ends = [i // 2 if i % 2 else chunks - 1 - i // 2 for i in range(chunks)]
    for i in ends[: full * chunks - layers]:
        dealt[i] -= 1
    return tuple(dealt)


def _by_cost(layers: int, chunks: int, head_layers: float) -> tuple[int, ...]:
    """Layers go to a chunk until it has its share of the whole cost; the output projection is taken to be on the last
    chunk, which may have no layer.

    Source:  nanotron, models/base.py build_model: thresholds at equal shares of the cumulative cost. There a layer that
             ends exactly on its chunk's share leaves room for one more; memory and throughput of the Ultra-Scale
             Playbook's runs, where such ties are common, agree with none
    """
    share = (layers + head_layers) / chunks
    dealt, chunk = [0] * chunks, 0
    for layer in range(1, layers + 1):
        dealt[chunk] += 1
        if layer >= share * (chunk + 1) and chunk < chunks - 1:
            chunk += 1
    return tuple(dealt)


@cache
def stage_layers(layers: int, stages: int, virtual: int, head_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each pipeline rank, over all its chunks (chunk v * stages + rank)."""
    dealt = chunk_layers(layers, stages * virtual, head_layers)
    return tuple(sum(dealt[rank::stages]) for rank in range(stages))


@cache
def blocks_recomputed(frac: float, layers: int) -> tuple[bool, ...]:
    """Which of so many blocks are recomputed where a share of them is: whole ones, spread evenly."""
    return tuple(int((i + 1) * frac + 1e-9) > int(i * frac + 1e-9) for i in range(layers))
