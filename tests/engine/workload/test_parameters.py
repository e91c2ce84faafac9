"""Parameter counts against torch's own, which are what the published models are called by."""

from __future__ import annotations

import numpy as np
import pytest

from knee.engine.workload.parameters import embedding_tensors, head_tensors, layer_tensors, local_sides, parameter_count
from knee.specs.load import load_model

PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}
"""``sum(p.numel() for p in model.parameters())`` of the models on Hugging Face."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    assert parameter_count(load_model(name).spec) == PUBLISHED[name]


def test_a_layer_of_llama_2_7b() -> None:
    model = load_model("llama2-7b").spec
    assert sum(t.size for t in layer_tensors(model)) == 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert sum(t.size for t in embedding_tensors(model)) == 32000 * 4096
    assert sum(t.size for t in head_tensors(model)) == 32000 * 4096 + 4096


def test_grouped_queries_narrow_keys_and_values() -> None:
    rows = {t.name: t.rows for t in layer_tensors(load_model("llama3-8b").spec)}
    assert (rows["wq"], rows["wk"], rows["wv"]) == (4096, 1024, 1024)


def test_gpt_3_has_biases_and_positions_and_one_embedding() -> None:
    """175B as torch counts GPT-3's shape: 96 layers of 12288, tied embeddings, 2,048 positions."""
    assert parameter_count(load_model("gpt3-175b").spec) == pytest.approx(175e9, rel=0.01)


def test_a_ranks_side_of_a_weight_is_the_one_that_is_split() -> None:
    """Llama 3 8B over 1, 8 and 16 GPUs: keys and values are not cut below a head."""
    tp = np.array([1, 8, 16])
    sides = {t.name: local_sides(t, tp) for t in layer_tensors(load_model("llama3-8b").spec)}
    whole, ffn = [4096.0] * 3, [14336.0, 1792.0, 896.0]
    expected = {
        "wq": ([4096.0, 512.0, 256.0], whole),
        "wk": ([1024.0, 128.0, 128.0], whole),
        "wo": (whole, [4096.0, 512.0, 256.0]),
        "w1": (ffn, whole),
        "w2": (whole, ffn),
    }
    assert {name: tuple(side.tolist() for side in sides[name]) for name in expected} == expected
