"""WHAT is trained: the shape of a decoder-only transformer, and the rules that its values keep."""

from knee.specs.model.decoder import Mlp, Model, Norm, Positions, QkNorm

__all__ = ["Mlp", "Model", "Norm", "Positions", "QkNorm"]
