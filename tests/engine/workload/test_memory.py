"""Bytes per GPU by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from knee.base.errors import SpecError
from knee.engine.cost.compute_costs import shapes_of
from knee.engine.workload.layers_per_stage import chunk_layers
from knee.engine.workload.memory import MemoryColumns, memory_of
from knee.engine.workload.traffic import Modes, traffic_of
from knee.specs import Job, Model
from knee.specs.load import load_cluster, load_model, load_profile
from tables import EAGER, LLAMA_7B, job, table

N = 6_738_415_616
LAYER = 202_383_360
ENDS = N - 32 * LAYER
TOKENS = 4096
SAVED = (2 * 8 * 4096 + 8 * 4096 + 8 * 11008) * TOKENS
"""Eager, per layer: two norms of 8 bytes, attention of 8, four MLP tensors of 2, over 4,096 tokens."""


def memory(j: Job) -> MemoryColumns:
    plans = table(j)
    modes = Modes.of(plans)
    return memory_of(j.model, j.profile, plans, shapes_of(j.model, plans), modes, traffic_of(j.model, plans, modes))


def check(m: MemoryColumns, **expected: float) -> None:
    for name, value in expected.items():
        assert getattr(m, f"{name}_bytes")[0] == pytest.approx(value, rel=1e-12), name


def test_ddp() -> None:
    """18 bytes a parameter: fp32 master, bf16 copy, fp32 gradient, two fp32 moments."""
    m = memory(job(sharding="ddp", dp_replicate=8))
    check(
        m,
        weights=6 * N,
        gradients=4 * N,
        optimizer=8 * N,
        activations=32 * SAVED,
        logits=10 * TOKENS * 32000,
        comm_buffers=0,
    )
    allocated = 18 * N + 32 * SAVED + 10 * TOKENS * 32000
    check(m, context=EAGER.context_bytes + EAGER.allocator_frac * allocated)
    check(m, total=allocated + EAGER.context_bytes + EAGER.allocator_frac * allocated)


@pytest.mark.parametrize("tp", [1, 2])
def test_selective_recomputation_keeps_every_second_product(tp: int) -> None:
    """The layer's input, the outputs of q, v, gate and down, and of attention; with TP also what was scattered, twice.
    The outputs of a rank's products are its part; of the down projection it is a sum over ranks."""
    h, f = 4096, 11008
    products = (2 * h + f) / tp + h
    kept = 2 * (h / tp * (1 if tp == 1 else 3) + products + h / tp) * TOKENS
    models = (LLAMA_7B, replace(LLAMA_7B, layers=16))
    whole, half = (memory(job(model=m, sharding="ddp", tp=tp, recompute="ops")).activations_bytes[0] for m in models)
    assert whole - half == pytest.approx(16 * kept, rel=1e-12)
    assert tp > 1 or whole == 31 * kept + SAVED  # the layer under way is there in full


def test_fsdp() -> None:
    """Everything over 64; three gathered layers, the ends, and a layer's gradient in two types. Gradients come as
    activations go, and are fewer."""
    m = memory(job(sharding="fsdp", dp_shard=64))
    check(
        m,
        weights=4 * N / 64,
        gradients=0,
        optimizer=8 * N / 64,
        activations=32 * SAVED,
        comm_buffers=2 * LAYER * 3 + 2 * ENDS + 6 * LAYER,
    )


def test_fsdp_without_resharding_keeps_the_weights() -> None:
    m = memory(job(sharding="fsdp_no_reshard", dp_shard=64))
    check(m, weights=4 * N / 64 + 2 * N, gradients=0, optimizer=8 * N / 64)


def test_gradients_beyond_the_activations_stand_at_the_end_of_backward() -> None:
    m = memory(job(sharding="ddp"))
    check(m, gradients=4 * N - 32 * SAVED - 10 * TOKENS * 32000)


def test_sixteen_bit_states_are_the_parameters() -> None:
    """8 bytes a parameter on one GPU: parameter, two moments, and the gradient at the end of backward."""
    m = memory(job(sharding="ddp", state_dtype="bf16", reduce_dtype="bf16"))
    check(m, weights=2 * N, optimizer=4 * N, gradients=max(2 * N - 32 * SAVED - 10 * TOKENS * 32000, 0))
    sharded = memory(job(sharding="fsdp", dp_shard=64, state_dtype="bf16"))
    check(sharded, weights=2 * N / 64, optimizer=4 * N / 64)


def test_accumulating_without_resharding_keeps_the_gradients() -> None:
    m = memory(job(sharding="fsdp_no_reshard", dp_shard=64, microbatches=4))
    check(m, gradients=4 * N + 4 * N / 64)


def test_zero_1_shards_master_and_moments_only() -> None:
    m = memory(job(sharding="zero1", dp_shard=64))
    check(m, weights=2 * N + 4 * N / 64, gradients=4 * N, optimizer=8 * N / 64, comm_buffers=0)


def test_shardings_in_order_of_what_they_shard() -> None:
    plans = [
        {"sharding": "ddp", "dp_replicate": 64},
        {"sharding": "zero1", "dp_shard": 64},
        {"sharding": "fsdp_no_reshard", "dp_shard": 64},
        {"sharding": "fsdp", "dp_shard": 64},
    ]
    totals = [float(memory(job(**plan)).total_bytes[0]) for plan in plans]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize("sharding", ["zero1", "fsdp", "fsdp_no_reshard"])
def test_more_shards_need_less(sharding: str) -> None:
    totals = [float(memory(job(sharding=sharding, dp_shard=n)).total_bytes[0]) for n in (2, 8, 64, 512)]
    assert totals == sorted(totals, reverse=True)


def test_recomputation_keeps_less() -> None:
    none, attention, full = (memory(job(dp_shard=8, recompute=how)) for how in ("none", "attention", "full"))
    assert full.activations_bytes[0] == pytest.approx(32 * 2 * 4096 * TOKENS + SAVED)  # inputs, and one layer at work
    assert attention.activations_bytes[0] == none.activations_bytes[0]  # flash attention keeps no scores


def test_recomputing_attention_drops_the_scores_of_unfused_attention() -> None:
    old = load_profile("megatron-2021").spec
    a100 = load_cluster("dgx-a100").spec
    none, attention = (memory(job(profile=old, cluster=a100, tp=8, recompute=how)) for how in ("none", "attention"))
    scores = 32 * 5 * (32 / 8) * TOKENS**2  # layers, bytes, heads of a rank, seq squared
    assert none.activations_bytes[0] - attention.activations_bytes[0] == pytest.approx(scores)


def test_tensor_parallelism_divides() -> None:
    again = replace(EAGER, keeps_gathered=False)
    one, eight = memory(job(profile=again)), memory(job(tp=8, profile=again))
    assert eight.activations_bytes[0] == pytest.approx(one.activations_bytes[0] / 8)
    assert eight.logits_bytes[0] == pytest.approx(one.logits_bytes[0] / 8)
    replicated = memory(job(tp=8, sequence_parallel=False, profile=again))
    norms = 32 * 2 * 8 * 4096 * TOKENS
    assert replicated.activations_bytes[0] - eight.activations_bytes[0] == pytest.approx(norms * 7 / 8)


def test_gathered_inputs_that_are_kept_are_whole_on_every_rank() -> None:
    """Two inputs of products a layer, of which a rank has an eighth anyway."""
    again, kept = (memory(job(tp=8, profile=replace(EAGER, keeps_gathered=keeps))) for keeps in (False, True))
    assert kept.activations_bytes[0] - again.activations_bytes[0] == pytest.approx(32 * 2 * 2 * 4096 * TOKENS * 7 / 8)
    alone = memory(job(profile=replace(EAGER, keeps_gathered=True)))
    assert alone.activations_bytes[0] == pytest.approx(32 * SAVED)  # nothing is gathered


def test_nanotrons_layer_and_loss() -> None:
    """Fused norms of 4 bytes, attention of 8 and the packed queries and keys of 4, four MLP tensors of 2."""
    m = memory(job(profile=load_profile("nanotron").spec))
    check(m, activations=32 * (2 * 4 * 4096 + 12 * 4096 + 8 * 11008) * TOKENS, logits=12 * TOKENS * 32000)


def test_stages_by_cost_leave_fewer_layers_to_the_last() -> None:
    """131,072 words cost 4 of 16 layers: the first of two stages has 11 of them, and two microbatches in flight."""
    model = replace(LLAMA_7B, layers=16, hidden=2048, ffn=8192, vocab=131_072)
    lean = replace(EAGER, logit_bytes=2.0)  # the first stage is the fullest
    by_cost = replace(lean, deals_by_cost=True)
    one, other = (memory(job(model=model, pp=2, microbatches=8, recompute="full", profile=p)) for p in (lean, by_cost))
    held = 2 * chunk_layers(16, 2, 4.0)[0] * 2 * 2048 * TOKENS
    work = layer_of(model)
    assert other.activations_bytes[0] == pytest.approx(held + work)
    assert one.activations_bytes[0] < other.activations_bytes[0]


def layer_of(model: Model) -> float:
    """What a layer keeps in eager without recomputation."""
    return (2 * 8 * model.hidden + 8 * model.hidden + 8 * model.ffn) * TOKENS


def test_a_share_of_full_recomputation_keeps_the_other_layers_whole() -> None:
    none, half, full = (
        float(memory(job(dp_shard=8, **how)).activations_bytes[0])
        for how in ({"recompute": "none"}, {"recompute": "blocks", "recompute_frac": 0.5}, {"recompute": "full"})
    )
    assert half == pytest.approx((none + full + SAVED) / 2)  # of the layer at work there is one in both


@pytest.mark.parametrize("sharding", ["ddp", "zero1"])
def test_fp16_gradients_stay_fp16_until_the_optimizer(sharding: str) -> None:
    """Scaled gradients: 2 bytes whole, and 4 of the part that the optimizer works on."""
    shards = {"dp_shard": 64} if sharding == "zero1" else {"dp_replicate": 64}
    part = N / 64 if sharding == "zero1" else N
    check(memory(job(sharding=sharding, precision="fp16", **shards)), gradients=2 * N, optimizer=(8 + 4) * part)


def test_deepspeed_keeps_bf16_gradients_beside_their_fp32_sum() -> None:
    deepspeed = replace(EAGER, keeps_half_gradients=True)
    check(memory(job(profile=deepspeed, sharding="zero1", dp_shard=64)), gradients=6 * N)
    check(memory(job(profile=deepspeed, sharding="zero1", dp_shard=64, precision="fp16")), gradients=2 * N)
    check(memory(job(profile=deepspeed, sharding="zero1", dp_shard=64, reduce_dtype="bf16")), gradients=2 * N)
    plain, sharded = (memory(job(profile=p, sharding="fsdp", dp_shard=64)) for p in (EAGER, deepspeed))
    assert sharded.total_bytes[0] == plain.total_bytes[0]


@pytest.mark.parametrize("field", ["logit_bytes", "rmsnorm_bytes"])
@pytest.mark.parametrize("value", [0.0, 1.9, 21.0, -4.0])
def test_kept_bytes_are_those_of_some_tensors(field: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"profile.{field} is {value}"):
        replace(EAGER, **{field: value})


def test_a_pipeline_holds_what_is_in_flight() -> None:
    """1F1B: the first of four stages holds four microbatches of eight layers, as GPipe holds all sixteen."""
    first = memory(job(pp=4, microbatches=16))
    all_of_them = memory(job(pp=4, microbatches=16, schedule="gpipe"))
    assert first.activations_bytes[0] == pytest.approx(4 * 8 * SAVED)
    assert all_of_them.activations_bytes[0] == pytest.approx(16 * 8 * SAVED)


def test_llama_3_405b_is_dealt_as_meta_dealt_it() -> None:
    assert chunk_layers(126, 16) == (7, *[8] * 14, 7)


def test_llama_3_405b_on_16_stages_holds_8_layers_where_it_is_fullest() -> None:
    big = load_model("llama3-405b").spec
    m = memory(job(model=big, tp=8, pp=16, dp_shard=128, sharding="zero1", microbatches=16, seq_len=8192))
    h, f, tp = 16384, 53248, 8
    layer = (h * h + 2 * h * 1024 + h * h + 3 * h * f) / tp + 2 * h
    embedding = 128256 * h / tp
    stages = [7 * layer + embedding, 8 * layer]  # the first, and the second where no layer is missing
    assert min(abs(float(m.gradients_bytes[0]) / (4 * own) - 1) for own in stages) < 1e-9


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_no_stage_needs_more_than_what_is_reported(schedule: str) -> None:
    """The ranks that are looked at cover the fullest one, also where the first ranks have no experts."""
    models = ("llama2-7b", "llama3-405b", "deepseek-v3", "llama4-maverick")
    for layers_of, profile in product(models, (EAGER, replace(EAGER, deals_by_cost=True))):
        for pp in (3, 4, 16):
            virtual = 2 if schedule == "interleaved" else 1
            j = job(
                model=load_model(layers_of).spec,
                profile=profile,
                pp=pp,
                tp=8,
                dp_shard=2,
                sharding="zero1",
                schedule=schedule,
                virtual_stages=virtual,
                microbatches=2 * pp,
            )
            plans = table(j)
            modes, shapes = Modes.of(plans), shapes_of(j.model, plans)
            traffic = traffic_of(j.model, plans, modes)
            every = [np.array([rank]) for rank in range(pp)]
            most = float(memory_of(j.model, j.profile, plans, shapes, modes, traffic, ranks=every).total_bytes[0])
            assert float(memory(j).total_bytes[0]) == pytest.approx(most, rel=1e-12), (layers_of, pp)


def test_the_models_shape_is_what_the_hand_counts_assume() -> None:
    assert (LLAMA_7B.hidden, LLAMA_7B.ffn, LLAMA_7B.layers, LLAMA_7B.vocab) == (4096, 11008, 32, 32000)


def test_one_gpu_sums_gradients_in_the_type_of_its_states() -> None:
    """A GPU alone has nobody to reduce with: 2 bytes a parameter with 16-bit states, whatever would be reduced."""
    for sharding in ("fsdp", "fsdp_no_reshard"):
        m = memory(job(sharding=sharding, state_dtype="bf16", microbatches=2))
        check(m, weights=2 * N, gradients=2 * N, optimizer=4 * N)


def test_casts_of_recomputed_layers_are_not_kept() -> None:
    kept, again = (memory(job(recompute=r)) for r in ("none", "full"))
    check(kept, weights=6 * N)
    check(again, weights=4 * N + 2 * ENDS)


def test_without_loss_parallelism_every_rank_holds_all_logits() -> None:
    whole, cut = (memory(job(tp=4, profile=replace(EAGER, loss_parallel=p))) for p in (False, True))
    assert whole.logits_bytes[0] == pytest.approx(4 * cut.logits_bytes[0])


def test_zero2_keeps_a_part_of_the_gradients() -> None:
    one, two = (memory(job(sharding=s, dp_shard=8, microbatches=4)) for s in ("zero1", "zero2"))
    check(one, gradients=4 * N)
    check(two, gradients=4 * N / 8, weights=float(one.weights_bytes[0]), optimizer=float(one.optimizer_bytes[0]))


def test_megatron_keeps_no_outputs_of_experts() -> None:
    """It weights the activation before the second product; others weight the outputs, and keep them for that."""
    model, fused = load_model("qwen3-30b-a3b").spec, load_profile("fused").spec
    kept, native = (
        memory(job(model=model, profile=replace(fused, saves=saves), dp_shard=8, ep=8, sharding="zero1"))
        for saves in ("fused", "native_compiled")
    )
    assert model.experts is not None
    outputs = model.layers * 2 * TOKENS * model.experts.top_k * model.hidden
    assert native.activations_bytes[0] - kept.activations_bytes[0] >= 0.99 * outputs


def test_deepseek_v3_needs_what_megatrons_authors_state() -> None:
    """arXiv 2603.07685 states 199.5 GB per GPU in bf16 without recomputation, on 256 GPUs: too much for any of them."""
    plan = {"pp": 4, "schedule": "interleaved", "virtual_stages": 4, "dp_shard": 64, "ep": 64, "sharding": "zero1"}
    m = memory(job(model=load_model("deepseek-v3").spec, profile=load_profile("fused").spec, microbatches=32, **plan))
    without_context = float(m.total_bytes[0] - m.context_bytes[0])
    assert without_context == pytest.approx(199.5e9, rel=0.1)


def saved_per_token(model: Model, stack: str = "eager", **plan: object) -> float:
    """Bytes that a layer keeps of a token: of 16 layers, less those of 15."""
    jobs = (job(model=replace(model, layers=n), profile=load_profile(stack).spec, **plan) for n in (15, 16))  # type: ignore[arg-type]
    few, many = (float(memory(j).activations_bytes[0]) for j in jobs)
    return (many - few) / TOKENS


def test_a_layer_of_gpt_keeps_what_korthikanti_counts() -> None:
    """arXiv 2205.05198, table 1: 34 h, of which 2 h are masks of a dropout that knee has not, and 5 a s of scores."""
    gpt = replace(load_model("gpt3-175b").spec, max_seq_len=TOKENS)
    assert saved_per_token(gpt) == 32 * gpt.hidden
    old, a100 = load_profile("megatron-2021").spec, load_cluster("dgx-a100").spec
    jobs = (job(model=replace(gpt, layers=n), profile=old, cluster=a100) for n in (15, 16))
    few, many = (float(memory(j).activations_bytes[0]) for j in jobs)
    assert (many - few) / TOKENS == 32 * gpt.hidden + 5 * gpt.heads * TOKENS


@pytest.mark.parametrize(
    ("mlp", "eager", "fused"),
    [("swiglu", 4, 3), ("geglu", 4, 3), ("gelu", 2, 2), ("relu2", 3, 2)],
)
def test_tensors_that_an_mlp_keeps(mlp: str, eager: int, fused: int) -> None:
    """Written out: what each product puts out, the activation, and gate times up. Fused: the activation is made again,
    but not that of GELU."""
    model = replace(LLAMA_7B, mlp=mlp)  # type: ignore[arg-type]
    assert saved_per_token(model) == (2 * 8 + 8) * 4096 + 2 * eager * 11008
    assert saved_per_token(model, "fused") == (2 * 4 + 8) * 4096 + 2 * fused * 11008


def test_norms_of_queries_and_keys_and_behind_the_parts_of_a_layer() -> None:
    """A norm that is written out keeps 6 bytes of its input, and its output where a product reads it."""
    plain = saved_per_token(LLAMA_7B)
    assert saved_per_token(replace(LLAMA_7B, qk_norm="head")) - plain == 6 * 2 * 4096
    assert saved_per_token(replace(LLAMA_7B, layer_norms=4)) - plain == 2 * 6 * 4096
    assert plain - saved_per_token(replace(LLAMA_7B, layer_norms=1, parallel_residual=True)) == 8 * 4096


def test_latent_attention_keeps_narrow_vectors_and_the_heads() -> None:
    """DeepSeek-V2: 128 heads of 192 for queries and keys, and of 128 for values and the output; vectors of 512 and
    1,536, in 8 bytes each, and a shared key of 64."""
    model = replace(load_model("deepseek-v2").spec, experts=None)
    heads = 2 * 128 * (192 + 192 + 128) + 2 * 128 * 128
    narrow = 8 * (512 + 1536) + 2 * 64
    assert saved_per_token(model) == 2 * 8 * model.hidden + heads + narrow + 2 * 4 * model.ffn


def test_gathered_keys_and_values_are_kept_whole() -> None:
    """An all-gather over 4 ranks leaves each with the keys and values of the other three; a ring leaves none."""
    gathered, ring = (saved_per_token(LLAMA_7B, cp=4, cp_method=how) for how in ("allgather", "ring"))
    assert gathered - ring == 3 * 2 * 2 * 4096 / 4
