"""Products in fp8: how far they are from exact ones, and which weights have them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from knee.base.errors import SpecError
from knee.specs.model import Experts, Model
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import TrainJob

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

MODEL = Model(name="tiny", layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, vocab=512)
ROUNDING = {"tensorwise": 0.08, "rowwise": 0.05}
"""Of gradients in e5m2 (2 bits of fraction) and in e4m3 (3 bits), over normal numbers."""


def _apart(a: Any, b: Any) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_products_and_gradients_are_those_of_fp32_but_for_rounding(recipe: str) -> None:
    import torch

    from knee.training.parallelism.fp8.linear import fp8_products, quantize

    torch.manual_seed(0)
    x = torch.randn(2, 32, 64, requires_grad=True)
    weights = [(0.02 * torch.randn(48, 64)).requires_grad_() for _ in range(2)]
    out = fp8_products(x, weights, [quantize(w.detach(), recipe) for w in weights], recipe)
    exact = [x @ w.t() for w in weights]
    grads = [torch.randn_like(y) for y in out]
    found = (*out, *torch.autograd.grad(out, [x, *weights], grads))
    expected = (*exact, *torch.autograd.grad(exact, [x, *weights], grads))
    assert all(0 < _apart(a, b) < ROUNDING[recipe] for a, b in zip(found, expected, strict=True))


def test_rowwise_scales_keep_rows_of_very_different_size_apart() -> None:
    import torch

    from knee.training.parallelism.fp8.linear import quantize

    x = torch.randn(8, 64) * torch.logspace(-6, 6, 8).unsqueeze(1)
    lost = {recipe: quantize(x, recipe) for recipe in ("tensorwise", "rowwise")}
    back = {recipe: e.rows.float() * e.rows_scale for recipe, e in lost.items()}
    assert _apart(back["rowwise"][0], x[0]) < 0.05
    assert back["tensorwise"][0].abs().max() == 0  # too small for the one scale


@pytest.mark.parametrize("name", ["E4M3", "E5M2"])
def test_the_largest_element_is_the_largest_number_and_zeros_stay_zeros(name: str) -> None:
    import torch

    from knee.training.parallelism.fp8 import casts
    from knee.training.parallelism.fp8.linear import quantize

    dtype = getattr(casts, name)
    x = torch.randn(16, 32)
    assert quantize(x, "tensorwise", dtype).rows.float().abs().max() == casts.LARGEST[dtype]
    assert quantize(torch.zeros(16, 32), "rowwise", dtype).columns.float().abs().max() == 0


def test_columns_are_the_transpose_of_rows() -> None:
    import torch

    from knee.training.parallelism.fp8.casts import transposed
    from knee.training.parallelism.fp8.linear import quantize

    e = quantize(torch.randn(16, 32), "tensorwise")
    assert torch.equal(transposed(e.rows).float(), e.columns.float())


def test_narrow_weights_and_odd_widths_stay_in_16_bit() -> None:
    import torch

    from knee.training.parallelism.fp8.linear import Fp8Rules

    rules = Fp8Rules(smallest=1024)
    taken = {
        shape: rules.takes(torch.empty(shape, device="meta")) for shape in ((4096, 1024), (4096, 512), (4096, 1032))
    }
    assert taken == {(4096, 1024): True, (4096, 512): False, (4096, 1032): False}


def test_a_run_in_fp8_learns_as_one_in_fp32_does() -> None:
    import torch

    from knee.training.parallelism.mesh import local_device, make_mesh
    from knee.training.parallelism.trainer import Trainer

    tokens = torch.randint(512, (4, 65), generator=torch.Generator().manual_seed(0))
    last = {}
    for precision in ("bf16", "fp8"):
        plan = Plan(micro_batch=2, precision=precision)
        job = TrainJob(model=MODEL, plan=plan, gpus=1, global_batch=4, seq_len=64, fp8_smallest=16, lr=3e-3)
        trainer = Trainer(job, make_mesh(plan, local_device("cpu")))
        last[precision] = [float(trainer.step(tokens).loss_tensor) for _ in range(8)]
    assert last["fp8"][-1] < last["fp8"][0] - 1
    assert last["fp8"] == pytest.approx(last["bf16"], rel=2e-3)
    assert last["fp8"] != last["bf16"]


@pytest.mark.parametrize(
    ("precision", "model", "dtype", "field"),
    [
        ("fp4", MODEL, "bf16", "plan.precision"),
        ("fp8", MODEL, "fp16", "dtype"),
        (
            "fp8",
            Model(
                name="moe",
                layers=2,
                hidden=64,
                ffn=64,
                heads=4,
                kv_heads=4,
                vocab=64,
                experts=Experts(count=4, top_k=2, ffn=64),
            ),
            "bf16",
            "plan.precision",
        ),
    ],
)
def test_what_is_not_trained_in_8_bit_is_refused(precision: str, model: Model, dtype: str, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        TrainJob(model=model, plan=Plan(precision=precision), gpus=1, global_batch=1, seq_len=64, dtype=dtype)
    assert (refused.value.code, refused.value.field) == ("not-trained", field)
