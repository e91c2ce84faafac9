"""Shards sum to the whole, and padding is what FSDP2 pads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.engine.workload.layers_per_stage import chunk_layers, stage_layers
from knee.engine.workload.parameters import (
    Tensor,
    embedding_tensors,
    gathered_elements,
    head_tensors,
    layer_tensors,
    parameter_count,
    shard_elements,
)
from knee.specs.load import load_model
from knee.specs.model import Model

models = st.sampled_from(("llama-tiny", "llama2-7b", "llama2-70b", "llama3-8b", "llama3-405b", "gpt3-175b")).map(
    lambda name: load_model(name).spec
)


def one(value: int) -> np.ndarray:
    return np.array([value], dtype=np.int64)


def replicated(tensors: tuple[Tensor, ...]) -> int:
    """Elements that every tensor-parallel rank keeps whole."""
    return sum(t.size for t in tensors if t.tp == "none")


@given(model=models, tp=st.sampled_from((1, 2, 4, 8)), pp=st.integers(1, 16), virtual=st.integers(1, 4))
@settings(max_examples=50)
def test_shards_sum_to_the_whole(model: Model, tp: int, pp: int, virtual: int) -> None:
    """Over tensor-parallel ranks and stages, with what is replicated counted once."""
    virtual = virtual if pp * virtual <= model.layers else 1
    pp = min(pp, model.layers)

    def over_ranks(tensors: tuple[Tensor, ...]) -> float:
        return tp * float(shard_elements(tensors, one(tp))[0]) - (tp - 1) * replicated(tensors)

    layers = sum(stage_layers(model.layers, pp, virtual))
    total = layers * over_ranks(layer_tensors(model))
    total += over_ranks(embedding_tensors(model)) + over_ranks(head_tensors(model))
    assert total == parameter_count(model)


@given(layers=st.integers(1, 200), chunks=st.integers(1, 128))
@settings(max_examples=50)
def test_chunks_are_dealt_evenly(layers: int, chunks: int) -> None:
    chunks = min(chunks, layers)
    dealt = chunk_layers(layers, chunks)
    assert len(dealt) == chunks
    assert sum(dealt) == layers
    assert max(dealt) - min(dealt) <= 1
    assert min(dealt) >= 1


@given(ranks=st.integers(1, 16), virtual=st.integers(1, 8), layers=st.integers(128, 200))
@settings(max_examples=50)
def test_stages_hold_their_chunks(ranks: int, virtual: int, layers: int) -> None:
    stages = stage_layers(layers, ranks, virtual)
    assert sum(stages) == layers
    assert max(stages) - min(stages) <= virtual


@given(model=models, tp=st.sampled_from((1, 2, 4, 8)), ranks=st.integers(1, 4096))
@settings(max_examples=50)
def test_padding_only_adds(model: Model, tp: int, ranks: int) -> None:
    for tensors in (layer_tensors(model), embedding_tensors(model), head_tensors(model)):
        held = float(shard_elements(tensors, one(tp))[0])
        moved = float(gathered_elements(tensors, one(tp), one(ranks))[0])
        assert moved >= held * (1 - 1e-12)


@given(model=models, tp=st.sampled_from((1, 2, 4, 8)), power=st.integers(0, 3))
@settings(max_examples=50)
def test_nothing_is_padded_where_ranks_divide_the_rows(model: Model, tp: int, power: int) -> None:
    tensors, ranks = layer_tensors(model), 2**power
    rows = [t.rows / tp if t.tp == "rows" else t.rows for t in tensors]
    if all(r % ranks == 0 for r in rows):
        moved = gathered_elements(tensors, one(tp), one(ranks))
        assert moved == pytest.approx(shard_elements(tensors, one(tp)), rel=1e-12)


@pytest.mark.parametrize(("ranks", "megabytes"), [(1, 404.8), (2048, 425.7), (8192, 717.3), (98304, 6996.0)])
def test_padding_of_a_llama_2_7b_layer(ranks: int, megabytes: float) -> None:
    """The bytes that torch's fully_shard moves for one layer in bf16 (shared/notes/collectives.md, 5.3)."""
    moved = gathered_elements(layer_tensors(load_model("llama2-7b").spec), one(1), one(ranks))
    assert 2 * float(moved[0]) / 1e6 == pytest.approx(megabytes, rel=2e-3 if ranks > 8192 else 2e-4)
