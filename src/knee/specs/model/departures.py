"""What a model has beyond Llama's block, for programs that run Llama's."""

from __future__ import annotations

from knee.specs.model.decoder import Model
from knee.specs.model.experts import Experts
from knee.specs.model.latent_attention import LatentAttention

PLAIN: dict[str, object] = {
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "positions": "rope",
    "biases": False,
    "qk_norm": "none",
    "layer_norms": 2,
    "rope_frac": 1.0,
    "attention_soft_cap": 0.0,
    "final_soft_cap": 0.0,
    "parallel_residual": False,
    "qkv_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "experts": None,
    "latent_attention": None,
    "mtp_layers": 0,
}
"""Llama's values of the fields in which decoders differ; a window differs only in sequences that are longer."""


def departures(model: Model, seq_len: int) -> dict[str, str]:
    """Field -> its name and value, of every field in which the model differs from Llama."""
    fields = [name for name, value in PLAIN.items() if getattr(model, name) != value]
    fields += ["window"] if model.slides(seq_len) else []
    return {name: _shown(name, getattr(model, name)) for name in fields}


def _shown(name: str, value: object) -> str:
    if isinstance(value, (Experts, LatentAttention)):
        return name
    if isinstance(value, bool):
        return f"{name} {str(value).lower()}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
