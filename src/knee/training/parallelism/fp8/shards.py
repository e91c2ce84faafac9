"""Weights that FSDP2 gathers in fp8: a rank's shard is cast, and one byte of each element crosses the network.

FSDP2 asks a sharded tensor of a class with these two methods what to gather and what to make of it.
Source: torch.distributed.fsdp, extensions of all-gathers (``fsdp_pre_all_gather``), as torchao uses them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from knee.training.parallelism.fp8.casts import E4M3, cast_to_fp8, largest_elements, scale_of

aten = torch.ops.aten
KEEPS_CLASS = {
    *(aten.detach.default, aten.clone.default, aten.empty_like.default, aten.zeros_like.default),
    *(aten.new_zeros.default, aten.new_empty.default, aten.view.default, aten.as_strided.default),
    *(aten.slice.Tensor, aten.split.Tensor, aten.narrow.default, aten._to_copy.default, aten.copy_.default),
}
"""Operations whose results FSDP2 expects to be gathered in the same way."""


def _outer(cls: Any, like: Any, dtype: Any) -> Any:
    return torch.Tensor._make_wrapper_subclass(
        cls, like.shape, strides=like.stride(), dtype=dtype, device=like.device, requires_grad=False
    )


@dataclass(slots=True)
class Copy:
    """What is gathered of a shard. A shard's views share it, and every step makes it anew."""

    rows: Any = None
    scale: Any = None
    """What the rows are multiplied by to be the weight."""


class ShardedWeight(torch.Tensor):
    """A rank's part of a weight, as it is kept."""

    def __new__(cls, inner: Any, copy: Copy) -> Any:  # noqa: ARG004 (of __init__)
        return _outer(cls, inner, inner.dtype)

    def __init__(self, inner: Any, copy: Copy) -> None:
        self.inner, self.copy = inner, copy

    def __repr__(self, **_: Any) -> str:
        return f"ShardedWeight({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation is one on the kept tensor."""
        copy = next(x.copy for x in args if isinstance(x, cls))
        args, kwargs = tree_map_only(cls, lambda x: x.inner, (args, kwargs or {}))
        out = func(*args, **kwargs)
        if func not in KEEPS_CLASS:
            return out
        return tree_map_only(torch.Tensor, lambda x: cls(x, copy), out)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self.copy

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], copy: Copy, size: Any, stride: Any) -> Any:
        del size, stride
        return ShardedWeight(inner["inner"], copy)

    def fsdp_pre_all_gather(self, mesh: Any, size: Any, stride: Any, module: Any, policy: Any) -> Any:
        """What is gathered, and what the other side needs to know."""
        del stride, module, policy
        rows = self.copy.rows
        missing = -(-size[0] // mesh.size()) - len(rows)  # FSDP2 pads the shards of the last ranks
        if missing:  # without, pad would copy all the same
            rows = nn.functional.pad(rows.view(torch.uint8), (0, 0, 0, missing)).view(E4M3)
        return (rows,), (self.copy.scale,)

    def fsdp_post_all_gather(self, gathered: Any, known: Any, dtype: Any, *, out: Any = None) -> Any:
        """The whole weight. ``out`` is that of an earlier pass, whose memory has been filled again."""
        (rows,), (scale,) = gathered, known
        if out is not None:
            out.scale = scale
            return None
        return GatheredWeight(rows, scale, dtype), (rows,)


class GatheredWeight(torch.Tensor):
    """A whole weight in fp8, which stands for one of 16 bit: its gradient is 16-bit."""

    def __new__(cls, rows: Any, scale: Any, dtype: Any) -> Any:  # noqa: ARG004 (of __init__)
        return _outer(cls, rows, dtype)

    def __init__(self, rows: Any, scale: Any, dtype: Any) -> None:
        del dtype
        self.rows, self.scale = rows, scale

    def __repr__(self, **_: Any) -> str:
        return f"GatheredWeight({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A weight is passed on as it is; products take it apart."""
        if func in (aten.detach.default, aten.as_strided.default, aten.view.default):
            x = args[0]
            return cls(func(x.rows, *args[1:]), x.scale, x.dtype)
        raise NotImplementedError(f"{func} of a weight in fp8")

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["rows", "scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], dtype: Any, size: Any, stride: Any) -> Any:
        del size, stride
        return GatheredWeight(inner["rows"], inner["scale"], dtype)


def gathered_in_fp8(block: nn.Module, names: Iterable[str]) -> None:
    """Make FSDP2 gather these weights of a block in fp8; before the block is sharded."""
    for name in names:
        setattr(block, name, nn.Parameter(ShardedWeight(getattr(block, name).data, Copy())))


def cast_each(tensors: list[Any], scales: list[Any]) -> list[Any]:
    """The shards of a block in fp8: one function, so that the host makes one call where it is compiled."""
    return [cast_to_fp8(x, scale, E4M3) for x, scale in zip(tensors, scales, strict=True)]


def cast_shards(blocks: list[list[ShardedWeight]], group: Any, cast: Callable[..., list[Any]]) -> None:
    """Make what is gathered, with the scale of the whole weight: one small message tells the largest elements of all.
    ``cast`` is ``cast_each`` or what compilation made of it."""
    largest = torch.stack(largest_elements([shard.inner for block in blocks for shard in block])).float()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    # numbers with memory of their own: compiled code copies those that are not aligned
    scales = torch._foreach_mul(scale_of(largest).unbind(), 1.0)
    each, inverse = iter(scales), iter(torch._foreach_reciprocal(scales))
    for block in blocks:
        rows = cast([shard.inner for shard in block], list(islice(each, len(block))))
        for shard, cast_rows, scale in zip(block, rows, islice(inverse, len(block)), strict=True):
            shard.copy.rows, shard.copy.scale = cast_rows, scale
