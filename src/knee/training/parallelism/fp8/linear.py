"""Linear layers in fp8: what is cast by which scale, and the three products of a layer.

Scales follow from the largest element of the very tensor that is cast (dynamic scaling), so that nothing is remembered
between steps. ``tensorwise`` has one scale for a tensor, ``rowwise`` one for every row that a product sums over.
Source: Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433); recipes as torchao 0.18 has them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from knee.specs.defaults import FP8_SMALLEST
from knee.specs.plan import Fp8Recipe
from knee.training.parallelism.fp8.casts import E4M3, E5M2, cast_to_fp8, copies, largest_elements, scale_of, transposed
from knee.training.parallelism.fp8.shards import GatheredWeight
from knee.training.parallelism.tensor_parallel import gather_sequence, scatter_sequence
from knee.training.parallelism.torch_internals import NamedGroup, all_reduce

SHARED_INPUT = (("wq", "wk", "wv"), ("w1", "w3"))
"""Weights whose products read the same input."""
MULTIPLE = 16
"""What widths of fp8 products are multiples of."""


class Quantized(NamedTuple):
    """A matrix (m, k) in fp8 and its transpose (k, m), each with the numbers that its rows are multiplied by."""

    rows: Any
    rows_scale: Any
    columns: Any
    """None: made of the rows when it is needed, which one scale for all allows."""
    columns_scale: Any

    def transposed(self) -> tuple[Any, Any]:
        """The transpose with its scale."""
        return transposed(self.rows) if self.columns is None else self.columns, self.columns_scale


def quantize(x: Any, recipe: Fp8Recipe, dtype: Any = E4M3, largest: Any = None) -> Quantized:
    """``x`` (m, k) in fp8. ``largest`` is its largest element, where that is known."""
    if recipe == "rowwise":
        by_rows, by_columns = (scale_of(x.abs().amax(dim), dtype).unsqueeze(1) for dim in (1, 0))
    else:
        # by rows first: compiled code finds the rows' largest elements in the kernel that makes x
        by_rows = by_columns = scale_of(x.abs().amax(1).amax() if largest is None else largest, dtype)
    rows, columns = copies(x, by_rows, by_columns, dtype)
    return Quantized(rows, 1 / by_rows, columns, 1 / by_columns)


def quantize_and_gather(x: Any, group: NamedGroup, dtype: Any = E4M3) -> Quantized:
    """Parts (batch, sequence, k) of all ranks as one matrix in fp8: half of the bytes cross the network."""
    scale = scale_of(all_reduce(x.abs().amax(-1).amax().float(), group, "max"), dtype)
    # collectives know no fp8, and to gather is to copy
    rows = gather_sequence(cast_to_fp8(x, scale, dtype).view(torch.uint8), group).view(dtype).flatten(0, -2)
    return Quantized(rows, 1 / scale, None, 1 / scale)


def product(a: Any, a_scale: Any, b: Any, b_scale: Any, out_dtype: Any, *, fast: bool) -> Any:
    """(m, k) times the transpose of (n, k), both in fp8. ``fast`` sums in fewer bits, as is usual in forward."""
    if a.device.type != "cuda":
        return ((a.float() @ b.float().t()) * (a_scale * b_scale.t())).to(out_dtype)
    return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale.t(), out_dtype=out_dtype, use_fast_accum=fast)


def fp8_products(
    x: Any,
    weights: list[Any],
    quantized: list[Quantized],
    recipe: Fp8Recipe,
    *,
    enters: NamedGroup | None = None,
    leaves: NamedGroup | None = None,
) -> tuple[Any, ...]:
    """Products of one input with several weights; ``quantized`` are the weights in fp8.

    ``enters``: these ranks' parts of the sequence are gathered first; ``leaves``: products are summed over these ranks
    and cut along the sequence.
    """
    flat = [part for each in quantized for part in each]
    out: tuple[Any, ...] = _Products.apply(x, recipe, enters, leaves, len(weights), *weights, *flat)
    return out


class _Products(torch.autograd.Function):
    """The input is cast once for all weights, and only its transpose is kept, for the weights' gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        recipe: Fp8Recipe,
        enters: NamedGroup | None,
        leaves: NamedGroup | None,
        count: int,
        *parts: Any,
    ) -> tuple[Any, ...]:
        weights, quantized = parts[:count], [Quantized(*parts[i : i + 4]) for i in range(count, 5 * count, 4)]
        given = quantize_and_gather(x, enters) if enters else quantize(x.flatten(0, -2), recipe)
        ctx.recipe, ctx.enters, ctx.leaves, ctx.dtypes = recipe, enters, leaves, [w.dtype for w in weights]
        ctx.shape = (x.shape[0], x.shape[1] * (enters.size if enters else 1), x.shape[2])
        ctx.late = [w.columns is None for w in quantized]
        kept = [part for w in quantized for part in (w.rows if w.columns is None else w.columns, w.columns_scale)]
        ctx.save_for_backward(*given.transposed(), *kept)
        out = (product(given.rows, given.rows_scale, w.rows, w.rows_scale, x.dtype, fast=True) for w in quantized)
        shaped = (y.view(*ctx.shape[:2], -1) for y in out)
        return tuple(scatter_sequence(y, leaves) if leaves else y for y in shaped)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        columns, columns_scale, *kept = ctx.saved_tensors
        dtype = E5M2 if ctx.recipe == "tensorwise" else E4M3
        given: Any = None
        of_weights = []
        for i, grad in enumerate(grads):
            g = (
                quantize_and_gather(grad, ctx.leaves, dtype)
                if ctx.leaves
                else quantize(grad.flatten(0, -2), ctx.recipe, dtype)
            )
            weight, scale = kept[2 * i : 2 * i + 2]
            weight = transposed(weight) if ctx.late[i] else weight
            part = product(g.rows, g.rows_scale, weight, scale, grad.dtype, fast=False)
            given = part if given is None else given + part
            own = product(*g.transposed(), columns, columns_scale, grad.dtype, fast=False)
            of_weights.append(own.to(ctx.dtypes[i]))
        given = given.view(ctx.shape)
        given = scatter_sequence(given, ctx.enters) if ctx.enters else given
        return given, None, None, None, None, *of_weights, *(4 * len(grads) * (None,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Rules:
    """Which weights have products in fp8, and how they are cast."""

    recipe: Fp8Recipe = "tensorwise"
    smallest: int = FP8_SMALLEST
    """Narrower weights, in either direction, gain less than their casts cost."""
    kept: bool = True
    """Weights stay whole between passes, so that they are cast once a step; others are cast in every pass."""

    @property
    def gathers(self) -> bool:
        """Whether parts of a tensor can be cast apart and gathered in fp8: all of them have one scale."""
        return self.recipe == "tensorwise"

    def takes(self, weight: Any) -> bool:
        """Whether a weight's products are in fp8."""
        return min(weight.shape) >= self.smallest and not any(size % MULTIPLE for size in weight.shape)


class QuantizedWeights(nn.Module):
    """A block's weights in fp8."""

    def __init__(self, rules: Fp8Rules, weights: dict[str, Any]) -> None:
        super().__init__()
        self.rules, self.names, self.order = rules, frozenset(weights), tuple(sorted(weights))
        for name, weight in weights.items() if rules.kept else ():
            for part, value in quantize(torch.zeros_like(weight), rules.recipe)._asdict().items():
                self.register_buffer(f"{name}_{part}", value, persistent=False)

    def of(self, name: str, weight: Any) -> Quantized:
        """A weight in fp8."""
        if self.rules.kept:
            return Quantized(*(getattr(self, f"{name}_{part}") for part in Quantized._fields))
        if isinstance(weight, GatheredWeight):
            return Quantized(weight.rows, weight.scale, None, weight.scale)
        return quantize(weight.detach(), self.rules.recipe)

    def update(self, name: str, value: Quantized) -> None:
        """Keep what was cast of a weight that the optimizer has changed."""
        for part, tensor in zip(Quantized._fields, value, strict=True):
            self._buffers[f"{name}_{part}"] = tensor  # setting attributes of modules is slow


def quantize_each(weights: list[Any], recipe: Fp8Recipe, largest: list[Any]) -> list[Quantized]:
    """The weights of a block in fp8: one function, so that the host makes one call where it is compiled."""
    return [quantize(weight, recipe, largest=one) for weight, one in zip(weights, largest, strict=True)]


def cast_weights(blocks: Iterable[Any], rules: Fp8Rules, cast: Callable[..., list[Quantized]]) -> None:
    """Cast the weights that stay whole; ``cast`` is ``quantize_each`` or what compilation made of it."""
    kept = [(block.quantized, [getattr(block, name).detach() for name in block.quantized.order]) for block in blocks]
    every = [weight for _, weights in kept for weight in weights]
    largest = iter(largest_elements(every) if rules.recipe == "tensorwise" else [None] * len(every))
    for quantized, weights in kept:
        for name, value in zip(
            quantized.order, cast(weights, rules.recipe, list(islice(largest, len(weights)))), strict=True
        ):
            quantized.update(name, value)


def quantized_weights(block: nn.Module, rules: Fp8Rules) -> QuantizedWeights:
    """The weights of a block that are in fp8: those that read one input all are, or none."""
    found = {name: w for name, w in block.named_parameters(recurse=False) if w.ndim == 2 and rules.takes(w)}
    parted = {name for group in SHARED_INPUT if not found.keys() >= set(group) for name in group}
    return QuantizedWeights(rules, {name: w for name, w in found.items() if name not in parted})
