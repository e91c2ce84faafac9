"""Multi-head latent attention: queries, keys and values from narrow vectors of each token (DeepSeek-V2, V3).

With tensor parallelism a rank has whole heads. The narrow vectors are made of a rank's own tokens and cross the group
instead of the wide ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from knee.parallelism.layer_functions import linear, rms_norm, rope
from knee.specs.model import Model


class LatentProjections(nn.Module):
    """The weights of one layer's attention but its output projection."""

    def __init__(self, model: Model, tp: Any, attend: Callable[..., Any], *, pads_values: bool, dtype: Any) -> None:
        """``pads_values``: values are narrower than keys, which torch's flash kernels do not take."""
        super().__init__()
        latent = model.latent_attention
        assert latent is not None
        self.spec, self.tp, self.attend, self.head_dim = latent, tp, attend, model.head_dim
        self.eps = model.norm_eps
        self.missing = max(0, self.head_dim - latent.value_size) if pads_values else 0
        heads = model.heads // tp.size

        def weight(*shape: int) -> Any:
            return nn.Parameter(torch.empty(shape, dtype=dtype))

        if latent.q_rank:
            self.wq_a, self.q_a_norm = weight(latent.q_rank, model.hidden), weight(latent.q_rank)
            self.wq_b = weight(heads * self.head_dim, latent.q_rank)
        else:
            self.wq = weight(heads * self.head_dim, model.hidden)
        self.wkv_a, self.kv_a_norm = weight(latent.kv_rank + latent.rope_size, model.hidden), weight(latent.kv_rank)
        self.wkv_b = weight(heads * (latent.nope_size + latent.value_size), latent.kv_rank)

    def forward(self, y: Any, cos: Any, sin: Any) -> Any:
        """Normed activations of this rank's tokens -> its heads' values for the whole sequence, heads joined."""
        spec = self.spec
        narrow, shared_key = linear(y, self.wkv_a).split((spec.kv_rank, spec.rope_size), dim=-1)
        parts = [rms_norm(narrow, self.kv_a_norm, self.eps), shared_key]
        if spec.q_rank:
            parts.append(rms_norm(linear(y, self.wq_a), self.q_a_norm, self.eps))
        narrow, shared_key, *queries = self._enter(parts)
        q = linear(queries[0], self.wq_b) if queries else linear(self.tp.enter(y), self.wq)
        batch, tokens, _ = narrow.shape
        q_plain, q_turned = q.view(batch, tokens, -1, self.head_dim).split((spec.nope_size, spec.rope_size), dim=-1)
        k_and_v = linear(narrow, self.wkv_b).view(batch, tokens, -1, spec.nope_size + spec.value_size)
        k_plain, v = k_and_v.split((spec.nope_size, spec.value_size), dim=-1)
        k_turned = rope(shared_key.unsqueeze(2), cos, sin).expand(-1, -1, k_plain.shape[2], -1)
        q = torch.cat((q_plain, rope(q_turned, cos, sin)), dim=-1)
        k = torch.cat((k_plain, k_turned), dim=-1)
        return self._attended(q, k, v).reshape(batch, tokens, -1)

    def _enter(self, parts: list[Any]) -> Any:
        """All narrow vectors in one message."""
        if self.tp.size == 1:
            return parts
        return self.tp.enter(torch.cat(parts, dim=-1)).split([part.shape[-1] for part in parts], dim=-1)

    def _attended(self, q: Any, k: Any, v: Any) -> Any:
        if self.missing:
            return self.attend(q, k, functional.pad(v, (0, self.missing)))[..., : v.shape[-1]]
        return self.attend(q, k, v)
