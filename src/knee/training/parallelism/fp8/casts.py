"""A matrix in fp8, by rows and by columns, in one reading.

Tensor cores of Hopper take fp8 operands only with the summed dimension innermost. A linear layer's three products sum
over three dimensions, so that inputs, weights and output gradients are each needed as they are and transposed.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # without GPUs torch comes without it
    triton = None

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
SMALLEST = 1e-12
"""Largest elements below it are taken for it: a tensor of zeros has a scale, too."""
TILE_ROWS, TILE_COLUMNS, WARPS = 64, 128, 4


def copies(x: Any, by_rows: Any, by_columns: Any, dtype: Any) -> tuple[Any, Any]:
    """``x`` (m, k) times the scales of its rows, and its transpose times the scales of its columns, in ``dtype``.

    Scales are one number, or one of each row (m, 1) and of each column (k, 1).
    """
    if x.device.type == "cuda" and triton is not None:
        rows, columns = _copies_on_gpu(x, by_rows, by_columns, dtype == E5M2)
        return rows, columns
    return cast_to_fp8(x, by_rows, dtype), cast_to_fp8(x.t(), by_columns, dtype)


def largest_elements(tensors: list[Any]) -> list[Any]:
    """The largest absolute value of each tensor, all of them in one reading."""
    there = [x for x in tensors if x.numel()]
    found = iter(torch._foreach_norm(there, torch.inf) if there else ())
    return [next(found) if x.numel() else x.new_zeros(()) for x in tensors]


def scale_of(largest: Any, dtype: Any = E4M3) -> Any:
    """What makes the largest element the largest number of the type."""
    return LARGEST[dtype] / largest.float().clamp(min=SMALLEST)


def cast_to_fp8(x: Any, scale: Any, dtype: Any) -> Any:
    """``x`` times ``scale`` in fp8; what is too large becomes the largest number."""
    top = LARGEST[dtype]
    return (x.float() * scale).clamp(-top, top).to(dtype).contiguous()


def transposed(rows: Any) -> Any:
    """The transpose of a matrix in fp8, as one that lies in memory."""
    return rows.view(torch.uint8).t().contiguous().view(rows.dtype)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _copies_kernel(  # type: ignore[no-untyped-def]
        x, rows, columns, by_rows, by_columns, m, k, ROWWISE: tl.constexpr, TOP: tl.constexpr,
        TILE_M: tl.constexpr, TILE_K: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(1).to(tl.int64) * TILE_M + tl.arange(0, TILE_M)
        j = tl.program_id(0).to(tl.int64) * TILE_K + tl.arange(0, TILE_K)
        inside = (i[:, None] < m) & (j[None, :] < k)
        tile = tl.load(x + i[:, None] * k + j[None, :], mask=inside, other=0.0).to(tl.float32)
        if ROWWISE:
            left = tl.load(by_rows + i, mask=i < m, other=0.0)[:, None]
            right = tl.load(by_columns + j, mask=j < k, other=0.0)[None, :]
        else:
            left = tl.load(by_rows)
            right = left
        one = tl.minimum(tl.maximum(tile * left, -TOP), TOP).to(rows.dtype.element_ty)
        tl.store(rows + i[:, None] * k + j[None, :], one, mask=inside)
        if ROWWISE:
            one = tl.minimum(tl.maximum(tile * right, -TOP), TOP).to(rows.dtype.element_ty)
        tl.store(columns + j[:, None] * m + i[None, :], tl.trans(one), mask=(j[:, None] < k) & (i[None, :] < m))

    @torch.library.triton_op("knee::fp8_copies", mutates_args={})  # type: ignore[untyped-decorator]
    def _copies_on_gpu(
        x: torch.Tensor, by_rows: torch.Tensor, by_columns: torch.Tensor, e5m2: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        m, k = x.shape
        dtype = E5M2 if e5m2 else E4M3
        rows = torch.empty((m, k), dtype=dtype, device=x.device)
        columns = torch.empty((k, m), dtype=dtype, device=x.device)
        grid = (triton.cdiv(k, TILE_COLUMNS), triton.cdiv(m, TILE_ROWS))
        torch.library.wrap_triton(_copies_kernel)[grid](
            x, rows, columns, by_rows, by_columns, m, k,
            ROWWISE=by_rows.numel() > 1, TOP=LARGEST[dtype], TILE_M=TILE_ROWS, TILE_K=TILE_COLUMNS, num_warps=WARPS,
        )  # fmt: skip
        return rows, columns
