"""The memory-bound kernels of a layer with experts: the router, the order of tokens, activations."""

from __future__ import annotations

from knee.arrays import Floats
from knee.specs.model import Experts, Model
from knee.workload.projections import expert_share, routed_rows
from knee.workload.shapes import BYTES, Shapes

ROUTER_BYTES = 4.0  # logits of the router are fp32 in all stacks


def expert_streams(model: Model, experts: Experts, s: Shapes) -> list[tuple[str, str, Floats, float]]:
    """(name, operation of ``kernels.toml``, bytes of the tensor that it reads or writes, how many), mean over layers.

    Where:   tokens are put into the order of their experts before the products and back after them; the bias of an
             expert's output is weighted with the router's probability of each token
    """
    share, rows = expert_share(model), routed_rows(experts, s)
    streams = [
        ("router", "router", share * s.norm_tokens * experts.count * ROUTER_BYTES, share),
        ("permute", "permute", share * s.permuted_rows * model.hidden * BYTES, share),
        (f"experts_{model.mlp}", model.mlp, share * rows * experts.ffn / s.etp * BYTES, share),
    ]
    if model.biases or model.mlp_bias:
        streams.append(("experts_bias", "expert_bias", share * rows * model.hidden * BYTES, share))
    if experts.shared_ffn:
        streams.append((f"shared_{model.mlp}", model.mlp, share * s.tokens * experts.shared_ffn / s.tp * BYTES, share))
    return streams
