"""Recomputation module by module, as Megatron-LM names them: what is run again, and what need not be kept for it."""

from __future__ import annotations

from knee.base.arrays import Floats
from knee.engine.workload.kept_inputs import KeptBytes
from knee.engine.workload.projections import expert_share, routed_rows
from knee.engine.workload.shapes import Shapes
from knee.specs.model import Model
from knee.specs.plan import RecomputeModule

NAMES: dict[RecomputeModule, tuple[str, ...]] = {
    "core_attn": ("attention",),
    "layernorm": ("norm",),
    "mla_up_proj": ("q_up", "kv_up", "rope"),
    "mlp": ("gate", "up", "down", "swiglu", "geglu", "gelu", "relu2"),
    "moe_act": ("experts_swiglu", "experts_geglu", "experts_gelu", "experts_relu2"),
    "shared_experts": (
        *("shared_gate", "shared_up", "shared_down"),
        *("shared_swiglu", "shared_geglu", "shared_gelu", "shared_relu2"),
    ),
    "moe": (
        *("router", "permute", "experts_up", "experts_down", "experts_fp8_cast", "experts_bias"),
        *("experts_swiglu", "experts_geglu", "experts_gelu", "experts_relu2"),
    ),
}
"""Module -> the operations of a layer's forward that it is made of.

Source: Megatron-LM, --recompute-modules. A whole MoE layer has its shared experts too (``operations_of``).
"""


def operations_of(module: RecomputeModule) -> frozenset[str]:
    """Names of the operations that are run again."""
    return frozenset(NAMES[module] + (NAMES["shared_experts"] if module == "moe" else ()))


def freed_bytes(
    model: Model,
    s: Shapes,
    module: RecomputeModule,
    *,
    mlp_tensors: int,
    width: KeptBytes,
    outputs: bool,
    gathered: Floats,
    scores: Floats,
) -> Floats:
    """What a layer need not keep, mean over layers; ``gathered`` are the tokens whose normalised input is kept,
    ``width`` the bytes of what is kept, ``scores`` the bytes of attention that is not fused, ``outputs`` as in
    ``expert_bytes``."""
    share, tokens_tp, experts = expert_share(model), s.tokens / s.tp, model.experts
    none = 0.0 * s.tokens
    if module == "core_attn":
        return scores
    if module == "layernorm":
        # the router's input in 16 bit is made again too, with the norm before it
        return width.norms(model) * model.hidden * gathered
    if module == "mla_up_proj":
        latent = model.latent_attention
        values = 0 if latent is None else model.heads * latent.value_size
        return none if latent is None else 2.0 * (model.q_width + model.kv_width + values) * tokens_tp
    if module == "mlp":
        return (1.0 - share) * width.mlp(mlp_tensors) * model.ffn * tokens_tp
    if experts is None:
        return none
    if module == "moe_act":
        return share * width.inputs * routed_rows(experts, s) * experts.ffn / s.etp
    shared = share * width.mlp(mlp_tensors) * experts.shared_ffn * tokens_tp
    return shared if module == "shared_experts" else expert_bytes(model, s, mlp_tensors, width, outputs=outputs)


def expert_bytes(model: Model, s: Shapes, mlp_tensors: int, width: KeptBytes, *, outputs: bool) -> Floats:
    """What a layer with experts keeps, mean over layers: the scores and probabilities of the router in fp32, each
    expert's input and the tensors of its MLP for every token that it has, and the experts' ``outputs`` if
    probabilities weight them. Megatron-LM weights the activation before the second product, so it keeps none.

    Source:  megatron-core 0.16.1, transformer/moe/experts.py; torchtitan 0.3.0, models/common/token_dispatcher.py
    """
    experts = model.experts
    assert experts is not None
    rows = routed_rows(experts, s)
    inner = width.mlp(mlp_tensors)
    routed = rows * (width.inputs * model.hidden + inner * experts.ffn / s.etp)
    if outputs:
        routed = routed + 2.0 * s.norm_tokens * experts.top_k * model.hidden
    shared = inner * experts.shared_ffn * s.tokens / s.tp
    return expert_share(model) * (routed + shared + 8.0 * s.norm_tokens * experts.count)
