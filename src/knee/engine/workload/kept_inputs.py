"""Inputs of matrix products that are kept for backward: in 16 bit, or in fp8."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knee.base.arrays import Floats
from knee.engine.workload.projections import expert_share
from knee.engine.workload.shapes import Shapes
from knee.specs.model import Model
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
