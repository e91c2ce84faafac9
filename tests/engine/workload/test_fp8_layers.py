"""fp8 layers of stacks with shared casts: which weights have them, what casts, gathers and memory are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from knee.base.errors import SpecError
from knee.engine.cost.compute_costs import product_column, shapes_of
from knee.engine.cost.kernel_cost import operation_s
from knee.engine.simulator import EvaluatedStep, evaluate
from knee.engine.workload import operations as op
from knee.specs.constants import passes_of
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan import Plan
from knee.specs.plan_table import table_of

KERNELS = "native_compiled"
TOKENS, HIDDEN, KV, FFN = 4096, 4096, 1024, 14336
WEIGHTS = HIDDEN * (2 * HIDDEN + 2 * KV + 3 * FFN)
INPUTS = TOKENS * (3 * HIDDEN + FFN)
GRADIENTS = TOKENS * (3 * HIDDEN + 2 * KV + 2 * FFN)
CAST = passes_of(KERNELS, "fp8_cast").forward


def made(gpus: int = 1, profile: str = "knee-compiled", **plan: Any) -> Job:
    parts = load_model("llama3-8b").spec, load_cluster("dgx-h200").spec, load_profile(profile).spec
    options = {"precision": "fp8", "micro_batch": 1, "state_dtype": "bf16", **plan}
    return make_job(*parts, gpus=gpus, global_batch=gpus, seq_len=TOKENS, plan_options=options)[0]


def step(**plan: Any) -> EvaluatedStep:
    job = made(**plan)
    return evaluate(job.model, job.cluster, job.profile, table_of([job]))


def moved(name: str, layer: Any, **plan: Any) -> float:
    """Bytes of the casts in one pass of a layer."""
    job = made(**plan)
    shapes = shapes_of(job.model, table_of([job]), job.profile)
    (found,) = (o for o in layer(job.model, shapes, job.profile.kernels) if o.name == name)
    return float(found.moved_bytes[0])


def test_an_input_is_cast_once_for_all_products_and_each_gradient_once() -> None:
    assert moved("fp8_cast", op.layer_forward) == pytest.approx(2 * CAST * INPUTS)
    assert moved("fp8_cast", op.layer_backward_input) == pytest.approx(2 * CAST * GRADIENTS)


def test_rowwise_scales_read_every_tensor_once_more() -> None:
    more = passes_of(KERNELS, "fp8_largest_columns").forward
    one, rows = (moved("fp8_largest", op.layer_forward, fp8_recipe=r) for r in ("tensorwise", "rowwise"))
    assert rows - one == pytest.approx(2 * more * INPUTS)
    assert step(fp8_recipe="rowwise").results.step_s[0] > step().results.step_s[0]


def test_weights_that_stay_whole_are_cast_once_a_step_and_kept_twice() -> None:
    one, bf16 = step(), step(precision="bf16")
    largest = passes_of(KERNELS, "fp8_weights").forward
    more = one.optimizer.moved_bytes[0] - bf16.optimizer.moved_bytes[0]
    assert more == pytest.approx(32 * WEIGHTS * (2 * largest + 2 * CAST))
    assert one.memory.weights_bytes[0] - bf16.memory.weights_bytes[0] == 2 * 32 * WEIGHTS
    # fp8 copies take the place of 16-bit ones where the states are fp32
    both = [step(precision=p, state_dtype="fp32").memory.weights_bytes[0] for p in ("fp8", "bf16")]
    assert both[0] == both[1]


def test_only_the_columns_of_inputs_are_kept_for_backward() -> None:
    fp8, bf16 = (step(precision=p).memory.activations_bytes[0] for p in ("fp8", "bf16"))
    # attention keeps its 16-bit output beside the fp8 input of the output projection
    assert bf16 - fp8 == 32 * TOKENS * (2 * HIDDEN + FFN - HIDDEN)


def test_fsdp_gathers_one_byte_and_transposes_in_backward() -> None:
    fp8, bf16 = (step(gpus=8, precision=p, sharding="fsdp") for p in ("fp8", "bf16"))
    assert bf16.traffic.gather_bytes[0] - fp8.traffic.gather_bytes[0] == WEIGHTS
    assert fp8.comm.gather_layer[0] < bf16.comm.gather_layer[0]
    assert fp8.comm.reduce_layer[0] == bf16.comm.reduce_layer[0]
    # the fp8 copy of a shard stays beside it
    assert fp8.memory.weights_bytes[0] - bf16.memory.weights_bytes[0] == 32 * WEIGHTS / 8
    whole, shards = (moved("fp8_cast", op.layer_backward_input, gpus=8, sharding=s) for s in ("zero1", "fsdp"))
    assert shards - whole == pytest.approx(WEIGHTS * CAST)
    # rows of different scales cannot be cast apart: 16 bit are gathered, and cast in every forward
    rowwise = step(gpus=8, sharding="fsdp", fp8_recipe="rowwise")
    assert rowwise.traffic.gather_bytes[0] == bf16.traffic.gather_bytes[0]
    assert rowwise.memory.weights_bytes[0] - bf16.memory.weights_bytes[0] == 32 * WEIGHTS


def test_sequence_parallelism_gathers_half_of_the_bytes() -> None:
    # keys and values of 512 columns: the three products of one input stay in 16 bit, and so does its gather
    fp8, bf16 = (step(gpus=2, tp=2, precision=p) for p in ("fp8", "bf16"))
    assert [t[0] for t in (fp8.traffic.fp8.tp_forward, fp8.traffic.fp8.tp_backward)] == [1, 2]
    # less the reduction of the largest element before it
    assert fp8.comm.tp_forward_saved[0] + fp8.comm.tp_scale[0] > 0
    assert bf16.comm.tp_forward_saved[0] == 0
    rowwise = step(gpus=2, tp=2, fp8_recipe="rowwise")
    assert rowwise.traffic.fp8.tp_forward[0] == 0


def test_products_of_narrow_weights_stay_in_16_bit_and_forward_ones_are_faster() -> None:
    job = made(gpus=2, tp=2)
    table = table_of([job])
    types, s = product_column(table), shapes_of(job.model, table, job.profile)
    forward = {o.name: o for o in op.layer_forward(job.model, s, KERNELS) if isinstance(o, op.Gemm)}
    assert {name for name, o in forward.items() if o.wide is not None and o.wide[0]} == {"q", "k", "v"}
    times = operation_s(job.cluster.gpu, job.profile, types, forward["q"])
    assert times == operation_s(job.cluster.gpu, job.profile, 0 * types, replace(forward["q"], wide=None, scale=1.0))
    back = {o.name: o for o in op.layer_backward_input(job.model, s, KERNELS) if isinstance(o, op.Gemm)}
    rate = [operation_s(job.cluster.gpu, job.profile, types, o)[0] for o in (forward["gate"], back["down_dgrad"])]
    assert rate[0] < 0.9 * rate[1]  # the same sizes


def test_other_stacks_cast_each_operand_and_keep_16_bit() -> None:
    products = TOKENS * (5 * HIDDEN + HIDDEN + FFN)  # q, k, v, gate, up, the output projection and down
    for layer in (op.layer_forward, op.layer_backward_input):
        assert moved("fp8_cast", layer, profile="compiled") == pytest.approx(3 * products)
    fp8, bf16 = (step(profile="compiled", gpus=8, sharding="fsdp", precision=p) for p in ("fp8", "bf16"))
    assert fp8.memory.total_bytes[0] == bf16.memory.total_bytes[0]
    assert fp8.traffic.gather_bytes[0] == bf16.traffic.gather_bytes[0]


def test_a_table_of_both_recipes_and_bf16_is_that_of_each() -> None:
    plans = [{}, {"fp8_recipe": "rowwise"}, {"precision": "bf16"}, {"state_dtype": "fp32"}, {"sharding": "fsdp"}]
    jobs = [made(gpus=8, tp=2, **{"sharding": "fsdp_no_reshard", **plan}) for plan in plans]
    together = evaluate(jobs[0].model, jobs[0].cluster, jobs[0].profile, table_of(jobs)).results
    for i, job in enumerate(jobs):
        alone = evaluate(job.model, job.cluster, job.profile, table_of([job])).results
        assert together.step_s[i] == pytest.approx(alone.step_s[0], rel=1e-12)
        assert together.memory_bytes[i] == pytest.approx(alone.memory_bytes[0], rel=1e-12)


def test_a_recipe_without_fp8_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        Plan(fp8_recipe="rowwise")
    assert (caught.value.code, caught.value.field) == ("contradiction", "plan.fp8_recipe")
