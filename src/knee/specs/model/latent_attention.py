"""Multi-head latent attention: keys and values of all heads from one narrow vector per token (DeepSeek-V2 and V3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from knee.errors import out_of_range
from knee.specs.model.rules import MOST


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """The ranks of its projections and the parts of a head."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kv_rank: int
    """Width of the vector from which keys and values are made (kv_lora_rank)."""
    nope_size: int
    """Part of a head's query and key without positions (qk_nope_head_dim)."""
    rope_size: int
    """Part of a head's query and key that the rotary embedding rotates; its keys are shared by all heads
    (qk_rope_head_dim)."""
    value_size: int
    """Width of a head's values (v_head_dim)."""
    q_rank: int = 0
    """Width of the vector from which queries are made (q_lora_rank); 0 means that they are projected directly."""

    def __post_init__(self) -> None:
        for field in ("kv_rank", "nope_size", "rope_size", "value_size"):
            if not 1 <= getattr(self, field) <= MOST:
                rule = f"it must be between 1 and {MOST:,}"
                raise out_of_range(f"model.latent_attention.{field}", getattr(self, field), rule)
        if not 0 <= self.q_rank <= MOST:
            rule = f"it must be between 0 and {MOST:,}"
            raise out_of_range("model.latent_attention.q_rank", self.q_rank, rule)
