"""The weights of layers with experts and with latent attention, and the keys of chunked attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.workload.parameters import (
    Tensor,
    attention_tensors,
    causal_keys,
    expert_tensors,
    kernel_keys,
    layer_tensors,
    mlp_tensors,
    most_keys,
    routed_tensors,
    router_tensors,
    shared_tensors,
)
from knee.specs.load import load_model
from tables import LLAMA_7B


def sizes(tensors: tuple[Tensor, ...]) -> dict[str, int]:
    return {tensor.name: tensor.size for tensor in tensors}


def test_latent_attention_of_deepseek_v3() -> None:
    """Shapes of the weights on Hugging Face."""
    assert sizes(attention_tensors(load_model("deepseek-v3").spec)) == {
        "wq_a": 1536 * 7168,
        "q_a_norm": 1536,
        "wq_b": 24576 * 1536,
        "wkv_a": 576 * 7168,
        "kv_a_norm": 512,
        "wkv_b": 32768 * 512,
        "wo": 7168 * 16384,
    }
    lite = sizes(attention_tensors(load_model("deepseek-v2-lite").spec))
    assert lite["wq"] == 3072 * 2048
    assert "wq_b" not in lite


def test_experts_are_marked_apart() -> None:
    model = load_model("qwen2-57b-a14b").spec
    layer = layer_tensors(model, experts=True)
    assert {tensor.name for tensor in layer if tensor.experts} == {"w1", "w2", "w3"}
    assert {tensor.experts for tensor in routed_tensors(model)} == {64}
    assert sizes(router_tensors(model)) == {"router": 64 * 3584}
    shared = sizes(shared_tensors(model))
    assert shared == {**dict.fromkeys(("shared_w1", "shared_w3", "shared_w2"), 20480 * 3584), "shared_gate": 3584}
    assert {tensor.name for tensor in layer_tensors(model)} & set(sizes(expert_tensors(model))) == {"w1", "w2", "w3"}
    assert not any(tensor.experts for tensor in layer_tensors(model))


def test_biases_and_sinks_of_gpt_oss() -> None:
    model = load_model("gpt-oss-20b").spec
    layer = sizes(layer_tensors(model, experts=True))
    assert layer["sinks"] == 64
    assert layer["router_bias"] == 32
    assert (layer["b1"], layer["b3"], layer["b2"]) == (32 * 2880,) * 3
    assert (layer["bq"], layer["bk"], layer["bo"]) == (4096, 512, 2880)


def test_a_dense_layer_of_a_mixture_has_the_models_mlp() -> None:
    model = load_model("deepseek-v3").spec
    assert sizes(mlp_tensors(model)) == dict.fromkeys(("w1", "w3", "w2"), 18432 * 7168)


@pytest.mark.parametrize(("seq_len", "mean"), [(512, 256.0), (1024, 512.0), (4096, 512.0), (1536, 426.6667)])
def test_keys_of_chunks(seq_len: int, mean: float) -> None:
    """Half of a chunk; a rest of 512 tokens after a chunk of 1,024 has fewer."""
    model = replace(LLAMA_7B, window=1024, window_kind="chunked")
    length = np.array([float(seq_len)])
    assert causal_keys(model, length) == pytest.approx([mean])
    # the same by counting, without the half key that the formulas leave out
    assert causal_keys(model, length) == pytest.approx([np.mean(np.arange(seq_len) % 1024) + 0.5])
    assert most_keys(model, length) == pytest.approx([min(1024, seq_len)])
    assert kernel_keys(model, length, length) == pytest.approx([min(1024, seq_len)])


def test_chunks_no_shorter_than_the_sequence_are_full_attention() -> None:
    length = np.array([4096.0])
    model = replace(LLAMA_7B, window=8192, window_kind="chunked", layer_pattern="sssf")
    assert causal_keys(model, length) == pytest.approx(causal_keys(LLAMA_7B, length))
