"""Windows, QK norm, soft caps, norms, biases and parallel residuals: FLOP, bytes, parameters and messages by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import knee
from knee.engine.cost.compute_costs import shapes_of
from knee.engine.cost.kernel_cost import attention_s
from knee.engine.workload import operations as op
from knee.engine.workload.memory import layer_saved_bytes, logits_bytes
from knee.engine.workload.parameters import causal_keys, model_flop_per_token, parameter_count
from knee.engine.workload.projections import Shapes
from knee.engine.workload.tp_messages import TpMessages, layer_backward, layer_forward, ops_again
from knee.specs.constants import passes_of
from knee.specs.load import load_model
from knee.specs.model import Model
from tables import EAGER, H100, LLAMA_7B, job, table

SEQ, WINDOW = 8192, 1024


def shapes(seq_len: int = SEQ, **plan: Any) -> Shapes:
    return shapes_of(LLAMA_7B, table(job(seq_len=seq_len, **plan)))


def attention(model: Model, s: Shapes, *, forward: bool = True) -> op.Attention:
    ops = (op.layer_forward if forward else op.layer_backward_input)(model, s, "eager")
    (found,) = (o for o in ops if isinstance(o, op.Attention))
    return found


def streams(ops: list[op.Operation], name: str) -> list[op.MemoryBound]:
    return [o for o in ops if isinstance(o, op.MemoryBound) and o.name == name]


# Windows.


@pytest.mark.parametrize("window", [1, 5, 64, 100])
def test_keys_of_a_window_are_those_of_the_mask(window: int) -> None:
    """Counted from the mask, whose diagonal is half of what the mean over whole tokens has."""
    seq = 100
    query, key = np.arange(seq)[:, None], np.arange(seq)[None, :]
    mask = (key <= query) & (key > query - window)
    counted = mask.sum() / seq
    keys = float(causal_keys(replace(LLAMA_7B, window=window), np.array([float(seq)]))[0])
    # the continuous count leaves out the upper half of the diagonal, and the lower half of the window's other edge
    assert keys == pytest.approx(counted, abs=0.5 + 1e-9)
    assert keys <= window


@pytest.mark.parametrize("forward", [True, False])
def test_flop_of_windowed_layers(forward: bool) -> None:
    s, full = shapes(), attention(LLAMA_7B, shapes(), forward=forward)
    band = (WINDOW - WINDOW**2 / (2 * SEQ)) / (SEQ / 2)
    all_layers = attention(replace(LLAMA_7B, window=WINDOW), s, forward=forward)
    assert all_layers.flop[0] == pytest.approx(full.flop[0] * band)
    assert all_layers.seq_len[0] == WINDOW
    every_second = attention(replace(LLAMA_7B, window=WINDOW, layer_pattern="sf"), s, forward=forward)
    assert every_second.flop[0] == pytest.approx(full.flop[0] * (1 + band) / 2)


@pytest.mark.parametrize("pattern", ["s", "sf", "sssssf"])
@pytest.mark.parametrize("cp", [1, 4])
def test_the_mean_layer_takes_the_mean_of_the_layers_times(pattern: str, cp: int) -> None:
    s = shapes(cp=cp)
    layers = [replace(LLAMA_7B, window=WINDOW), LLAMA_7B]
    sliding, full = (attention_s(H100.gpu, "flash2", attention(model, s))[0] for model in layers)
    mixed = replace(LLAMA_7B, window=WINDOW, layer_pattern=pattern)
    share = mixed.sliding_layers / mixed.layers
    mean = attention_s(H100.gpu, "flash2", attention(mixed, s))[0]
    assert mean == pytest.approx(share * sliding + (1 - share) * full, rel=1e-12)


@pytest.mark.parametrize("window", [4096, 5000, 100_000])
def test_a_window_that_is_not_shorter_than_the_sequence_changes_nothing(window: int) -> None:
    for pattern in ("s", "sf"):
        model = replace(LLAMA_7B, window=window, layer_pattern=pattern)
        one, other = (
            knee.simulate(each, cluster="dgx-h100", gpus=8, local_batch=1, seq_len=4096, sharding="fsdp").measurement
            for each in (LLAMA_7B, model)
        )
        assert other.step_s == pytest.approx(one.step_s, rel=1e-12)
        assert other.mfu_frac == pytest.approx(one.mfu_frac, rel=1e-12)


def test_flop_conventions_count_the_window() -> None:
    model, seq = replace(LLAMA_7B, window=WINDOW), np.array([SEQ])
    of = {name: float(model_flop_per_token(model, seq, name)[0]) for name in ("palm", "6n", "causal")}
    assert of["palm"] - of["6n"] == pytest.approx(12 * 32 * 4096 * WINDOW)
    assert of["causal"] - of["6n"] == pytest.approx(12 * 32 * 4096 * (WINDOW - WINDOW**2 / (2 * SEQ)))


# Norms and soft caps.


def test_more_norms_move_and_keep_more() -> None:
    s, four = shapes(), replace(LLAMA_7B, layer_norms=4)
    for make in (op.layer_forward, op.layer_backward_input):
        (two_norms,), (four_norms,) = (streams(make(m, s, "eager"), "norm") for m in (LLAMA_7B, four))
        assert four_norms.moved_bytes[0] == 2 * two_norms.moved_bytes[0]
        assert four_norms.kernels == 2 * two_norms.kernels
    none = np.zeros(1)
    kept = [layer_saved_bytes(m, s, EAGER, none)[0] for m in (LLAMA_7B, four)]
    assert kept[1] - kept[0] == pytest.approx(2 * (8 - 2) * 4096 * SEQ)  # fp32 input and unscaled output, in eager
    assert parameter_count(four) - parameter_count(LLAMA_7B) == 32 * 2 * 4096


@pytest.mark.parametrize(("qk_norm", "weights"), [("head", 2 * 128), ("full", 4096 + 1024)])
def test_qk_norm(qk_norm: Any, weights: int) -> None:
    plain = replace(LLAMA_7B, kv_heads=8)
    model, s, none = replace(plain, qk_norm=qk_norm), shapes(tp=2), np.zeros(1)
    assert parameter_count(model) - parameter_count(plain) == 32 * weights
    (norm,) = streams(op.layer_forward(model, s, "eager"), "qk_norm")
    columns = (4096 + 1024) / 2
    assert norm.moved_bytes[0] == pytest.approx(passes_of("eager", "rmsnorm").forward * SEQ * columns * 2)
    kept = [layer_saved_bytes(m, s, EAGER, none)[0] for m in (plain, model)]
    assert kept[1] - kept[0] == pytest.approx(6 * columns * SEQ)
    assert streams(op.layer_forward(plain, s, "eager"), "qk_norm") == []


def test_a_final_soft_cap_is_a_pass_over_the_logits() -> None:
    capped, s = replace(LLAMA_7B, final_soft_cap=30.0), shapes(tp=2)
    for make, passes in ((op.head_forward, 6), (op.head_backward, 7)):
        (cap,) = streams(make(capped, s, "eager"), "soft_cap")
        assert cap.moved_bytes[0] == passes * 2 * SEQ * 32000 / 2
        assert streams(make(LLAMA_7B, s, "eager"), "soft_cap") == []
    more = logits_bytes(capped, s, EAGER) - logits_bytes(LLAMA_7B, s, EAGER)
    assert more[0] == 2 * SEQ * 32000 / 2


def test_a_part_of_each_head_is_rotated() -> None:
    s = shapes()
    (whole,), (half,) = (
        streams(op.layer_forward(m, s, "eager"), "rope") for m in (LLAMA_7B, replace(LLAMA_7B, rope_frac=0.5))
    )
    assert half.moved_bytes[0] == whole.moved_bytes[0] / 2


# Weights.


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"qkv_bias": True}, 3 * 4096),
        ({"attention_output_bias": True}, 4096),
        ({"mlp_bias": True}, 2 * 11008 + 4096),
        ({"biases": True}, 3 * 4096 + 4096 + 2 * 11008 + 4096 + 2 * 4096),
        ({"biases": True, "qkv_bias": True}, 3 * 4096 + 4096 + 2 * 11008 + 4096 + 2 * 4096),
        ({"mlp": "geglu"}, 0),
        ({"mlp": "gelu"}, -4096 * 11008),
        ({"parallel_residual": True, "layer_norms": 1}, -4096),
    ],
)
def test_parameters_of_a_layer(change: dict[str, Any], more: int) -> None:
    final = 4096 if change.get("biases") else 0  # of the last norm
    assert parameter_count(replace(LLAMA_7B, **change)) - parameter_count(LLAMA_7B) == 32 * more + final


# Tensor-parallel messages.


def test_messages_of_a_parallel_residual() -> None:
    two_norms = replace(LLAMA_7B, parallel_residual=True)
    shared = replace(two_norms, layer_norms=1)
    assert layer_forward(LLAMA_7B) == TpMessages(gathers=2, scatters=2, all_reduces=2)
    assert layer_forward(two_norms) == TpMessages(gathers=2, scatters=1, all_reduces=1)
    assert layer_forward(shared) == TpMessages(gathers=1, scatters=1, all_reduces=1)
    keeps = replace(EAGER, keeps_gathered=True)
    assert layer_backward(shared, keeps) == TpMessages(gathers=1, scatters=1, all_reduces=1)
    assert layer_backward(LLAMA_7B, keeps) == TpMessages(gathers=2, scatters=2, all_reduces=2)
    again = replace(EAGER, keeps_gathered=False)
    assert layer_backward(LLAMA_7B, again) == TpMessages(gathers=4, scatters=2, all_reduces=2)
    assert ops_again(LLAMA_7B) == TpMessages(gathers=2, all_reduces=1)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_a_norm_over_all_heads_sums_between_ranks(sequence_parallel: bool) -> None:
    full = replace(LLAMA_7B, qk_norm="full")
    assert layer_forward(full).sums == layer_backward(full, EAGER).sums == 2
    ask: dict[str, Any] = {"gpus": 8, "local_batch": 1, "seq_len": 4096, "sharding": "fsdp", "tp": 2}
    ask |= {"sequence_parallel": sequence_parallel}
    head, all_heads = (
        knee.simulate(replace(LLAMA_7B, qk_norm=norm), cluster="dgx-h100", **ask).measurement.comm_loads
        for norm in ("head", "full")
    )
    small = [sum(load.calls for load in loads if load.message_bytes == 4 * 8192) for loads in (head, all_heads)]
    assert small[1] - small[0] == 32 * (2 + 2)


def test_every_feature_costs_time_or_none() -> None:
    """A step with a window is faster; with more norms, soft caps or QK norm it is slower; the trace adds up."""

    def step_s(**change: Any) -> float:
        model = replace(LLAMA_7B, **change)
        ask: dict[str, Any] = {"gpus": 8, "local_batch": 1, "seq_len": SEQ, "sharding": "fsdp", "tp": 2}
        return knee.simulate(model, cluster="dgx-h100", **ask).measurement.step_s

    plain = step_s()
    assert step_s(window=WINDOW) < step_s(window=WINDOW, layer_pattern="sf") < plain
    assert step_s(parallel_residual=True) < plain
    for slower in ({"layer_norms": 4}, {"qk_norm": "head"}, {"final_soft_cap": 30.0}):
        assert step_s(**slower) > plain


# Experts.


def test_streams_of_experts_by_hand() -> None:
    """DeepSeek-V2-Lite on tp 2, ep 4, etp 2: 64 experts of 1,408, six of them and two shared ones for each token; 26 of
    its 27 layers have them. A rank routes half of the tokens and computes half of each expert for two ranks."""
    model = load_model("deepseek-v2-lite").spec
    experts = model.experts
    assert experts is not None
    s = shapes_of(model, table(job(model=model, tp=2, ep=4, etp=2, dp_shard=4, sharding="zero1", seq_len=SEQ)))
    found = {name: (kind, float(size[0]), share) for name, kind, size, share in op.expert_streams(model, experts, s)}
    share, rows = 26 / 27, SEQ / 2 * 6 * 2 * float(s.busiest[0])
    assert found == {
        "router": ("router", pytest.approx(share * SEQ / 2 * 64 * 4), share),
        "permute": ("permute", pytest.approx(share * float(s.permuted_rows[0]) * 2048 * 2), share),
        "experts_swiglu": ("swiglu", pytest.approx(share * rows * 1408 / 2 * 2), share),
        "shared_swiglu": ("swiglu", pytest.approx(share * SEQ * 2 * 1408 / 2 * 2), share),
    }
    biased = [one[0] for one in op.expert_streams(replace(model, mlp_bias=True), experts, s)]
    assert biased == ["router", "permute", "experts_swiglu", "experts_bias", "shared_swiglu"]
    (_, _, size, _) = op.expert_streams(replace(model, mlp_bias=True), experts, s)[3]
    assert size[0] == pytest.approx(share * rows * 2048 * 2)
