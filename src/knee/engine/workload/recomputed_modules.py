"""Recomputation module by module, as Megatron-LM names them: what is run again, and what need not be kept for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knee.base.arrays import Floats
from knee.engine.workload.projections import Shapes, expert_share, routed_rows
from knee.specs.model import Model
from knee.specs.plan import RecomputeModule
from knee.specs.profile import Profile

FP8_KEPT_BYTES = 1.0 + 4.0 / 128.0  # an element, with its share of an fp32 scale for 128 of them
TWELVE_BIT_BYTES = 1.5 + 4.0 / 128.0
Width = Floats | float


class KeptBytes(NamedTuple):
    """Bytes of an element that is kept for backward."""

    inputs: Width
    """Of an input of a matrix product, for the gradient of its weights."""
    inner: Width
    """Of what an activation function reads."""
    attention: Width
    """Of attention's output, with the copy that the product behind it keeps."""

    @classmethod
    def of(cls, model: Model, s: Shapes, profile: Profile) -> KeptBytes:
        """In 16 bit, or in fp8 as the stack keeps them.

        Source:  Transformer Engine 2.8, pytorch/module: linear layers in fp8 save the cast input by columns, and
                 attention its output in 16 bit; DeepSeek-V3 (arXiv 2412.19437), section 3.3.3: inputs of SwiGLU in
                 fp8, attention's output once, in E5M6
        Valid:   layers with experts; memory of fp8 runs of others was not compared with this
        """
        # stacks with shared casts say themselves what fp8 layers keep (``activations``)
        shared = s.fp8 is not None and s.fp8.shared_casts
        if model.experts is None or profile.fp8_keeps == "none" or shared or not np.any(s.eight_bit):
            return cls(2.0, 2.0, 2.0)
        narrow, every = s.eight_bit > 0.0, profile.fp8_keeps == "activations"
        inputs = np.where(narrow, FP8_KEPT_BYTES, 2.0)
        attention = TWELVE_BIT_BYTES if every else 2.0 + FP8_KEPT_BYTES
        return cls(inputs, inputs if every else 2.0, np.where(narrow, attention, 2.0))

    def mlp(self, tensors: int) -> Width:
        """Of an MLP that keeps so many tensors of its inner width: the last one is the input of its second product."""
        return self.inner * (tensors - 1) + self.inputs

    def norms(self, model: Model) -> Width:
        """Per element of the stream, of what a layer's norms put out as inputs of products. The router of a layer with
        experts reads its own in 16 bit, and shared experts a copy in fp8."""
        experts, norms = model.experts, min(model.layer_norms, 2)
        if experts is None:
            return norms * self.inputs
        copied = np.where(np.asarray(self.inputs) < 2.0, self.inputs, 0.0) if experts.shared_ffn else 0.0
        share = expert_share(model)
        return (norms - share) * self.inputs + share * (2.0 + copied)


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
