"""A mixture of experts: the MLP of a layer as many experts, of which each token uses a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from knee.errors import SpecError, out_of_range
from knee.specs.model.rules import MOST

Scores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a layer, their router, and which layers have them."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    count: int
    """Routed experts of a layer."""
    top_k: int
    """Routed experts that each token uses."""
    ffn: int
    """Inner width of one routed expert."""
    shared_ffn: int = 0
    """Inner width of all shared experts together, which every token uses; 0 means none."""
    shared_gate: bool = False
    """Whether a gate scales the output of the shared experts (Qwen2-MoE)."""
    dense_layers: int = 0
    """Leading layers with a dense MLP, of the model's ffn (DeepSeek-V3: 3)."""
    every: int = 1
    """Of the layers after them, the last of each so many has experts and the others are dense (Llama 4 Maverick: 2)."""
    scores: Scores = "softmax"
    """How the router turns logits into weights."""
    normalised_weights: bool = True
    """Whether the weights of a token's experts add up to 1. It does not change the simulated time; real training needs
    it."""
    weight_scale: float = 1.0
    """Factor of these weights (DeepSeek-V3: 2.5). It does not change the simulated time; real training needs it."""
    groups: int = 1
    """Groups of experts, of which a token uses a few (DeepSeek-V3: 8), so that it is sent to few nodes."""
    top_groups: int = 1
    """Groups that each token uses (DeepSeek-V3: 4)."""
    router_bias: bool = False
    """Whether the router has a bias: learned (GPT-OSS), or moved to balance the experts (DeepSeek-V3)."""

    def __post_init__(self) -> None:
        for field in ("count", "top_k", "ffn", "every", "groups", "top_groups"):
            if not 1 <= getattr(self, field) <= MOST:
                rule = f"it must be between 1 and {MOST:,}"
                raise out_of_range(f"model.experts.{field}", getattr(self, field), rule)
        for field in ("shared_ffn", "dense_layers"):
            if not 0 <= getattr(self, field) <= MOST:
                rule = f"it must be between 0 and {MOST:,}"
                raise out_of_range(f"model.experts.{field}", getattr(self, field), rule)
        if not 0 < self.weight_scale <= MOST:
            rule = f"it must be more than 0 and at most {MOST:,}"
            raise out_of_range("model.experts.weight_scale", f"{self.weight_scale:g}", rule)
        if self.top_k > self.count:
            raise SpecError(
                f"model.experts.top_k is {self.top_k}, but a layer has {self.count} experts",
                hint=f"use a top_k of at most {self.count}",
                code="out-of-range",
                field="model.experts.top_k",
            )
        if self.shared_gate and not self.shared_ffn:
            raise SpecError(
                "model.experts.shared_gate is true, but there are no shared experts",
                hint="give shared_ffn, or leave shared_gate out",
                code="contradiction",
                field="model.experts.shared_gate",
            )
        self._check_groups()

    def _check_groups(self) -> None:
        if self.count % self.groups:
            raise SpecError(
                f"{self.count} experts do not divide into {self.groups} groups",
                hint=f"use a number of groups that divides {self.count}",
                code="does-not-divide",
                field="model.experts.groups",
            )
        if self.top_groups > self.groups:
            raise SpecError(
                f"model.experts.top_groups is {self.top_groups}, but there are {self.groups} groups",
                hint=f"use at most {self.groups}",
                code="out-of-range",
                field="model.experts.top_groups",
            )
        if self.top_k > self.top_groups * (self.count // self.groups):
            raise SpecError(
                f"top_k {self.top_k} is more than the {self.count // self.groups} experts of {self.top_groups} groups",
                hint="raise top_groups, or lower top_k",
                code="out-of-range",
                field="model.experts.top_k",
            )

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        after = layer - self.dense_layers
        return after >= 0 and after % self.every == self.every - 1

    def layers_with_experts(self, layers: int) -> int:
        """How many of a model's layers have experts."""
        return max(0, layers - self.dense_layers) // self.every
