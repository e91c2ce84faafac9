"""WHAT is trained: the shape of a decoder-only transformer, and the rules that its values keep."""

from knee.specs.model.decoder import Mlp, Model, Norm, Positions, QkNorm, WindowKind
from knee.specs.model.experts import Experts
from knee.specs.model.latent_attention import LatentAttention

__all__ = ["Experts", "LatentAttention", "Mlp", "Model", "Norm", "Positions", "QkNorm", "WindowKind"]
