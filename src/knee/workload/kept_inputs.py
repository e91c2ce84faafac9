"""Inputs of matrix products that are kept for backward: in 16 bit, or in fp8."""

from __future__ import annotations

import numpy as np

from knee.arrays import Floats
from knee.specs.model import Model
from knee.specs.profile import Profile
from knee.workload.projections import expert_share
from knee.workload.shapes import Shapes

FP8_KEPT_BYTES = 1.0 + 4.0 / 128.0  # an element, with its share of an fp32 scale for 128 of them


def input_bytes(model: Model, s: Shapes, profile: Profile) -> Floats | float:
    """Bytes of an element of a product's input that is kept for the gradient of its weights.

    Source:  Transformer Engine 2.8, pytorch/module: linear layers in fp8 save the cast input by columns; DeepSeek-V3
             (arXiv 2412.19437), section 3.3.3
    Valid:   layers with experts; memory of fp8 runs of others was not compared with this
    """
    if model.experts is None or not (profile.keeps_fp8_inputs and np.any(s.eight_bit)):
        return 2.0
    return np.where(s.eight_bit > 0.0, FP8_KEPT_BYTES, 2.0)


def kept_norm_bytes(model: Model, width: Floats | float) -> Floats | float:
    """Bytes per element of the stream that a layer keeps of what its norms put out, as inputs of products. The router
    of a layer with experts reads its own in 16 bit, and shared experts a copy in fp8."""
    experts, norms = model.experts, min(model.layer_norms, 2)
    if experts is None:
        return norms * width
    routed = 2.0 + (narrow_copy_bytes(width) if experts.shared_ffn else 0.0)
    share = expert_share(model)
    return (norms - 1) * width + (1.0 - share) * width + share * routed


def narrow_copy_bytes(width: Floats | float) -> Floats | float:
    """Bytes of a copy for a product beside a tensor that others read in 16 bit: none if the product reads those."""
    return width * (np.asarray(width) < 2.0)
