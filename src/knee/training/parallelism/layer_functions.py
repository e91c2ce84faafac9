"""Functions of a layer that dense and latent attention share: products, norms, rotary embedding."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from knee.specs.model import Model
from knee.training.parallelism.torch_internals import exchange


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """A product in x's type: weights that are kept in another (and that FSDP has not cast) are cast here."""
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """torch's own kernel; inside it computes in fp32."""
    return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def rope_table(positions: Any, model: Model, device: Any, dtype: Any) -> tuple[Any, Any]:
    """Cosines and sines of the turned part of a head, (1, sequence, 1, width / 2)."""
    head_dim = model.latent_attention.rope_size if model.latent_attention else model.head_dim
    frequencies = model.rope_base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(positions.double(), frequencies)[None, :, None, :]
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """Turn pairs of features (i, i + head_dim / 2) by their position's angle."""
    return turned(x, cos, sin) if torch.compiler.is_compiling() else _Turn.apply(x, cos, sin)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """The formula, which compiled code fuses into one kernel."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def _turn(x: Any, cos: Any, sin: Any, way: float) -> Any:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (a, b), (left, right) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=left)
    torch.mul(b, cos, out=right)
    left.addcmul_(b, sin, value=-way)
    right.addcmul_(a, sin, value=way)
    return out


_Turn = exchange(partial(_turn, way=1.0), partial(_turn, way=-1.0))
"""The formula in four kernels; backward turns the other way."""
