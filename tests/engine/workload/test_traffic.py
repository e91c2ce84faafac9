"""Messages of a plan by hand; what one GPU that shards nothing holds is the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from knee.engine.cost.compute_costs import shapes_of
from knee.engine.workload.parameters import parameter_count
from knee.engine.workload.traffic import Modes, Traffic, traffic_of
from knee.specs import Model
from knee.specs.load import load_model
from tables import EAGER, job, table


@pytest.mark.parametrize("name", ["llama2-7b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"])
@pytest.mark.parametrize("pp", [1, 2])
def test_elements_before_sharding_are_the_models_parameters(name: str, pp: int) -> None:
    """All of them on one stage; on the fuller of two stages half or more, and less than all."""
    model = load_model(name).spec
    plans = table(job(model=model, pp=pp, sharding="ddp", seq_len=1024, microbatches=4))
    modes = Modes.of(plans)
    traffic = traffic_of(model, plans, modes, fp8=shapes_of(model, plans, EAGER).fp8)
    whole = float(traffic.whole_elements(model, plans)[0])
    owned = float(traffic.owned_elements(model, plans, modes)[0])
    every = parameter_count(model)
    if pp == 1:
        assert whole == owned == pytest.approx(every, rel=1e-9)
    else:
        assert every / 2 <= whole == owned < 0.6 * every


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_shards_of_all_ranks_are_the_model(name: str, ep: int) -> None:
    """Experts are sharded over the ranks that hold the same ones, and other weights over all."""
    model = load_model(name).spec
    plans = table(job(model=model, dp_shard=8, ep=ep, sharding="fsdp", seq_len=1024))
    modes = Modes.of(plans)
    traffic = traffic_of(model, plans, modes, fp8=shapes_of(model, plans, EAGER).fp8)
    assert 8 * float(traffic.owned_elements(model, plans, modes)[0]) == pytest.approx(parameter_count(model), rel=1e-3)


H, V, KV = 4096, 128_256, 1024  # llama3-8b
LAYER = 2 * H * H + 2 * H * KV + 3 * H * 14336


def messages(model: Model, *, scatters_sends: bool = False, **plan: Any) -> Traffic:
    plans = table(job(model=model, seq_len=8192, microbatches=4, **plan))
    return traffic_of(model, plans, Modes.of(plans), scatters_sends=scatters_sends)


def test_messages_of_a_plan_by_hand() -> None:
    model, axes = load_model("llama3-8b").spec, {"tp": 4, "pp": 2, "cp": 2, "dp_shard": 2, "micro_batch": 3}
    found = messages(model, sharding="zero1", **axes)
    tokens = 3 * 8192 / 2
    assert found.tp_bytes == tokens * H * 2
    assert found.logits_bytes == tokens * V * 2
    assert found.cp_bytes == 3 * 8192 * 2 * (KV / 4) * 2  # an all-gather brings the keys and values of all ranks
    assert found.pp_bytes == tokens * H * 2 / 4
    assert found.routed_bytes == found.experts.moved == 0
    assert found.reduce_bytes == 4
    for part, elements in ((found.layer, LAYER / 4 + 2 * H), (found.embedding, V * H / 4), (found.head, V * H / 4 + H)):
        assert (part.elements, part.moved) == (elements, elements)
    assert found.layer_moved == found.layer.moved
    assert found.gather_bytes == 2 * found.layer.moved


def test_what_changes_a_message() -> None:
    model, axes = load_model("llama3-8b").spec, {"tp": 16, "pp": 2, "cp": 2, "sharding": "ddp"}
    tokens = 8192 / 2
    # a rank has one of 8 key-value heads, though 16 share them
    assert messages(model, **axes).cp_bytes == 2 * tokens * 2 * 128 * 2
    assert messages(model, cp_method="ring", **axes).cp_bytes == tokens * 2 * 128 * 2
    assert messages(model, sequence_parallel=False, **axes).pp_bytes == tokens * H * 2
    assert messages(model, sequence_parallel=False, scatters_sends=True, **axes).pp_bytes == tokens * H * 2 / 16
    assert messages(model, reduce_dtype="bf16", **axes).reduce_bytes == 2


@pytest.mark.parametrize(("pp", "copies"), [(1, 0), (2, 1)])
def test_the_last_of_several_stages_has_a_copy_of_tied_embeddings(pp: int, copies: int) -> None:
    model = replace(load_model("llama3-8b").spec, tied_embeddings=True)
    found = messages(model, tp=4, pp=pp, sharding="ddp")
    head = H + copies * V * H / 4
    assert (found.head.elements, found.head.moved) == (head, head)
    assert found.embedding.elements == V * H / 4


def test_the_head_merges_two_vectors_for_multi_token_prediction() -> None:
    model = load_model("deepseek-v3").spec
    none, two = (messages(replace(model, mtp_layers=n), tp=4, sharding="ddp").head for n in (0, 2))
    assert two.elements - none.elements == two.moved - none.moved == 2 * 2 * model.hidden**2


def test_experts_and_what_is_sent_to_them_by_hand() -> None:
    """8 experts of mixtral, two for each token, on 4 ranks that each split an expert in two."""
    model = load_model("mixtral-8x7b").spec
    found = messages(model, tp=2, ep=4, etp=2, dp_shard=8, sharding="zero1")
    assert found.experts.elements == found.experts.moved == 8 * 3 * H * 14336 / (4 * 2)
    assert found.layer.elements == (2 * H * H + 2 * H * KV) / 2 + 8 * H + 2 * H  # attention, router and norms
    assert found.routed_bytes == 8192 / 2 * 2 * H * 2
    assert found.expert_shards == 16 / 8
    assert found.layer_moved == found.layer.moved + found.experts.moved
    assert found.kinds is None
