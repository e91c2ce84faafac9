"""Bytes that forward keeps for backward, per layer and token."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from knee.arrays import Floats
from knee.specs.model import Model
from knee.specs.plan import RECOMPUTES, RecomputeModule
from knee.specs.profile import MEGATRON_KERNELS, Profile
from knee.workload.fp8_layers import wide_products
from knee.workload.kept_inputs import KeptBytes
from knee.workload.operations import NVFP4_BYTES, kept_product_columns
from knee.workload.projections import expert_share, projections
from knee.workload.recomputed_modules import expert_bytes, freed_bytes
from knee.workload.shapes import BYTES, Fp8Shapes, Shapes

WRITTEN_OUT = ("eager", "fused_norm", "flash_attn")
"""Kernel sets whose MLP and loss are written out in PyTorch."""


def layer_saved_bytes(
    model: Model,
    s: Shapes,
    profile: Profile,
    recompute: Floats,
    modules: Mapping[RecomputeModule, Floats] = MappingProxyType({}),
) -> Floats:
    """What one layer keeps of one microbatch; ``modules`` has a column for each part that some plans recompute.

    Formula: norms and residual on norm_tokens + attention and MLP tensors on tokens / tp, and inputs of products that
             stay gathered on tokens
    Where:   attention runs its core again; ops keeps the layer's input, attention's output, every second product's and
             those of reduce-scatters; blocks and full keep the layer's input alone
    Source:  counted from the tensors autograd saves; Korthikanti et al. (arXiv 2205.05198) count 34 h for GPT
    """
    h, tokens_tp, eager = model.hidden, s.tokens / s.tp, profile.saved in WRITTEN_OUT
    width = KeptBytes.of(model, s, profile)
    # norms before attention and the MLP; what they put out is the input of the products behind them
    inputs = min(model.layer_norms, 2)
    norms = (inputs * (norm_bytes(model, profile) - 2.0) + width.norms(model)) * h * s.norm_tokens
    if model.layer_norms > inputs:
        # what the others put out is added to the residual stream, and not kept
        norms = norms + (model.layer_norms - inputs) * (norm_bytes(model, profile) - 2.0) * h * s.norm_tokens
    if profile.keeps_gathered:
        norms = norms + width.norms(model) * h * (s.tokens - s.norm_tokens)
    # queries, keys, values and the attention output, which is also the input of the output projection
    attention_core = 2.0 * (model.q_width + 2 * model.kv_width) + width.attention * model.q_width
    if model.latent_attention is not None:
        values = model.heads * model.latent_attention.value_size
        attention_core = 2.0 * (model.q_width + model.kv_width + values) + width.attention * values
        # the narrow vectors before and behind their norms, and the shared key
        narrow = model.latent_attention.kv_rank + model.latent_attention.q_rank
        each = norm_bytes(model, profile) - 2.0 + width.inputs
        norms = norms + (each * narrow + 2.0 * model.latent_attention.rope_size) * s.norm_tokens
    if model.qk_norm != "none":
        # queries and keys before their norm; those behind it are among the four above
        attention_core += (norm_bytes(model, profile) - 2.0) * (model.q_width + model.kv_width)
    elif profile.packed_qkv and model.positions == "rope":
        attention_core += 2.0 * (model.q_width + model.kv_width)
    # gate, up, activation and product in eager; fused kernels recompute the activation
    gated = 4 if eager else 3
    mlp_tensors = {"swiglu": gated, "geglu": gated, "gelu": 2, "relu2": gated - 1}[model.mlp]
    mlp = width.mlp(mlp_tensors) * model.ffn * (1.0 - expert_share(model))
    scores = np.zeros_like(s.tokens)
    if profile.attention == "unfused":
        # softmax in and out and the dropout mask: 5 bytes for each of heads * seq^2 (Korthikanti et al.)
        scores = 5.0 * s.sequences * (model.heads / s.tp) * s.seq_len**2 / s.cp
    if profile.keeps_gathered:
        # keys and values of the whole sequence, where an all-gather brought them
        norms = norms + np.where(s.kv_block == s.seq_len, s.cp - 1.0, 0.0) * 4.0 * model.kv_width * tokens_tp
    kept = norms + (attention_core + mlp) * tokens_tp
    if model.experts is not None:
        kept = kept + expert_bytes(model, s, mlp_tensors, width, outputs=profile.saved not in MEGATRON_KERNELS)
    if np.any(s.four_bit):
        kept = kept + s.four_bit * (1.0 - profile.bf16_layers_frac) * _nvfp4_saved_bytes(model, s, profile)
    if s.fp8 is not None and s.fp8.shared_casts:
        kept = kept + _fp8_saved_bytes(model, s, s.fp8, profile)
    layer_input = 2.0 * h * s.norm_tokens
    scattered = np.where(s.tp > 1, 2 * layer_input, 0.0)
    products = 2.0 * kept_product_columns(model, s, profile.kernels) * s.tokens
    ops = layer_input + scattered + products + 2.0 * model.q_width * tokens_tp
    whole = np.where(recompute == RECOMPUTES.index("attention"), 0.0, scores) + kept
    whole = np.where(recompute == RECOMPUTES.index("ops"), np.minimum(ops, kept + scores), whole)
    gathered = s.tokens if profile.keeps_gathered else s.norm_tokens
    for module, chosen in modules.items():
        freed = freed_bytes(
            model,
            s,
            module,
            mlp_tensors=mlp_tensors,
            width=width,
            outputs=profile.saved not in MEGATRON_KERNELS,
            gathered=gathered,
            scores=scores,
        )
        whole = whole - chosen * freed
    return np.where(recompute >= RECOMPUTES.index("blocks"), layer_input, whole)


def _nvfp4_saved_bytes(model: Model, s: Shapes, profile: Profile) -> Floats:
    """What a layer in NVFP4 keeps, less what it keeps in 16 bit: of the inputs of its products the copy for the weight
    gradient alone. Attention keeps its output in 16 bit beside that.

    Source:  Transformer Engine 2.8, pytorch/module: Linear saves the cast input by columns
    """
    gathered = s.tokens if profile.keeps_gathered else s.norm_tokens
    inputs = 2.0 * model.hidden * gathered + model.ffn * s.tokens / s.tp
    return (NVFP4_BYTES - BYTES) * inputs + NVFP4_BYTES * model.q_width * s.tokens / s.tp


def _fp8_saved_bytes(model: Model, s: Shapes, fp8: Fp8Shapes, profile: Profile) -> Floats:
    """What a layer with shared fp8 casts keeps, less what it keeps in 16 bit: of the inputs of fp8 products their
    columns alone. Attention keeps its output in 16 bit beside that.

    Source:  src/knee/parallelism/fp8/linear.py: only the transposed input is saved for backward
    """
    wide = wide_products(projections(model, s, profile.kernels), fp8)
    gathered, tokens_tp = s.tokens if profile.keeps_gathered else s.norm_tokens, s.tokens / s.tp
    # bytes that an element of each input needs more
    more = {"q": (-1.0, model.hidden * gathered), "attention_out": (1.0, model.q_width * tokens_tp)}
    dense = 1.0 - expert_share(model)
    more |= {"up": (-dense, model.hidden * gathered), "down": (-dense, model.ffn * tokens_tp)}
    found = np.zeros_like(s.tokens)
    for name, (each, elements) in more.items():
        if name in wide:
            found = found + each * ~wide[name] * elements
    return fp8.eight_bit * found


def norm_bytes(model: Model, profile: Profile) -> float:
    """What a norm keeps of each element: a fused one its input and output in 16 bit; RMSNorm written out in eager its
    fp32 input, the unscaled and the scaled output."""
    if model.norm == "layernorm":
        return 4.0
    return profile.rmsnorm_bytes or (8.0 if profile.saved == "eager" else 4.0)


def logits_bytes(model: Model, s: Shapes, profile: Profile) -> Floats:
    """What the loss holds when backward begins: fp32 log-probabilities and their gradient in fp32 and 16 bit; fused
    losses keep 16-bit logits and one fp32 copy. Without loss parallelism all of them stand on every rank."""
    soft_cap = 2.0 if model.final_soft_cap and profile.saved in WRITTEN_OUT else 0.0  # the 16-bit result of tanh
    per_logit = soft_cap + (profile.logit_bytes or (4.0 + 4.0 + 2.0 if profile.saved in WRITTEN_OUT else 2.0 + 4.0))
    losses = 1 + model.mtp_layers
    return losses * per_logit * s.tokens * model.vocab / (s.tp if profile.loss_parallel else 1.0)
