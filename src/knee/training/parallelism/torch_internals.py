"""Every private part of torch that the trainer uses, in one place. Held against torch 2.11 and 2.13.

Those of pipelines are in ``pipeline_parallel``, because importing torch's takes a rank most of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGroup:
    """A process group as the functional collectives want it: by name, so that it is a constant of compiled code."""

    name: str
    size: int
    rank: int

    @classmethod
    def of(cls, group: Any) -> NamedGroup:
        """The same group by its name."""
        return cls(name=group.group_name, size=group.size(), rank=dist.get_rank(group))


# torch.ops._c10d_functional is what torch.distributed._functional_collectives calls. Its Python functions were renamed
# between 2.11 and 2.13, the operators were not; they run eagerly, compiled and on fake tensors alike.
def all_gather(x: Any, group: NamedGroup) -> Any:
    """Parts of all ranks, one after the other along dim 0."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_gather_into_tensor(x.contiguous(), group.size, group.name))


def reduce_scatter(x: Any, group: NamedGroup) -> Any:
    """This rank's part, along dim 0, of the sum over ranks."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.reduce_scatter_tensor(x.contiguous(), "sum", group.size, group.name))


def all_reduce(x: Any, group: NamedGroup, op: str = "sum") -> Any:
    """The sum (or ``max``) over ranks."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(x.contiguous(), op, group.name))


def all_to_all(x: Any, group: NamedGroup, sent: list[int] | None = None, got: list[int] | None = None) -> Any:
    """Rows that every rank sends here, one rank after the other; ``sent`` and ``got`` are rows by rank, equal parts if
    left out."""
    ops = torch.ops._c10d_functional
    parts = [x.shape[0] // group.size] * group.size
    return ops.wait_tensor(ops.all_to_all_single(x.contiguous(), got or parts, sent or parts, group.name))


def exchange(there: Callable[..., Any], back: Callable[..., Any], *, kept: int | None = None) -> Any:
    """The autograd function whose forward is ``there(x, *args)`` and whose backward is ``back(grad, *args[:kept])``.
    Tensors among those are not saved as such: recomputation would run all that leads to them for it."""

    class ExchangeFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, *args: Any) -> Any:
            ctx.args, ctx.nones = args[:kept], (None,) * len(args)
            return there(x, *args)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return back(grad, *ctx.args), *ctx.nones

    return ExchangeFunction


def grouped(a: Any, b: Any, offsets: Any, *, clears_empty: bool = False) -> Any:
    """Products of groups of rows, (rows, k) x (groups, k, n) -> (rows, n), or of groups of columns, (m, rows) x
    (rows, n) -> (groups, m, n). ``offsets`` (groups,) says where each group ends.

    torch has one kernel for it in bf16 on GPUs, and a loop over groups for the rest, which it cannot trace. The kernel
    refuses tensors without rows (pytorch issue 192497).
    """
    if not (len(a) if b.ndim == 3 else len(b)):
        return _groups_of(a, b, offsets).zero_()
    if a.dtype != torch.bfloat16:
        return _looped_groups(a, b, offsets)
    out = torch.nn.functional.grouped_mm(a, b, offs=offsets)
    if b.ndim == 2 and clears_empty:
        empty = offsets.diff(prepend=offsets.new_zeros(1)) == 0
        out = out.masked_fill(empty.view(-1, 1, 1), 0)
    return out


def leaves_empty_groups_unset(device: Any) -> bool:
    """Whether products of groups of no columns are not 0 on this device: Blackwell (pytorch issue 172439)."""
    return bool(device.type == "cuda" and torch.cuda.get_device_capability(device) >= (10, 0))


def _groups_of(a: Any, b: Any, offsets: Any) -> Any:
    """What the products are written into."""
    return a.new_empty((a.shape[0], b.shape[2]) if b.ndim == 3 else (len(offsets), a.shape[0], b.shape[1]))


@torch.library.custom_op("knee::looped_groups", mutates_args=())  # type: ignore[untyped-decorator]
def _looped_groups(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.grouped_mm(a, b, offs=offsets)


@_looped_groups.register_fake  # type: ignore[untyped-decorator]
def _(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _groups_of(a, b, offsets)
    return out


def flash_lower_right(q: Any, k: Any, v: Any) -> Any:
    """The CUDA flash kernel, heads second. Called directly, its causal mask ends at the last key (lower right);
    ``scaled_dot_product_attention`` would begin it at the first one (as torch.nn.attention.bias does)."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]


def scaled_fused_step(optimizer: Any, *, divide_by: Any, skip: Any) -> None:
    """A fused optimizer's step with gradients divided by one number, not taken where ``skip`` is 1; both on the device.

    torch.amp.GradScaler hands these two to fused optimizers in this way; it saves a pass over the gradients.
    """
    optimizer.grad_scale, optimizer.found_inf = divide_by, skip
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf


@contextmanager
def fake_world(rank: int, world: int) -> Iterator[None]:
    """A process group of fake ranks, and what torch's own code needs to run on it quickly and without values.

    DeviceMesh computes on real tensors; FSDP2 makes one chunk per rank and looks at two of them; the pipeline of torch
    2.13 lets stages vote on whether shapes are static, which nobody answers here.
    """
    import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining import schedules
    from torch.testing._internal.distributed.fake_pg import FakeStore

    made = DeviceMesh.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with unset_fake_temporarily():
            made(self, *args, **kwargs)

    def static(self: Any, stages: Any, *_: Any, **__: Any) -> None:
        del self
        for stage in stages:
            stage._inference_mode = schedules.InferenceMode.STATIC

    replaced = [(DeviceMesh, "__init__", init), (fsdp_param, "_chunk_with_empty", _Chunks)]
    if hasattr(schedules._PipelineSchedule, "_warmup_p2p"):  # 2.13
        replaced.append((schedules._PipelineSchedule, "_warmup_p2p", static))
    with ExitStack() as stack:
        for where, name, value in replaced:
            stack.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, value)
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        yield


def fake_tensors() -> Any:
    """Tensors with a shape and a type, and nothing in them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def stands_for_others(kind: type) -> bool:
    """Whether operations of tensors of this class stand for those of tensors inside: DTensor, weights in fp8."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

    return bool(is_traceable_wrapper_subclass_type(kind))


def is_counted_product(func: Any) -> bool:
    """Whether torch's own FLOP counter has a formula for this operation."""
    from torch.utils.flop_counter import flop_registry

    return func._overloadpacket in flop_registry


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCollective:
    """A collective as torch's dispatcher sees it."""

    collective: str
    group: str
    """torch's name of the process group."""
    functional: bool
    """Ours (TP, CP); else called by FSDP2, the pipeline, or through torch.distributed."""
    group_size: int
    message_bytes: int
    """Of the whole message: all that is gathered, or one rank's input of a reduction or an all-to-all."""
    dtype: Any


_COLLECTIVES = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "send": "send",
    "recv_": "recv",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
}


def collective_of(func: Any, args: Any) -> IssuedCollective | None:
    """What this operation sends; None where it only computes or waits."""
    name = func._overloadpacket.__name__
    if func.namespace not in ("c10d", "_c10d_functional") or name == "wait_tensor":
        return None
    functional = func.namespace == "_c10d_functional"
    if functional:
        group = dist.distributed_c10d._resolve_process_group(args[-1])
    else:
        group = next(g for g in map(_unboxed, args) if g is not None)
    collective = _COLLECTIVES[name]
    tensors = [x for a in args for x in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(x, torch.Tensor)]
    whole = max(tensors, key=lambda t: t.numel())
    repeated = group.size() if functional and collective == "all_gather" else 1
    return IssuedCollective(
        collective=collective,
        group=group.group_name,
        functional=functional,
        group_size=group.size(),
        message_bytes=whole.numel() * whole.element_size() * repeated,
        dtype=whole.dtype,
    )


def _unboxed(argument: Any) -> Any:
    """The process group in an argument of a c10d operation; None for another argument."""
    if not isinstance(argument, torch.ScriptObject):
        return None
    try:
        return dist.ProcessGroup.unbox(argument)
    except RuntimeError:  # a reduction's kind
        return None


class _Chunks:
    """What ``_chunk_with_empty`` returns, made when asked for."""

    def __init__(self, tensor: Any, chunks: int, dim: int) -> None:
        self.tensor, self.chunks, self.dim = tensor, chunks, dim
        self.size = -(-tensor.size(dim) // chunks)

    def __len__(self) -> int:
        return self.chunks

    def __getitem__(self, i: int) -> Any:
        whole = self.tensor.size(self.dim)
        low, high = min(i * self.size, whole), min((i + 1) * self.size, whole)
        return self.tensor.narrow(self.dim, low, high - low) if high > low else self.tensor.new_empty(0)
