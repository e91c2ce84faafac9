"""WHAT is trained: the shape of a decoder-only transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from knee.errors import SpecError, out_of_range

MOST = 10_000_000
"""Beyond any model anyone trains; larger sizes are typing mistakes."""
MOST_LAYERS = 10_000
"""The same of layers, which a step is walked through one by one."""

Mlp = Literal["swiglu", "gelu", "relu2"]
Norm = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned", "alibi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense decoder. Sizes are counts, so they carry no unit."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    """Name of the model. It defaults to the file's name."""
    layers: int
    """Decoder blocks."""
    hidden: int
    """Width of the residual stream."""
    ffn: int
    """Inner width of the MLP."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; fewer than ``heads`` is grouped-query attention."""
    vocab: int
    """Number of tokens in the vocabulary."""
    head_size: int = 0
    """Width of one head; 0 means hidden / heads."""
    mlp: Mlp = "swiglu"
    """Activation of the MLP. swiglu has three weight matrices, the others have two."""
    norm: Norm = "rmsnorm"
    """Kind of normalisation."""
    positions: Positions = "rope"
    """How positions are encoded."""
    rope_base: float = 10_000.0
    """Base of the rotary embedding. It does not change the simulated time; real training needs it."""
    tied_embeddings: bool = False
    """Whether the output projection shares the weights of the input embedding."""
    biases: bool = False
    """Whether linear layers have biases (GPT-2 and GPT-3)."""
    max_seq_len: int = 4096
    """Longest sequence that the model supports; also the number of learned positions."""

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "max_seq_len"):
            if getattr(self, field) < 1:
                raise out_of_range(f"model.{field}", getattr(self, field), "it must be at least 1")
            most = MOST_LAYERS if field == "layers" else MOST
            if getattr(self, field) > most:
                raise out_of_range(f"model.{field}", getattr(self, field), f"more than {most:,} is not supported")
        if not 1 < self.rope_base < math.inf:
            raise out_of_range("model.rope_base", f"{self.rope_base:g}", "it must be more than 1")
        if not 0 <= self.head_size <= MOST:
            rule = f"it must be between 0 (hidden / heads) and {MOST:,}"
            raise out_of_range("model.head_size", self.head_size, rule)
        if self.head_size == 0 and self.hidden % self.heads:
            raise SpecError(
                f"model.hidden {self.hidden} is not divisible by model.heads {self.heads}",
                hint="give head_size explicitly, or correct one of them",
                code="does-not-divide",
                field="model.hidden",
            )
        if self.heads % self.kv_heads:
            text = f"model.heads {self.heads} is not a multiple of model.kv_heads {self.kv_heads}"
            raise SpecError(text, code="does-not-divide", field="model.heads")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def q_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection (and of the value projection)."""
        return self.kv_heads * self.head_dim
