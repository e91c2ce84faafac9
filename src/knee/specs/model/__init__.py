"""WHAT is trained: the shape of a decoder-only transformer, and the rules that its values keep."""

from knee.specs.model.decoder import Experts, LatentAttention, Mlp, Model, Norm, Positions, QkNorm, WindowKind

__all__ = ["Experts", "LatentAttention", "Mlp", "Model", "Norm", "Positions", "QkNorm", "WindowKind"]
