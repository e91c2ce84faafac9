"""Plans in fp4: NVFP4 products, what casting costs, layers that stay in bf16, memory, and who refuses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.base.errors import SpecError
from knee.engine.cost.compute_costs import half_column, product_column, shapes_of
from knee.engine.cost.kernel_cost import cost_of
from knee.engine.simulator import EvaluatedStep, evaluate
from knee.engine.workload import operations as op
from knee.specs import Job
from knee.specs.constants import constant
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan_table import table_of
from knee.training.parallelism.trainer_job import TrainJob

TOKENS, HIDDEN, FFN, KV = 8192, 4096, 14336, 1024
WEIGHTS = HIDDEN * (2 * HIDDEN + 2 * KV + 3 * FFN)


def made(cluster: str = "dgx-b200", *, kept: float = 0.0, gpus: int = 8, profile: str = "fused", **plan: object) -> Job:
    stack = replace(load_profile(profile).spec, bf16_layers_frac=kept)
    parts = load_model("llama3-8b").spec, load_cluster(cluster).spec, stack
    options = {"sharding": "zero1", "precision": "fp4", **plan}
    return make_job(*parts, gpus=gpus, global_batch=gpus, seq_len=TOKENS, plan_options=options)[0]


def step(job: Job) -> EvaluatedStep:
    return evaluate(job.model, job.cluster, job.profile, table_of([job]))


def casts(job: Job, *, backward: bool) -> op.MemoryBound:
    shapes = shapes_of(job.model, table_of([job]))
    layer = op.layer_backward_input if backward else op.layer_forward
    found = [o for o in layer(job.model, shapes, job.profile.kernels) if o.name == "nvfp4_cast"]
    assert len(found) == 1
    assert isinstance(found[0], op.MemoryBound)
    return found[0]


def test_inputs_are_read_three_times_and_written_twice() -> None:
    # qkv, the output projection, gate and up together, down
    forward = casts(made(), backward=False)
    assert forward.moved_bytes[0] == pytest.approx(7.125 * TOKENS * (3 * HIDDEN + FFN))
    assert np.ravel(forward.kernels)[0] == 3 * 4
    # gradients of what these put out, of gate and up each
    backward = casts(made(), backward=True)
    assert backward.moved_bytes[0] == pytest.approx(7.125 * TOKENS * (HIDDEN + 2 * KV + 2 * HIDDEN + 2 * FFN))
    assert np.ravel(backward.kernels)[0] == 3 * 5


def test_weights_are_cast_once_a_step_or_in_every_pass() -> None:
    gathered = casts(made(sharding="fsdp"), backward=False).moved_bytes[0]
    assert gathered - casts(made(), backward=False).moved_bytes[0] == pytest.approx(4.5625 * WEIGHTS)
    # two kernels for each of five weights: the largest element, and the cast
    for backward, inputs in ((False, 4), (True, 5)):
        assert np.ravel(casts(made(sharding="fsdp"), backward=backward).kernels)[0] == 3 * inputs + 2 * 5
    # once: by the optimizer, 5.125 bytes for each weight of the layers, whole on each GPU
    more = step(made()).optimizer.moved_bytes[0] - step(made(precision="bf16")).optimizer.moved_bytes[0]
    layer = WEIGHTS + 2 * HIDDEN
    assert more == pytest.approx(5.125 * 32 * layer)
    assert step(made(sharding="fsdp")).optimizer.moved_bytes[0] == pytest.approx(
        step(made(sharding="fsdp", precision="bf16")).optimizer.moved_bytes[0]
    )


def test_only_the_products_of_layers_are_narrow() -> None:
    fp4, bf16 = step(made()).compute, step(made(precision="bf16")).compute
    assert fp4.layer_forward.time_s[0] < bf16.layer_forward.time_s[0]
    assert fp4.head_forward.time_s[0] == bf16.head_forward.time_s[0]
    assert fp4.attention_forward_s[0] == bf16.attention_forward_s[0]


@pytest.mark.parametrize("kept", [0.16, 0.5, 1.0])
def test_layers_that_stay_in_bf16_count_towards_the_mean(kept: float) -> None:
    none, some, bf16 = (step(j).compute for j in (made(), made(kept=kept), made(precision="bf16")))
    for name in ("layer_forward", "layer_backward_input", "layer_backward_weight"):
        for field in ("time_s", "flop", "moved_bytes", "kernels"):
            low, mean, high = (getattr(getattr(c, name), field)[0] for c in (none, some, bf16))
            assert mean == pytest.approx((1 - kept) * low + kept * high), (name, field)


def test_other_precisions_do_not_see_what_fp4_keeps() -> None:
    for precision in ("bf16", "fp8"):
        a, b = (step(made(kept=kept, precision=precision)).results for kept in (0.0, 0.5))
        assert a == b


def test_a_table_of_several_precisions_is_that_of_each() -> None:
    jobs = [made(kept=0.16, precision=p) for p in ("bf16", "fp4", "fp8", "fp4")]
    together = evaluate(jobs[0].model, jobs[0].cluster, jobs[0].profile, table_of(jobs)).results
    for i, job in enumerate(jobs):
        assert together.step_s[i] == step(job).results.step_s[0]
        assert together.memory_bytes[i] == step(job).results.memory_bytes[0]


def test_products_have_the_fitted_rate_of_nvfp4() -> None:
    job = made()
    plans = table_of([job])
    products = [o for o in op.layer_forward(job.model, shapes_of(job.model, plans), "fused") if isinstance(o, op.Gemm)]
    narrow, wide = (
        cost_of(job.cluster.gpu, job.profile, types, products).time_s[0]
        for types in (product_column(plans), half_column(plans))
    )
    assert 2.0 < wide / narrow < 4.0


def test_memory_has_copies_of_weights_and_narrow_inputs() -> None:
    fp4, bf16 = step(made()).memory, step(made(precision="bf16")).memory
    layer = WEIGHTS + 2 * HIDDEN
    assert fp4.weights_bytes[0] - bf16.weights_bytes[0] == pytest.approx(2 * 0.5625 * 32 * layer)
    saved = (2 - 0.5625) * (2 * HIDDEN + FFN) - 0.5625 * HIDDEN
    assert bf16.activations_bytes[0] - fp4.activations_bytes[0] == pytest.approx(32 * TOKENS * saved)
    # gathered for each pass, they are cast for each pass
    assert (
        step(made(sharding="fsdp")).memory.weights_bytes[0]
        == step(made(sharding="fsdp", precision="bf16")).memory.weights_bytes[0]
    )


def test_energy_goes_with_the_bits() -> None:
    flop = {p: step(made(precision=p)).flop[0] for p in ("bf16", "fp8", "fp4")}
    products = (flop["bf16"] - flop["fp4"]) / 0.75
    assert flop["bf16"] - flop["fp8"] == pytest.approx(constant("fp8", "energy_saved_frac") * products)


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "h20-8", "mi325x-8", "l40s-8"])
def test_gpus_without_it_refuse(cluster: str) -> None:
    with pytest.raises(SpecError) as caught:
        made(cluster, profile="eager")
    assert (caught.value.code, caught.value.field) == ("no-rate", "plan.precision")


def test_the_trainer_refuses_it() -> None:
    job = made(sharding="fsdp")
    with pytest.raises(SpecError) as caught:
        TrainJob(model=job.model, plan=job.plan, gpus=8, global_batch=8, seq_len=TOKENS)
    assert (caught.value.code, caught.value.field) == ("not-trained", "plan.precision")
