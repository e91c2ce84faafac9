"""Linear layers in fp8: which weights have fp8 products, what their casts move, and what is gathered in fp8.

A stack with shared casts, such as knee's trainer, casts an input once for all products that read it, and each output
gradient once: rows and columns in one reading. Other stacks cast the operands of each product.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Bools, Columns, Floats
from knee.engine.workload.projections import BYTES, Fp8Shapes, Projection, Shapes, on_one_gpu
from knee.specs.constants import constant, passes_of
from knee.specs.plan import FP8_RECIPES, PRECISIONS, RESHARDING, SHARDINGS
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Kernels, Profile

MULTIPLE = 16
"""What widths of fp8 products are multiples of."""
_SHARED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "up", "shared_gate": "shared_up"}
"""A product -> the first of those that read the same input; others read one of their own."""
ENTERING, LEAVING = ("qkv", "up"), ("attention_out", "down")
"""Inputs that sequence parallelism gathers, and products whose output gradients it gathers."""


def fp8_shapes(table: PlanTable, profile: Profile | None) -> Fp8Shapes | None:
    """What fp8 layers of each plan do; None if no plan has them."""
    eight = table.precision == PRECISIONS.index("fp8")
    if not eight.any():
        return None
    shared, gathers = (profile is not None and on for on in _switches(profile))
    rowwise = eight & (table.fp8_recipe == FP8_RECIPES.index("rowwise"))
    reshards = np.isin(table.sharding, [SHARDINGS.index(mode) for mode in RESHARDING])
    shards = table.dp_shard * table.cp
    gathers_all = reshards | (table.sharding == SHARDINGS.index("fsdp_no_reshard"))
    sharded = (gathers_all & (shards > 1)) | on_one_gpu(profile, table)
    own = eight & sharded & shared
    gathered = own & ~rowwise & gathers
    return Fp8Shapes(
        eight_bit=_ones(eight),
        rowwise=_ones(rowwise),
        shared_casts=shared,
        smallest=0 if profile is None else profile.fp8_smallest,
        forward_scale=1.0 if profile is None else profile.fp8_forward_scale,
        state_bytes=table.state_bytes,
        shards=np.where(sharded, shards, 1).astype(np.float64),
        gathered=_ones(gathered),
        reshards=_ones(gathered & reshards),
        casts_gathered=_ones(own & ~gathered),
        gathers_tokens=_ones(eight & ~rowwise & table.sequence_parallel & (table.tp > 1) & shared & gathers),
    )


def _switches(profile: Profile | None) -> tuple[bool, bool]:
    return (False, False) if profile is None else (profile.fp8_shared_casts, profile.fp8_gathers)


def _ones(where: Bools) -> Floats:
    return np.where(where, 1.0, 0.0)


def wide_groups(sides: Iterable[tuple[str, Floats, Floats]], smallest: int) -> dict[str, Bools]:
    """Group of products with one input -> where its weights, (name, out, inner), stay in 16 bit: products that read one
    input are fp8 together or not at all."""
    wide: dict[str, Bools] = {}
    for name, out, inner in sides:
        narrow = (np.minimum(out, inner) < smallest) | (out % MULTIPLE > 0) | (inner % MULTIPLE > 0)
        group = group_of(name)
        wide[group] = narrow | wide.get(group, np.zeros_like(narrow))
    return wide


def group_of(name: str) -> str:
    """The products that read the same input as this one, by the name of one of them."""
    return _SHARED.get(name, name)


def wide_products(maps: Sequence[Projection], fp8: Fp8Shapes) -> dict[str, Bools]:
    """Product -> where it stays in 16 bit, in stacks that leave narrow weights out."""
    if not fp8.shared_casts:
        return {}
    single = [p for p in maps if not p.grouped]
    wide = wide_groups(((p.name, p.out, p.inner) for p in single), fp8.smallest)
    return {p.name: wide[group_of(p.name)] for p in single}


def product_scale(fp8: Fp8Shapes, wide: Bools | None, *, forward: bool) -> Floats:
    """Rate of fp8 products over that of the GPU, which was measured without fast accumulation and with one scale."""
    scale = np.where(fp8.rowwise > 0, constant("fp8", "rowwise_frac"), 1.0)
    scale = scale * (fp8.forward_scale if forward else 1.0)
    eight = fp8.eight_bit > 0
    return np.where(eight if wide is None else eight & ~wide, scale, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Casts(Columns):
    """What casts move and launch: the casts, and the search for the largest elements that scale them."""

    cast_bytes: Floats
    largest_bytes: Floats
    cast_kernels: Floats
    largest_kernels: Floats

    def repeated(self, elements: Floats, tensors: Floats) -> Casts:
        """Those of so many elements, of so many tensors."""
        return Casts(
            cast_bytes=elements * self.cast_bytes,
            largest_bytes=elements * self.largest_bytes,
            cast_kernels=tensors * self.cast_kernels,
            largest_kernels=tensors * self.largest_kernels,
        )


def layer_casts(maps: Sequence[Projection], s: Shapes, fp8: Fp8Shapes, kernels: Kernels, *, backward: bool) -> Casts:
    """Casts of a layer in one pass: of inputs or of output gradients, and of weights that FSDP gathers.

    Formula: 2 bytes * elements * passes of the kernel set. Tensors that are gathered in fp8 are cast by their parts (3
             of 4 bytes), and transposed behind the gather (2 of 4 bytes)
    Where:   rowwise scales need the largest elements of rows and of columns: one more reading
    Source:  src/knee/training/parallelism/fp8/linear.py and casts.py
    """
    wide, single = wide_products(maps, fp8), [p for p in maps if not p.grouped]
    cast, largest, more = (passes_of(kernels, name) for name in ("fp8_cast", "fp8_largest", "fp8_largest_columns"))
    find, found = largest.each(backward=backward)
    of_weight, none = _weight_casts(fp8, kernels, backward=backward), np.zeros_like(s.tokens)
    total = Casts(cast_bytes=none, largest_bytes=none, cast_kernels=none, largest_kernels=none)
    seen: set[str] = set()
    for p in single:
        group, there = group_of(p.name), p.times * fp8.eight_bit * ~wide[p.name]
        if backward or group not in seen:
            gathers = fp8.gathers_tokens * ((p.name in LEAVING) if backward else (group in ENTERING))
            part = np.where(gathers > 0, s.norm_tokens / s.tokens, 1.0)
            of_tensor = Casts(
                cast_bytes=BYTES * cast.forward * np.where(gathers > 0, 0.75 * part + 0.5, 1.0),
                largest_bytes=BYTES * part * (find + fp8.rowwise * more.forward),
                cast_kernels=cast.forward_kernels + gathers,
                largest_kernels=found + fp8.rowwise * more.forward_kernels,
            )
            total = total.plus(of_tensor.repeated(there * p.rows * (p.out if backward else p.inner), there))
        seen.add(group)
        total = total.plus(of_weight.repeated(there * p.out * p.inner, there))
    return total


def _weight_casts(fp8: Fp8Shapes, kernels: Kernels, *, backward: bool) -> Casts:
    """Of each element of a weight that FSDP gathers, in one pass: all of it is cast in forward behind a 16-bit gather,
    and transposed in backward behind one in fp8."""
    whole = weight_casts(fp8, kernels, BYTES)
    if not backward:
        return whole.times(fp8.casts_gathered)
    transposed = passes_of(kernels, "fp8_cast").forward / 2.0 * BYTES
    none = 0.0 * fp8.gathered
    return Casts(
        cast_bytes=fp8.gathered * transposed, largest_bytes=none, cast_kernels=fp8.gathered, largest_kernels=none
    )


def shard_casts(fp8: Fp8Shapes, kernels: Kernels) -> Casts:
    """Of each element of a shard that is gathered in fp8, once a step: its largest element, and the cast."""
    cast, largest = (passes_of(kernels, name) for name in ("fp8_shards", "fp8_shards_largest"))
    one = np.ones_like(fp8.rowwise)
    return Casts(
        cast_bytes=BYTES * np.where(fp8.state_bytes > BYTES, cast.forward, cast.backward),
        largest_bytes=largest.forward * fp8.state_bytes,
        cast_kernels=cast.forward_kernels * one,
        largest_kernels=largest.forward_kernels * one,
    )


def weight_casts(fp8: Fp8Shapes, kernels: Kernels, width: float | Floats) -> Casts:
    """Of each element of a weight that is kept in so many bytes: its largest element, and it by rows and columns."""
    cast, largest, more = (passes_of(kernels, name) for name in ("fp8_cast", "fp8_weights", "fp8_largest_columns"))
    one = np.ones_like(fp8.rowwise)
    return Casts(
        cast_bytes=cast.forward / 2.0 * (width + 2.0) * one,
        largest_bytes=(largest.forward + fp8.rowwise * more.forward) * width,
        cast_kernels=cast.forward_kernels * one,
        largest_kernels=largest.forward_kernels + fp8.rowwise * more.forward_kernels,
    )


def fp8_gathers(wide: dict[str, Bools], fp8: Fp8Shapes, *, backward: bool) -> Floats:
    """How many of a layer's tensor-parallel gathers are in fp8; ``wide`` has the groups that stay in 16 bit."""
    names = [name for name in (LEAVING if backward else ENTERING) if name in wide]
    return sum((fp8.gathers_tokens * ~wide[name] for name in names), start=np.zeros_like(fp8.eight_bit))
